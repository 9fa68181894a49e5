"""Find the retrieval heads of a model, once for each model file.

A retrieval head is an attention head that looks at the earlier token which the model copies next. The tests give the model
prompts in which that token is known: a list of words to repeat, and a story with facts to recall.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.retrieval_heads import (
    NOT_CALIBRATED,
    PENDING,
    Calibration,
    RetrievalHead,
    Strengths,
    choose_heads,
)
from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.base import Capture, Engine, PrefillResult, Prompt, Sampling, Segment
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.errors import HaloWeaveError

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]  # what is being done, the amount done, the whole amount

METHOD = 2  # the version of the tests and of the choice of heads; a stored calibration of another version is not used
PROGRESS_TEXT = "Calibrating the attention heads"
WINDOW = "calibration"  # the window id that the engine caches the tests under
WORD_LISTS, FACT_STORIES = 2, 4  # lists of words to copy; stories, with a question for each of their facts
HEADS_PER_PASS = 512  # their rows take about 50 MB; with more heads, each prompt is computed several times
BLOCK = 1 << 20  # bytes read at once to hash a file

WORDS = """
    apple river stone cloud paper green music table horse light water bread glass tiger pilot sugar
    chair ocean train metal garden winter bridge candle orange silver mountain kitchen window doctor
    basket pencil rocket island forest castle dragon engine farmer guitar hammer jacket ladder magnet
    needle pepper rabbit saddle tunnel violin wallet yellow anchor button copper desert eagle flower
    ginger helmet
""".split()
NAMES = """
    Anna Tom Maria Peter Lucy John Sara Mark Nina Paul Ella Hugo Iris Leo Olga Karl
""".split()
FACTS = (  # the fact, the question, how the reply begins, and the possible answers
    (
        "{0} lives in {1}.",
        "Where does {0} live?",
        "{0} lives in",
        "Oslo Paris Rome Madrid Berlin Lima Cairo Tokyo",
    ),
    (
        "The cat of {0} is called {1}.",
        "What is the cat of {0} called?",
        "The cat of {0} is called",
        "Pepper Bruno Luna Rocky Milo Daisy Simba Coco",
    ),
    (
        "{0} likes to eat {1}.",
        "What does {0} like to eat?",
        "{0} likes to eat",
        "pizza sushi pasta curry tacos soup salad pancakes",
    ),
    (
        "{0} works as a {1}.",
        "What does {0} work as?",
        "{0} works as a",
        "baker nurse pilot lawyer farmer painter teacher plumber",
    ),
)
FILLER = (
    "The weather was mild that day.",
    "People walked along the street.",
    "Nothing much happened in the afternoon.",
    "A bus stopped at the corner.",
    "Someone laughed in the distance.",
    "The shop closed at six.",
    "It was a long week for everybody.",
    "The lamp on the desk was still on.",
    "We talked for a while about this and that.",
    "The road was quiet at night.",
)


def load_or_calibrate(
    engine: Engine, folder: Path, progress: Progress, *, force: bool = False, shared: Path | None = None
) -> Calibration:
    """The calibration of the engine's model: the stored one, or a new one, which is then stored in the folder.

    `force`: calibrate again even if there is a stored one. `shared`: a second folder to store it in, beside the model files, for
    other data folders. A model that cannot be calibrated can still be used: its brightness comes from all heads.
    """
    if (fixed := _known_without_tests(engine)) is not None:
        return fixed
    if (shadow_model := _shadow_model_of(engine)) is not None:
        return _of_shadow_model(
            shadow_model, load_or_calibrate(shadow_model, folder, progress, force=force, shared=shared)
        )
    try:
        places = _files(engine, folder, shared, progress)
        stored = [None if force else _read_file(place) for place in places]
        calibration = next(filter(None, stored), None) or calibrate(engine, progress)
        for place, content in zip(places, stored, strict=True):
            if content is None:
                _write_file(place, {"method": METHOD, "model": engine.info.name, **_as_json(calibration)})
        return calibration
    except (HaloWeaveError, OSError) as error:
        log.warning("The model was not calibrated: %s", error)
        return Calibration(sentence=f"This model was not calibrated: {error}")


def load_calibration(
    engine: Engine, folder: Path, progress: Progress, *, shared: Path | None = None
) -> Calibration | None:
    """The stored calibration; None if the model has to be calibrated first."""
    if (fixed := _known_without_tests(engine)) is not None:
        return fixed
    if (shadow_model := _shadow_model_of(engine)) is not None:
        stored = load_calibration(shadow_model, folder, progress, shared=shared)
        return stored and _of_shadow_model(shadow_model, stored)
    try:
        return next(filter(None, map(_read_file, _files(engine, folder, shared, progress))), None)
    except OSError:
        return None


def pending_calibration(engine: Engine) -> Calibration:
    """The calibration to use until the model is calibrated."""
    shadow_model = _shadow_model_of(engine)
    return PENDING if shadow_model is None else _of_shadow_model(shadow_model, PENDING)


def _shadow_model_of(engine: Engine) -> Engine | None:
    """The small local model that supplies attention for an engine that exposes none."""
    shadow_model: Engine | None = getattr(engine, "shadow_model", None)
    return shadow_model


def _of_shadow_model(shadow_model: Engine, calibration: Calibration) -> Calibration:
    return replace(
        calibration,
        sentence=f"Attention comes from the shadow model {shadow_model.info.name}. {calibration.sentence}",
    )


def _known_without_tests(engine: Engine) -> Calibration | None:
    """The calibration of a model that needs no tests or cannot be tested; None: it has to be tested."""
    info = engine.info
    reported = getattr(
        engine, "calibration", None
    )  # a remote engine may report its calibration, or that it has none
    if isinstance(reported, Calibration):
        return reported
    if _shadow_model_of(engine) is not None:
        return None
    if not info.file and not info.url:
        return NOT_CALIBRATED
    return (
        None
        if info.abilities.attention
        else Calibration(sentence="The attention of this model cannot be captured.")
    )


def _files(engine: Engine, folder: Path, shared: Path | None, progress: Progress) -> list[Path]:
    """The paths at which the calibration of the engine's model is stored."""
    folders = [folder] if shared is None else [folder, shared]
    info = engine.info
    if info.file:
        name = _hash_of(Path(info.file), [one / "files.json" for one in folders], progress)
    else:  # of a model on a server, only name and shape are known
        name = hashlib.sha256(f"{info.url} {info.name} {info.layers} {info.heads}".encode()).hexdigest()
    return [one / f"{name}.json" for one in folders]


def calibrate(engine: Engine, progress: Progress) -> Calibration:
    """Run all tests, and choose the heads that look at the right token most."""
    random = Random(1)  # the same tests for every model
    trials = [
        *(_copying_trial(engine, random.sample(WORDS, 48)) for _ in range(WORD_LISTS)),
        *(trial for _ in range(FACT_STORIES) for trial in _recall_trials(engine, random)),
    ]
    shape = engine.info.layers, engine.info.heads
    sums = {"copying": np.zeros(shape), "needles": np.zeros(shape)}
    counts = dict.fromkeys(sums, 0)
    try:
        for done, trial in enumerate(trials):
            progress(PROGRESS_TEXT, done, len(trials))
            sums[trial.kind] += trial.run(engine)
            counts[trial.kind] += 1
    finally:
        engine.forget(WINDOW)
    progress(PROGRESS_TEXT, len(trials), len(trials))
    copying, needles = (sums[kind] / max(1, counts[kind]) for kind in sums)
    if engine.info.wide_layers:  # the other layers attend only within a sliding window
        narrow = np.setdiff1d(np.arange(shape[0]), engine.info.wide_layers)
        copying[narrow], needles[narrow] = 0, 0
    return choose_heads(copying, needles)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One test: a prompt that ends with a given reply, and for some tokens of the reply the earlier token that should
    get the attention.

    `kind` is "copying" or "needles" (recalling a fact from a story).
    """

    kind: str
    prompt: Prompt
    targets: Sequence[tuple[int, int]]  # (row from `read_from` on, token of all chunk tokens)

    def run(self, engine: Engine) -> Strengths:
        """(layers, heads): the mean share of attention that the right token got."""
        layers, heads = engine.info.layers, engine.info.heads
        strengths = np.zeros((layers, heads))
        at_once = layers if len(self.targets) == 1 else max(1, HEADS_PER_PASS // heads)
        for first in range(0, layers, at_once):
            chosen = tuple(range(first, min(layers, first + at_once)))
            rows = _rows(engine, self.prompt, Capture(layers=chosen, reply=False, reading=True, raw=True))
            for row, token in self.targets:
                raw = rows[row].raw if row < len(rows) else None
                if raw is not None:
                    strengths[chosen[0] : chosen[-1] + 1] += raw[:, token].reshape(-1, heads)
        return strengths / max(1, len(self.targets))


def _rows(engine: Engine, prompt: Prompt, capture: Capture) -> tuple[AttentionRow, ...]:
    rows: tuple[AttentionRow, ...] = ()
    for event in engine.generate(WINDOW, prompt, Sampling(temperature=0, max_new_tokens=1), capture):
        if isinstance(event, PrefillResult):
            rows = event.rows
    return rows


def _copying_trial(engine: Engine, words: Sequence[str]) -> _Trial:
    """The user asks to repeat words: each word of the reply should look at the same word of the message."""
    text = " ".join(words)
    prompt, said, reply = _prompt(engine, [ChatMessage("user", f"Repeat these words: {text}")], text)
    first = sum(len(one) for one in said)
    offset = first - len(reply)  # both end with the same words
    ids = np.concatenate([*(one.ids for one in said), reply.ids])
    targets = [(i - 1, offset + i) for i in range(1, len(reply)) if ids[offset + i] == ids[first + i]]
    return _Trial("copying", prompt, targets)


def _recall_trials(engine: Engine, random: Random) -> Iterator[_Trial]:
    """A story of six facts among filler. For each fact one test: its question, and the reply up to the answer."""
    facts = []
    for i, name in enumerate(random.sample(NAMES, 6)):
        fact, question, begin, answers = FACTS[i % len(FACTS)]
        answer = random.choice(answers.split())
        facts.append((fact.format(name, answer), question.format(name), begin.format(name), answer))
    sentences = [fact for fact, _, _, _ in facts] + random.sample(FILLER, 8)
    random.shuffle(sentences)
    story = " ".join(sentences)
    for fact, question, begin, answer in facts:
        messages = [
            ChatMessage("user", story),
            ChatMessage("assistant", "I see."),
            ChatMessage("user", question),
        ]
        prompt, said, _ = _prompt(engine, messages, begin, last=True)
        at = said[0].text.find(fact) + len(fact) - 1 - len(answer)
        token = int(np.searchsorted(said[0].ends, at, side="right"))
        yield _Trial("needles", prompt, [(0, token)])


def _prompt(
    engine: Engine, messages: Sequence[ChatMessage], reply: str, *, last: bool = False
) -> tuple[Prompt, list[Tokens], Tokens]:
    """The prompt of the messages and the reply; the tokens of each message; the tokens of the reply.

    Attention rows are read for each token of the reply, or with `last` for its last token only.
    """
    segments: list[Segment] = []
    said: list[Tokens] = []
    counts = {"chunk": 0, "frame": 0}

    def add(kind: Any, ids: Ids) -> None:
        labels = np.arange(counts[kind], counts[kind] + len(ids), dtype=np.int64)
        counts[kind] += len(ids)
        if len(ids):
            segments.append(Segment(kind, labels if kind == "chunk" else -1 - labels, ids))

    for piece in engine.chat(messages).pieces:
        if piece.said:
            said.append(engine.tokenize(piece.text))
            add("chunk", said[-1].ids)
        else:
            add("frame", engine.tokenize(piece.text, special=True).ids)
    first = counts["chunk"]
    tokens = engine.tokenize(reply)
    add("chunk", tokens.ids)
    return Prompt(segments, counts["chunk"], counts["chunk"] - 1 if last else first), said, tokens


# Files


def _as_json(calibration: Calibration) -> dict[str, Any]:
    return {"sentence": calibration.sentence, "heads": [head._asdict() for head in calibration.heads]}


def _read_file(place: Path) -> Calibration | None:
    """The stored calibration; None if there is none of this `METHOD`, or it cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(place.read_text(encoding="utf-8"))
        if content["method"] == METHOD:
            heads = tuple(RetrievalHead(**head) for head in content["heads"])
            return Calibration(heads, content["sentence"])
    return None


def _write_file(place: Path, content: dict[str, Any]) -> None:
    """Write a file completely or not at all. If the folder cannot be written, the model is calibrated at each start."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(place.name + ".partial")
        partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
        partial.replace(place)


def _hash_of(file: Path, lists: Sequence[Path], progress: Progress) -> str:
    """The SHA-256 of a file. The `lists` remember it by size and modification time, so that it is computed once."""
    stat = file.stat()
    size_and_time, name = [stat.st_size, stat.st_mtime_ns], str(file.resolve())
    kept = {place: _known_files(place) for place in lists}
    entries = [entry for known in kept.values() if isinstance(entry := known.get(name), dict)]
    sha256 = next(
        (str(one["sha256"]) for one in entries if one.get("mark") == size_and_time and one.get("sha256")), ""
    )
    if not sha256:
        digest, done = hashlib.sha256(), 0
        with file.open("rb") as source:
            while block := source.read(BLOCK):
                digest.update(block)
                done += len(block)
                progress("Hashing the model file", done, stat.st_size)
        sha256 = digest.hexdigest()
    entry = {"mark": size_and_time, "sha256": sha256}
    for place, known in kept.items():
        if known.get(name) != entry:
            _write_file(place, {**known, name: entry})
    return sha256


def _known_files(place: Path) -> dict[str, Any]:
    """The list of hashed files; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        read = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(read, dict):
            return read
    return {}
