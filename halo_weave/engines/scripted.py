"""A deterministic engine without a model, for tests: it says what it is told to and looks where it is told to.

It keeps cells, places and rows as the real one does, so that what is built on an engine can be tested whole.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.tokens import Ids, Role, Tokens
from halo_weave.engines.cells import Cells, Held, Restore, choose
from halo_weave.engines.prompts import CHUNK, Floats, Kinds, Written, attention_row, write
from halo_weave.engines.sampling import check
from halo_weave.engines.stops import Stops
from halo_weave.errors import BadInput, EngineError
from halo_weave.ports import Capture, Done, ModelInfo, Planned, Prompt, Read, Reason, Sampling, Step

Event = Planned | Read | Step | Done

WORD = re.compile(r"\s?\w+|\s+|[^\w\s]+", re.UNICODE)
CONTROLS = ("<|begin|>", "<|turn|>", "<|end|>")
CONTROL = re.compile("|".join(map(re.escape, CONTROLS)))
CONTROL_IDS = 4 << 24
VOCABULARY = 5 << 24
END = CONTROL_IDS + CONTROLS.index("<|end|>")
LAYERS, HEADS = 2, 3
KNOWN, NEW = 0.5, 5.0  # surprisal of a token that was there before, and of one that was not


@dataclass(frozen=True, slots=True, eq=False)
class Looking:
    """What a token sees when it looks back: everything live, in time order."""

    labels: npt.NDArray[np.int64]  # (n,)
    ids: Ids  # (n,)
    kinds: Kinds  # (n,): 0 chunk, 1 frame, 2 system
    text: str  # of it all


def look(at: Looking) -> Floats:
    """By default: mostly at the very first token, and at earlier occurrences of what was said last."""
    weights = np.ones(len(at.ids), dtype=np.float32)
    recent = set(at.ids[-4:].tolist())
    weights[[id in recent for id in at.ids.tolist()]] += 20.0
    weights[0] += weights.sum()
    return weights


def answer(prompt: str) -> str:
    """By default the engine repeats what it was asked."""
    said = prompt.rsplit(f"<|turn|>{Role.USER}\n", 1)[-1].split("<|end|>", 1)[0]
    return f"You said: {said.strip()}"


@dataclass(slots=True, eq=False)
class Kept:
    """One window's cache."""

    live: Held
    columns: npt.NDArray[np.int32]
    cells: Cells
    clean: int
    asleep: list[Held]


class ScriptedEngine:
    """Implements `ports.Engine`. `replies` are said one after the other, then `answer` is asked."""

    def __init__(
        self,
        replies: Iterable[str] = (),
        *,
        answer: Callable[[str], str] = answer,
        look: Callable[[Looking], Floats] = look,
        pause: Callable[[], None] = lambda: None,
        context: int = 8192,
        kv: Literal["splice", "exact"] = "splice",
        asleep_tokens: int = 1 << 16,
    ) -> None:
        """`pause` is called before each token; it may block or raise."""
        self.replies = list(replies)
        self.answer, self.look, self.pause = answer, look, pause
        self.asleep_tokens = asleep_tokens
        self.windows: dict[str, Kept] = {}
        self.lock = threading.RLock()
        self.closed = False
        self._info = ModelInfo(
            name="scripted",
            architecture="none",
            layers=LAYERS,
            heads=HEADS,
            kv_heads=HEADS,
            vocabulary=VOCABULARY,
            trained_context=context,
            context=context,
            special={"bos": CONTROL_IDS, "eos": END},
            tokenizer="scripted",
            template="model",
            kv=kv,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        if not special:
            return spelled(text)
        tokens, at = Tokens.of([], []), 0
        for match in CONTROL.finditer(text):
            control = Tokens.of([CONTROL_IDS + CONTROLS.index(match.group())], [match.group().encode()])
            tokens = tokens + spelled(text[at : match.start()]) + control
            at = match.end()
        return tokens + spelled(text[at:])

    def pieces(self, ids: Ids) -> Tokens:
        return Tokens.of(ids, [piece(id) for id in ids.tolist()])

    def frame(self, role: Role, *, first: bool) -> tuple[Tokens, Tokens]:
        header = ("<|begin|>" if first else "") + f"<|turn|>{role}\n"
        return self.tokenize(header, special=True), self.tokenize("<|end|>\n", special=True)

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        began = time.perf_counter()
        check(sampling)
        written = write(prompt, VOCABULARY)
        if len(written) >= self.info.context:
            raise BadInput(f"The prompt has {len(written)} tokens, and fewer than {self.info.context} fit.")
        with self.lock:
            if self.closed:
                raise EngineError("The engine is closed.")
            kept = self.windows.setdefault(window, empty(self.info.context))
            read = self._read(kept, written, prompt, sampling, capture, mode)
        yield Planned(read.reused, read.restored, read.computed)
        yield replace(read, seconds=time.perf_counter() - began)
        yield from self._reply(kept, written, prompt.next_label, sampling, capture, stopped, began)

    def forget(self, window: str) -> None:
        with self.lock:
            self.windows.pop(window, None)

    def close(self) -> None:
        with self.lock:
            self.windows.clear()
            self.closed = True

    def _read(
        self,
        kept: Kept,
        written: Written,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        mode: Literal["splice", "exact"],
    ) -> Read:
        mode = "exact" if self.info.kv == "exact" else mode
        reading = capture is not None and (capture.reading or capture.reading_surprisal)
        start = len(written)
        if reading and prompt.read_from is not None:
            found = np.flatnonzero(written.labels == prompt.read_from)
            if not len(found):
                raise BadInput(f"The prompt has no token {prompt.read_from} to read from.")
            start = int(found[0])
        plan = choose(
            kept.live,
            kept.asleep if mode == "splice" else (),
            written.labels,
            written.ids,
            limit=self.info.trained_context,
            reserve=sampling.max_new_tokens,
            anew_from=start,
            mode=mode,
            clean=kept.clean,
        )
        if mode == "splice" and len(plan.removed):
            kept.asleep.append(kept.live.part(plan.removed))
            while sum(map(len, kept.asleep)) > self.asleep_tokens:
                del kept.asleep[0]
        kept.cells.give_back(kept.columns[plan.removed])
        present = np.ones(len(written), dtype=np.bool_)
        for step in plan.steps:
            present[step.start : step.stop] = False
        columns = np.zeros(len(written), dtype=np.int32)
        columns[present] = kept.columns[plan.kept]
        for step in plan.steps:
            columns[step.start : step.stop] = kept.cells.take(step.stop - step.start)
        only_tail = len(plan.steps) == 1 and not isinstance(plan.steps[0], Restore)
        kept.clean = len(written) if only_tail and plan.reused <= kept.clean else 0
        kept.live = Held(written.labels, written.ids, plan.places)
        kept.columns = columns
        kept.asleep = [held for held in kept.asleep if not np.isin(held.labels, written.labels).all()]
        said = [i for i in range(start, len(written)) if written.kinds[i] == CHUNK]
        rows = [self._row(kept, written, i + 1, capture) for i in said] if capture and capture.reading else []
        surprisal = None
        if capture and capture.reading_surprisal:
            surprisal = np.array(
                [surprise(written.ids[:i], int(written.ids[i])) for i in said], dtype=np.float32
            )
        return Read(
            reused=plan.reused,
            restored=plan.restored,
            computed=plan.computed,
            shifted=plan.compacted,
            rebuilt="",
            seconds=0.0,
            rows=tuple(row for row in rows if row is not None),
            surprisal=surprisal,
        )

    def _row(self, kept: Kept, written: Written, count: int, capture: Capture | None) -> AttentionRow | None:
        """One row over cells, then over tokens, as the real engine gets it."""
        text = self.pieces(written.ids[:count]).text
        weights = self.look(Looking(written.labels[:count], written.ids[:count], written.kinds[:count], text))
        row = np.zeros(len(kept.cells), dtype=np.float32)
        row[kept.columns[:count]] = weights / weights.sum(dtype=np.float64)
        raw = None
        if capture and capture.raw:
            layers, heads = len(capture.layers or range(LAYERS)), len(capture.heads or range(HEADS))
            raw = np.broadcast_to(row, (layers, heads, len(row)))
        return attention_row(row, kept.columns[:count], written.kinds[:count], raw)

    def _reply(
        self,
        kept: Kept,
        written: Written,
        label: int,
        sampling: Sampling,
        capture: Capture | None,
        stopped: Callable[[], bool],
        began: float,
    ) -> Iterator[Event]:
        with self.lock:
            text = self.replies.pop(0) if self.replies else self.answer(self.pieces(written.ids).text)
        ids = self.tokenize(text).ids.tolist()
        stops = Stops(sampling.stop)
        given = 0
        reason: Reason = "eos"
        for made, id in enumerate(ids, start=1):
            self.pause()
            if stopped():
                reason = "abort"
                break
            row = self._row(kept, written, len(written), capture) if capture and capture.reply else None
            step = Step(id, label, piece(id), surprise(written.ids, id), row)
            out, met = stops.feed(step)
            given += len(out)
            yield from out
            if met:
                reason = "stop"
            elif made == sampling.max_new_tokens:
                reason = "length"
            elif len(written) + 1 > self.info.context or not kept.cells.free:
                reason = "context"
            else:
                written = self._append(kept, written, label, id)
                label += 1
                continue
            break
        else:
            self.pause()
        rest = stops.rest()
        yield from rest
        yield Done(reason, given + len(rest), time.perf_counter() - began)

    def _append(self, kept: Kept, written: Written, label: int, id: int) -> Written:
        written = Written(
            np.append(written.labels, np.int64(label)),
            np.append(written.ids, np.int32(id)),
            np.append(written.kinds, np.uint8(CHUNK)),
        )
        place = np.int32(kept.live.places[-1] + 1)
        with self.lock:
            if kept.clean == len(kept.live):
                kept.clean += 1
            kept.live = Held(written.labels, written.ids, np.append(kept.live.places, place))
            kept.columns = np.append(kept.columns, kept.cells.take(1))
        return written


def empty(context: int) -> Kept:
    none = Held(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    return Kept(none, np.empty(0, np.int32), Cells(context + 256), 0, [])


def surprise(before: Ids, id: int) -> float:
    return KNOWN if bool(np.any(before == id)) else NEW


def spelled(text: str) -> Tokens:
    """Words in pieces of at most three bytes; a character may lie across two of them."""
    pieces = []
    for match in WORD.finditer(text):
        raw = match.group().encode()
        pieces += [raw[at : at + 3] for at in range(0, len(raw), 3)]
    return Tokens.of([int.from_bytes(raw, "little") | len(raw) << 24 for raw in pieces], pieces)


def piece(id: int) -> bytes:
    """A token's id tells its bytes, so that every engine of this kind reads the ids of every other."""
    if CONTROL_IDS <= id < CONTROL_IDS + len(CONTROLS):
        return CONTROLS[id - CONTROL_IDS].encode()
    size = id >> 24
    if not 1 <= size <= 3 or id < 0:
        raise BadInput(f"{id} is not a token of the scripted engine.")
    return (id & 0xFFFFFF).to_bytes(3, "little")[:size]
