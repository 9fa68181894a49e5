"""A part of a conversation, said to the model and seen by all strategies at once: what they point to, what they keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture, Floats, Light, Sight, Strategy, peaks
from halo_weave.core.heads import Calibration
from halo_weave.core.pruning import choose_prunes
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.use import UseTally
from halo_weave.core.window import Window, chunk_turn
from halo_weave.lab.dialogues import AskedLater, Said, exchanges_of
from halo_weave.lab.forced import forced_reply
from halo_weave.ports import Done, Engine, Read, Step
from halo_weave.records import DEFAULT_PROMPT
from halo_weave.weave.prompt import Scribe, WindowPrompt

KEEP = (0.75, 0.5, 0.25)
WINDOW = "lab"
DRAWS = 20  # of chance, whose mean is what chance keeps
VOTES = "votes"  # a window without decay and cap, which shows the votes of single replies


@dataclass(frozen=True, slots=True)
class Chance(Strategy):
    """What stays is chosen by chance; the same choice for the same draw and number of chunks."""

    draw: int = 0

    def brighten(self, sight: Sight, row: AttentionRow) -> Light:
        return sight.light

    def of_chunks(self, sight: Sight) -> Floats:
        return np.random.default_rng((self.draw, len(sight.chunks))).random(len(sight.chunks), np.float32)


@dataclass(slots=True)
class Talk:
    """One window's talk with the replies given, seen by several windows with a strategy each."""

    engine: Engine
    calibration: Calibration
    scribe: Scribe
    windows: dict[str, Window]
    position: int = 0
    turn: int = 1
    keys: dict[str, list[ChunkKey]] = field(default_factory=dict)  # by the file's names

    @classmethod
    def begin(
        cls, engine: Engine, calibration: Calibration, scribe: Scribe, strategies: Mapping[str, Strategy]
    ) -> Talk:
        engine.forget(WINDOW)
        frame_tokens = scribe.frame_tokens()
        windows = {
            name: Window(
                strategy=one,
                system_tokens=len(scribe.system(DEFAULT_PROMPT)),
                frame_tokens=frame_tokens,
            )
            for name, one in strategies.items()
        }
        return cls(engine, calibration, scribe, windows)

    @property
    def window(self) -> Window:
        return next(iter(self.windows.values()))

    def exchange(self, question: Said, answer: str, names: frozenset[str] = frozenset()) -> UseTally:
        """The question is read and the given reply said; what it was taken from."""
        user, reply = self.turn, self.turn + 1
        said = self.engine.tokenize(question.text)
        chunks = chunk_turn(said, user, Role.USER, self.position)
        for window in self.windows.values():
            window.add([window.born(chunk) for chunk in chunks])
            window.begin_reply(reply, self.position + len(said), user)
        tally = UseTally(self.calibration)
        forced = self.engine.tokenize(answer)
        prompt = self.scribe.prompt(self.window, self.scribe.system(DEFAULT_PROMPT), {})
        before = sum(len(chunk) for chunk in self.window.chunks if chunk.key.turn_id < user)
        for event in forced_reply(self.engine, WINDOW, prompt, forced, self._capture()):
            if isinstance(event, Read):
                self._read(event, prompt, user, tally, before)
            elif isinstance(event, Step):
                row = prompt.whole(event.row)
                tally.say(row, self.window.chunks, self.window.offsets, user)
                for window in self.windows.values():
                    if window.strategy.capture.reply:
                        window.update(row)
                    window.say(event.id, event.piece, event.surprisal)
            elif isinstance(event, Done) and (row := prompt.whole(event.row)):
                tally.end(row)
        for window in self.windows.values():
            made = window.end_reply()
        for name in question.names:
            self.keys[name] = [chunk.key for chunk in chunks]
        for name in names:
            self.keys[name] = [chunk.key for chunk in made]
        self.position += len(said) + len(forced) + 64
        self.turn += 2
        return tally

    def _capture(self) -> Capture:
        """All heads' mean for the strategies that vote by it, and the retrieval heads one by one."""
        capture = Capture(reading=True, reading_surprisal=True)
        if self.calibration.heads:
            capture = replace(capture, raw=True, raw_pairs=self.calibration.pairs)
        return capture

    def _read(self, read: Read, prompt: WindowPrompt, user: int, tally: UseTally, before: int) -> None:
        rows = [row for row in map(prompt.whole, read.rows) if row]
        tally.read(rows, before)
        for window in self.windows.values():
            if read.surprisal is not None:
                window.learn_surprisal(user, prompt.whole_surprisal(read.surprisal))
            if window.strategy.capture.reading:
                window.learn_rows(rows)

    def take_back(self) -> None:
        """The last exchange was never said."""
        for window in self.windows.values():
            window.remove([chunk.key for chunk in window.chunks if chunk.key.turn_id >= self.turn - 2])


def tried(talk: Talk, part: Sequence[Said], asked: Sequence[AskedLater], most: int) -> dict[str, Any]:
    """One part of a conversation: what is kept of what is asked later, and where the answers' light falls.

    `talk` needs windows named magnitude_voting and `VOTES`.
    """
    for question, answer in exchanges_of(part):
        talk.exchange(question, answer.text, answer.names)
    known = [one for one in asked if one.evidence <= talk.keys.keys()]
    kept = _kept(talk, {name for one in known for name in one.evidence})
    if len(known) > most:
        known = [known[i] for i in np.linspace(0, len(known) - 1, most).round().astype(int)]
    return {"kept": kept, "answers": [_attributed(talk, part, one) for one in known]}


def votes_of_replies() -> Strategy:
    """Magnitude voting that shows what single replies add: nothing is lost, nothing is cut off."""
    return MagnitudeVoting(initial_brightness=0.0, brightness_cap=float(1 << 24), decay=0.0)


def _attributed(talk: Talk, part: Sequence[Said], one: AskedLater) -> dict[str, Any]:
    """By each way of reading, at which place the first right chunk stands; 0: nowhere."""
    right = {key for name in one.evidence for key in talk.keys[name]}
    voting, votes = talk.windows["magnitude_voting"], talk.windows[VOTES]
    count, chunks, offsets = len(voting), list(voting.chunks), voting.offsets.copy()
    before = votes.brightness.copy(), voting.brightness.copy()
    asked = Said(frozenset(), Role.USER, one.text, part[-1].said + timedelta(days=1))
    tally = talk.exchange(asked, one.answer)
    ranked = {"default": [used.key for used in tally.whole().chunks]}
    # The votes of the answer's own tokens; and what of them shows, since nothing rises above the cap.
    for way, window, was in (
        ("magnitude_voting", votes, before[0]),
        ("magnitude_voting, under its cap", voting, before[1]),
    ):
        gain = peaks(window.brightness[:count] - was, offsets)
        ranked[way] = [chunks[i].key for i in np.argsort(-gain, kind="stable")]
    talk.take_back()
    places = {way: _place(keys, right) for way, keys in ranked.items()}
    # Where a question was answered, files may name the question as the evidence.
    turns = {key.turn_id for key in right}
    beside = {key for key in ranked["default"] if turns & set(range(key.turn_id - 1, key.turn_id + 2))}
    places["default, or the turn beside it"] = _place(ranked["default"], beside)
    return {"kind": one.kind, "places": places}


def _place(keys: Sequence[ChunkKey], right: Collection[ChunkKey]) -> int:
    return next((place for place, key in enumerate(keys, 1) if key in right), 0)


def _kept(talk: Talk, evidence: set[str]) -> dict[str, dict[str, float]]:
    """For each strategy, the share of turns that will be asked about of which half is still live."""
    last = {talk.turn - 2, talk.turn - 1}
    # Two names may stand for one turn.
    wanted = {tuple(keys) for name in evidence if (keys := talk.keys[name])[0].turn_id not in last}
    found: dict[str, dict[str, float]] = {}
    for name, window in talk.windows.items() if wanted else ():
        if name == VOTES:
            continue
        chance = isinstance(window.strategy, Chance)
        for share in KEEP:
            draws = []
            for draw in range(DRAWS if chance else 1):
                if chance:
                    window.use(Chance(draw=draw))
                draws.append(_live_share(window, share, last, wanted))
            found.setdefault(name, {})[str(share)] = float(np.mean(draws))
    return found


def _live_share(window: Window, share: float, last: set[int], wanted: set[tuple[ChunkKey, ...]]) -> float:
    """What of the wanted is live for at least half once the window is pruned to a share of its size."""
    sizes = {chunk.key: len(chunk) for chunk in window.chunks}
    gone = set(choose_prunes(window, int(window.size * share), current=last).keys)
    return float(
        np.mean(
            [
                sum(sizes[key] for key in keys if key not in gone) * 2 >= sum(sizes[key] for key in keys)
                for keys in wanted
            ]
        )
    )
