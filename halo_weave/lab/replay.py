"""Replay a capture with another strategy or budget, and compare strategies on it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from halo_weave.chat.capture import CapturedTurn, StoredCapture, live_chunks_of, parts_of, surprisal_of
from halo_weave.core.attribution import AttributionTracker
from halo_weave.core.brightness import AttentionRow, Offsets
from halo_weave.core.pruning import PruneReason, plan_prune
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import LiveChunk, WorkingSet
from halo_weave.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplayedPrune:
    """A chunk that was pruned in a replay."""

    turn: int  # turn of the capture, from 0 on
    key: ChunkKey
    brightness: float
    age: int  # age in turns of the capture since it was first live
    why: str


@dataclass(slots=True)
class ReplayResult:
    """What a strategy did in a replay."""

    pruned: list[ReplayedPrune] = field(default_factory=list)
    resurrected: list[tuple[int, ChunkKey]] = field(default_factory=list)
    brightness: list[dict[ChunkKey, float]] = field(
        default_factory=list
    )  # of the live chunks after each turn
    texts: dict[ChunkKey, str] = field(default_factory=dict)
    uses: list[dict[ChunkKey, float]] = field(default_factory=list)  # attribution of each reply, if requested
    rows: int = 0
    resurrected_tokens: int = 0  # tokens that a model would compute again, or restore to its KV cache


def replay(
    recording: StoredCapture,
    *,
    strategy: str | None = None,
    budget: int | None = None,
    uses: bool = False,
) -> ReplayResult:
    """Replay the capture with a strategy and a budget, by default those of the capture.

    With the captured strategy and budget the result is exactly what happened. With others, the captured rows are limited to
    chunks that are live in the replay. Chunks that the captured window had pruned got no attention there, and only chunks that
    it resurrected are resurrected.
    """
    run = _Run(strategy, budget, recording.calibration, uses)
    for turn in recording:
        run.turn(turn)
    return run.result


class _Run:
    def __init__(
        self, strategy: str | None, budget: int | None, calibration: Calibration, uses: bool
    ) -> None:
        self.strategy, self.budget, self.calibration, self.uses = strategy, budget, calibration, uses
        self.window: WorkingSet | None = None
        self.pruned_chunks: dict[ChunkKey, LiveChunk] = {}
        self.captured_live: dict[
            ChunkKey, tuple[int, int]
        ] = {}  # chunks that are live in the captured window: start and tokens
        self.columns: _Columns | None = None  # columns of the captured rows, for the replay's tokens
        self.first_turns: dict[ChunkKey, int] = {}
        self.result = ReplayResult()
        self.number = -1

    def turn(self, turn: CapturedTurn) -> None:
        self.number += 1
        rows = turn.rows()
        self.question_turn = next((s["answers"] for s in turn.steps if s["what"] == "begin_reply"), None)
        self.pruned: set[ChunkKey] = set()
        self.tally = AttributionTracker(self.calibration, include_question=True)
        for step in turn.steps:
            self.step(turn, step, rows)
        window = self.window
        assert window is not None
        bright = zip(window.chunks, window.chunk_brightness(), strict=True)
        if self.uses:
            self.result.uses.append({one.key: one.share for one in self.tally.whole().chunks})
        self.result.brightness.append({chunk.key: value for chunk, value in bright})

    def step(self, turn: CapturedTurn, step: Mapping[str, Any], rows: Iterator[AttentionRow]) -> None:
        what = step["what"]
        if what == "begin":
            self.begin(live_chunks_of(turn, step), step)
            return
        window = self.window
        assert window is not None
        match what:
            case "add":
                window.annotation_tokens |= {int(turn_id): count for turn_id, count in step["stamps"].items()}
                self.add(live_chunks_of(turn, step))
            case "remove":
                self.remove([ChunkKey.parse(key) for key in step["keys"]])
            case "begin_reply":
                window.begin_reply(step["turn"], step["start"], step["answers"])
            case "read":
                self.read(turn, step, [self.to_replay(next(rows)) for _ in range(step["rows"])])
            case "row":
                row = self.to_replay(next(rows)) if step["known"] else None
                if self.uses and self.question_turn is not None:
                    self.tally.add_token(row, window.chunks, window.offsets, self.question_turn)
                if window.strategy.capture.reply:
                    window.update(row, score_reply=step["score_reply"])
                self.result.rows += 1
            case "last_row":
                last = self.to_replay(next(rows))
                if self.uses:
                    self.tally.end_reply(last)
            case "say":
                window.append_reply_token(step["id"], bytes.fromhex(step["piece"]), step["surprisal"])
            case "end_reply":
                chunks = window.end_reply(
                    step["min_chunk_tokens"], parts_of(step), max_chunk_tokens=step["max_chunk_tokens"]
                )
                self.note([chunk.key for chunk in chunks], {chunk.key: chunk.text for chunk in chunks})
                self.captured_live |= {chunk.key: (chunk.start, len(chunk)) for chunk in chunks}
                self.columns = None
            case "prune":
                self.prune(step)

    # What happened to the captured window

    def begin(self, live: list[LiveChunk], step: Mapping[str, Any]) -> None:
        """Begin a turn. Changes that the user made between turns are applied, too."""
        chosen = Settings().restored(step["settings"])
        self.same = self.strategy in (None, chosen.strategy)
        own = chosen if self.strategy is None else replace(chosen, strategy=self.strategy)
        strategy = own.brightness_strategy(self.calibration)
        if self.window is None:
            self.window = WorkingSet(strategy=strategy)
        elif self.window.strategy != strategy:
            self.window.use(strategy)
        self.settings = own
        self.window.system_tokens = step["system_tokens"]
        self.window.frame_tokens = {Role(role): count for role, count in step["frame_tokens"].items()}
        self.window.annotation_tokens |= {int(turn): count for turn, count in step["stamps"].items()}
        now = {one.chunk.key: one for one in live}
        self.remove([key for key in self.captured_live if key not in now])
        known = {chunk.key for chunk in self.window.chunks} | self.pruned_chunks.keys()
        self.add([one for key, one in now.items() if key not in known or key not in self.captured_live])
        for key, one in now.items():  # pinned or not
            if key in self.window and (key in self.window.pinned) != one.pinned:
                (was,) = self.window.remove([key])
                self.window.add([replace(was, pinned=one.pinned)])
        self.captured_live = {key: (one.chunk.start, len(one.chunk)) for key, one in now.items()}
        self.columns = None

    def add(self, live: list[LiveChunk]) -> None:
        window = self.window
        assert window is not None
        for one in live:
            key = one.chunk.key
            self.captured_live[key] = one.chunk.start, len(one.chunk)
            if key in window:
                continue
            if key in self.pruned_chunks:
                window.add([replace(self.pruned_chunks.pop(key), pinned=one.pinned)])
                self.result.resurrected_tokens += len(one.chunk)
                self.result.resurrected.append((self.number, key))
            elif key.turn_id == self.question_turn or not self.same:
                window.add([replace(window.new_chunk(one.chunk), pinned=one.pinned)])
            else:
                window.add([one])
            self.note([key], {key: one.chunk.text})
        self.columns = None

    def remove(self, keys: list[ChunkKey]) -> None:
        """Remove chunks that the user pruned or deleted. Pruning for the budget is decided by the replay itself."""
        window = self.window
        assert window is not None
        for key in keys:
            self.captured_live.pop(key, None)
        gone = [key for key in keys if key in window and key not in self.pruned]
        self.pruned_chunks |= {one.chunk.key: one for one in window.remove(gone)}
        self.columns = None

    def read(self, turn: CapturedTurn, step: Mapping[str, Any], rows: list[AttentionRow]) -> None:
        window = self.window
        assert window is not None
        surprisal = surprisal_of(turn, step)
        if surprisal is not None and step["turn"] is not None:
            window.observe_surprisal(step["turn"], surprisal)
        if self.uses:
            before = sum(len(chunk) for chunk in window.chunks if chunk.key.turn_id != step["turn"])
            self.tally.observe_prefill(rows, before)
        if window.strategy.capture.reading:
            window.observe_rows(rows)
        self.result.rows += len(rows)

    def prune(self, step: Mapping[str, Any]) -> None:
        window = self.window
        assert window is not None
        pruned = step["goes"]
        self.pruned |= {ChunkKey.parse(entry["key"]) for entry in pruned}
        if pruned and all(entry["why"] == PruneReason.TURN_OVER for entry in pruned):
            keys = [ChunkKey.parse(entry["key"]) for entry in pruned]
            self._prune_chunks([(key, 0.0, PruneReason.TURN_OVER) for key in keys if key in window])
            return
        plan = plan_prune(
            window,
            step["budget"] if self.budget is None else self.budget,
            goal=step["goal"] if self.budget is None else None,
            current=step["current"],
            kept=[ChunkKey.parse(key) for key in step["kept"]],
            pairs=self.settings.prune_pairs,
        )
        self._prune_chunks([(entry.key, entry.brightness, entry.why) for entry in plan.chunks])

    # Helpers

    def _prune_chunks(self, goes: list[tuple[ChunkKey, float, PruneReason]]) -> None:
        window = self.window
        assert window is not None
        self.pruned_chunks |= {one.chunk.key: one for one in window.remove([key for key, _, _ in goes])}
        for key, bright, why in goes:
            age = self.number - self.first_turns.get(key, self.number)
            self.result.pruned.append(ReplayedPrune(self.number, key, bright, age, str(why)))
        self.columns = None

    def note(self, keys: list[ChunkKey], texts: dict[ChunkKey, str]) -> None:
        for key in keys:
            self.first_turns.setdefault(key, self.number)
        self.result.texts |= texts

    def to_replay(self, row: AttentionRow) -> AttentionRow:
        """A row of the captured window, converted to the tokens that are live in the replay."""
        window = self.window
        assert window is not None
        if self.columns is None:
            self.columns = _Columns.of(self.captured_live, window)
        return self.columns.to_replay(row)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Maps the replay's chunk tokens to columns of the captured rows. The reply's tokens come after them in both."""

    places: Offsets | None  # -1: missing; None: both windows have the same
    captured: int  # tokens of the captured chunks

    @classmethod
    def of(cls, there: Mapping[ChunkKey, tuple[int, int]], window: WorkingSet) -> _Columns:
        ordered = sorted((start, size, key) for key, (start, size) in there.items())
        count = sum(size for _, size, _ in ordered)
        if [key for _, _, key in ordered] == [chunk.key for chunk in window.chunks]:
            return cls(None, count)
        first = dict(
            zip(
                (key for _, _, key in ordered),
                np.cumsum([0, *(s for _, s, _ in ordered)]).tolist(),
                strict=False,
            )
        )
        none = np.zeros(0, np.int64)
        places = [
            np.arange(len(chunk)) + first[chunk.key] if chunk.key in first else np.full(len(chunk), -1)
            for chunk in window.chunks
        ]
        return cls(np.concatenate([none, *places]), count)

    def to_replay(self, row: AttentionRow) -> AttentionRow:
        if self.places is None:
            return row
        seen = row.tokens.size
        if seen >= self.captured:  # for the reply: all chunks and its tokens so far
            places = np.concatenate([self.places, np.arange(self.captured, seen)])
        else:  # for the user's turn, up to one of its tokens
            places = self.places[: len(self.places) - (self.captured - seen)]
        tokens = np.where(places >= 0, row.tokens[places], np.float32(0))
        left = float(tokens.sum()) + row.frames + row.system
        share = np.float32(1 / left) if left > 0 else np.float32(1)
        raw = None if row.raw is None else np.where(places >= 0, row.raw[:, places], np.float32(0))
        return replace(
            row,
            tokens=(tokens * share).astype(np.float32),
            frames=row.frames * float(share),
            system=row.system * float(share),
            aside_peak=row.aside_peak * float(share),
            first=None if row.first is None else row.first * float(share),
            raw=raw,
        )


def compare_strategies(
    recording: StoredCapture, strategies: Sequence[str], budget: int | None
) -> tuple[dict[str, ReplayResult], dict[str, Any]]:
    """Replay with each strategy, and compare the results."""
    results, figures = {}, {}
    for name in strategies:
        started = time.perf_counter()
        result = results[name] = replay(recording, strategy=name, budget=budget)
        seconds = time.perf_counter() - started
        ages = [pruned.age for pruned in result.pruned]
        figures[name] = {
            "turns": len(result.brightness),
            "pruned": len(result.pruned),
            "resurrected": len(result.resurrected),
            "resurrected_tokens": result.resurrected_tokens,
            "live": len(result.brightness[-1]) if result.brightness else 0,
            "median_age": float(np.median(ages)) if ages else None,
            "rows": result.rows,
            "rows_per_second": round(result.rows / seconds) if seconds else None,
        }
    return results, {"strategies": figures, "agreement": _agreement(results)}


def _agreement(results: Mapping[str, ReplayResult]) -> dict[str, float]:
    """For each pair of strategies, the mean over turns of (live in both) / (live in either)."""
    agreement = {}
    for name, other in combinations(results, 2):
        shares = [
            len(a.keys() & b.keys()) / len(a.keys() | b.keys())
            for a, b in zip(results[name].brightness, results[other].brightness, strict=True)
            if a or b
        ]
        agreement[f"{name}, {other}"] = round(float(np.mean(shares)), 4) if shares else 1.0
    return agreement
