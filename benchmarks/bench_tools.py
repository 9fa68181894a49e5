"""The AI's tools on real models: whether plain talk stays plain, and whether requests become calls that run."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave, events
from halo_weave.models import catalogue
from halo_weave.settings import Settings

LONGEST = 48  # tokens of a reply
PLAIN = (
    "My dog Pixel is afraid of balloons.",
    "What is the capital of France?",
    "I had pancakes for breakfast today.",
    "Why is the sky blue?",
    "My sister Anna lives in Lisbon.",
    "Name three colours.",
    "It has been raining here all week.",
    "How many legs does a spider have?",
    "I am learning to play the cello.",
    "What is two plus three?",
)
# What is asked for, and a word that must then stand in the memory.
REMEMBER = (
    ("Please remember that my cat is called Mooncake.", "mooncake"),
    ("Remember this for later: the door code is 4711.", "4711"),
    ("Save to your memory that I am allergic to peanuts.", "peanut"),
    ("Please keep in mind for ever that my birthday is on the 3rd of May.", "may"),
    ("Store in your memory that Tom's phone number is 555-0199.", "555-0199"),
)
# What is asked for, and what the tool must answer with. The memory holds it.
KNOWN = {
    "Family/Brother": "My brother is called Edgar.",
    "Home/Wifi": "The wifi password is bluebird77.",
    "Work/Boss": "My boss is Mrs. Okafor.",
    "Travel/Flight": "The flight to Oslo is LH2458.",
    "Health/Doctor": "The doctor is Dr. Lindqvist.",
}
LOOK_UP = (
    ("Look up Family/Brother in your memory: what is my brother called?", "Edgar"),
    ("Look up the wifi password in your memory under Home/Wifi.", "bluebird77"),
    ("Read Work/Boss from your memory and tell me who my boss is.", "Okafor"),
    ("What did you save under Travel/Flight? Look it up in your memory.", "LH2458"),
    ("Query your memory for Health/Doctor: who is my doctor?", "Lindqvist"),
)
_TRACE = re.compile(
    r"</?tool|tool_call|\"arguments\"|\"name\":|(?:save|query|list|delete|inject)_(?:memory|heading)|\bjq\b|⚙|notes\.json",
    re.IGNORECASE,
)

Form = Literal["auto", "native", "tags", "off"]


@dataclass
class _Talk:
    """One window, in which every exchange stands alone."""

    weave: Weave
    window: str
    form: str

    @classmethod
    def open(cls, weave: Weave, form: Form) -> _Talk:
        window = weave.windows.create(form, settings={"tools": form}).id
        return cls(weave, window, form)

    def say(self, text: str) -> list[events.TurnEvent]:
        turn = list(self.weave.turns.steps(self.window, text))
        for live in [one.key for one in self.weave.runtime.store.live(self.window)]:
            self.weave.chunks.prune(self.window, live)
        return turn


def _plain(talk: _Talk, text: str) -> bool:
    turn = talk.say(text)
    spoken = "".join(event.text for event in turn if isinstance(event, events.TokenGenerated))
    called = any(isinstance(event, events.ToolCalled) for event in turn)
    _tell(talk.form, text, spoken)
    return bool(spoken.strip()) and not called and not _TRACE.search(spoken)


def _remembers(talk: _Talk, text: str, word: str) -> bool:
    """The word stands in the memory now. What was saved is deleted, so that every request meets the same memory."""
    now, before, noted = talk.weave.now(), _saved(talk.weave), _noted(talk.weave)
    turn = talk.say(text)
    after = _saved(talk.weave)
    new = {path: content for path, content in after.items() if before.get(path) != content}
    for path in new:
        talk.weave.runtime.toolbox.tree.delete(path, now=now)  # type: ignore[union-attr]
        if path in before:
            talk.weave.runtime.toolbox.tree.save(path, before[path], now=now)  # type: ignore[union-attr]
    _tell(talk.form, text, "".join(one.text for one in turn if isinstance(one, events.TokenGenerated)))
    return any(word in f"{path} {content}".lower() for path, content in new.items()) or (
        word not in noted and word in _noted(talk.weave)
    )


def _looks_up(talk: _Talk, text: str, fact: str) -> bool:
    turn = talk.say(text)
    _tell(talk.form, text, "".join(one.text for one in turn if isinstance(one, events.TokenGenerated)))
    return any(isinstance(one, events.ToolAnswered) and one.ok and fact in one.text for one in turn)


def _saved(weave: Weave) -> dict[str, Any]:
    return {entry.path: entry.content for entry in weave.runtime.store.entries()}


def _noted(weave: Weave) -> str:
    return json.dumps(weave.memory_tools.notes.latest(now=weave.now()), default=str).lower()


def _tell(form: str, said: str, answered: str) -> None:
    if _Shown.replies:
        print(f"[{form}] {said}\n    {answered!r}", file=sys.stderr)


class _Shown:
    replies = False


def measure(model: str, forms: list[str] | None = None) -> dict[str, dict[str, float]]:
    """The shares of one model. What needs no second run, since two settings come to the same, has none."""
    settings = replace(
        Settings(),
        temperature=0.0,
        max_new_tokens=LONGEST,
        resurrection_budget=0,
        timestamps=False,
        tool_rounds=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), model=model, embedder="off", settings=settings, context=4096)
        with closing(build_weave(options)) as weave:
            assert weave.runtime.toolbox is not None
            for path, content in KNOWN.items():
                weave.runtime.toolbox.tree.save(path, content, now=weave.now())
            shares: dict[str, dict[str, float]] = {"plain": {}, "calls": {}}
            known: dict[tuple[str, tuple[str, ...]], float] = {}
            todo: list[tuple[str, Form]] = [
                ("plain", "off"),
                ("plain", "auto"),
                ("calls", "native"),
                ("calls", "auto"),
                ("calls", "tags"),
            ]
            for kind, form in todo:
                if forms and form not in forms:
                    continue
                talk = _Talk.open(weave, form)
                texts = PLAIN if kind == "plain" else [text for text, _ in (*REMEMBER, *LOOK_UP)]
                settings = weave.windows.settings(talk.window)
                same = (weave.runtime.tool_format(settings),) * len(texts)
                if (kind, same) not in known:
                    known[kind, same] = _share(talk, kind) if kind == "plain" or set(same) != {"off"} else 0.0
                shares[kind][form] = known[kind, same]
            return shares


def _share(talk: _Talk, kind: str) -> float:
    if kind == "plain":
        good = [_plain(talk, text) for text in PLAIN]
    else:
        good = [_remembers(talk, *one) for one in REMEMBER] + [_looks_up(talk, *one) for one in LOOK_UP]
    return sum(good) / len(good)


def _present() -> list[str]:
    """The models of the catalogue that are here and write text; the smallest is pulled if it is not."""
    catalogue.ensure(catalogue.SMOLLM2_135M)
    writing = [entry for entry in catalogue.ENTRIES if entry.kind != "embedder"]
    for entry in writing:
        if not entry.present:
            print(f"{entry.name} is not here: halo-weave pull {entry.name}", file=sys.stderr)
    return [entry.name for entry in writing if entry.present]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--model",
        nargs="+",
        action="extend",
        help="names or files; default: those of the catalogue that are here",
    )
    parser.add_argument("--form", nargs="+", help="only these of auto, native, tags, off")
    parser.add_argument("--replies", action="store_true", help="show what the models say")
    options = parser.parse_args()
    _Shown.replies = options.replies
    found = {}
    for model in options.model or _present():
        found[Path(model).stem if "/" in model else model] = measure(model, options.form)
    if options.json:
        print(json.dumps(found))
        return
    for model, shares in found.items():
        for kind, by_form in shares.items():
            print(f"{model:44} {kind:6}", "  ".join(f"{form} {share:.2f}" for form, share in by_form.items()))


if __name__ == "__main__":
    main()
