"""Plans the least work that brings a prompt into the KV cache: which tokens to keep, move, restore or compute. Does not call llama.cpp."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import ANONYMOUS_LABELS
from halo_weave.errors import BadInput

Places = npt.NDArray[np.int32]  # positions of tokens within a llama_context (`llama_pos`)
MIN_BORROWED_TOKENS = 8  # shortest run of tokens that is copied from another window


@dataclass(frozen=True, slots=True, eq=False)
class CachedTokens:
    """Tokens whose keys and values exist, live or saved, in time order."""

    labels: Positions  # (n,), unique
    ids: Ids  # (n,)
    places: Places  # (n,), strictly increasing
    borrowed: bool = False  # copied from another window: their places do not apply to this one

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The label and id of each token."""
        return zip(self.labels.tolist(), self.ids.tolist(), strict=True)

    def part(self, index: npt.NDArray[np.intp] | slice) -> CachedTokens:
        return CachedTokens(self.labels[index], self.ids[index], self.places[index], self.borrowed)


@dataclass(frozen=True, slots=True)
class Move:
    """Shift the live tokens at places `start` to `stop` by `by` places to the right (to the left if negative)."""

    start: int
    stop: int
    by: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore tokens `start` to `stop` of the prompt from the saved tokens `saved[run]`, from index `at` on."""

    start: int
    stop: int
    run: int
    at: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run tokens `start` to `stop` of the prompt through the model, which attends to all tokens before them."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class CachePlan:
    """Remove, then move, then restore and compute in time order. The last step computes the prompt's last token."""

    kept: npt.NDArray[np.intp]  # indices of the live tokens that stay, in time order
    removed: npt.NDArray[np.intp]  # indices of the live tokens to remove
    moves: tuple[Move, ...]
    steps: tuple[Restore | Compute, ...]
    places: Places  # (prompt,), the place of each token
    compacted: bool  # gaps between places are closed, since places would exceed the limit
    reused: int
    restored: int
    computed: int


def contiguous_runs(values: npt.NDArray[np.integer], step: int = 1) -> Iterator[tuple[int, int]]:
    """Start and stop of each run in which neighbouring values differ by `step`."""
    if len(values):
        breaks = np.flatnonzero(np.diff(values) != step) + 1
        edges = [0, *breaks.tolist(), len(values)]
        yield from itertools.pairwise(edges)


def split_runs(labels: Positions, size: int) -> Iterator[slice]:
    """Split tokens into parts of about `size` tokens. Cuts are within chunks, so a frame stays with a part of its chunk."""
    inside = np.flatnonzero((labels[1:] >= 0) & (labels[:-1] >= 0)) + 1
    start = 0
    while len(labels) - start > size:
        later = inside[inside > start]
        fits = later[later <= start + size]
        if not len(later):
            break
        end = int(fits[-1] if len(fits) else later[0])
        yield slice(start, end)
        start = end
    yield slice(start, len(labels))


def plan_cache(
    live: CachedTokens,
    saved: Sequence[CachedTokens],
    labels: Positions,
    ids: Ids,
    *,
    limit: int,
    reserve: int,
    compute_from: int,
    mode: Literal["splice", "exact"] = "splice",
    exact_prefix: int = 0,
) -> CachePlan:
    """The least work from the `live` and `saved` tokens to the prompt with `labels` and `ids`.

    `limit`: context length the model was trained with. `reserve`: how many tokens will follow the prompt. `compute_from`:
    compute tokens from this index on even if they are cached. `exact_prefix`: number of first live tokens whose cells are
    as a prefill of the whole prompt would make them; the mode `exact` keeps only these, as far as the prompt begins with
    them.
    """
    count = len(labels)
    if not count:
        raise BadInput("The prompt has no tokens.")
    compute_from = min(compute_from, count - 1)
    if mode == "exact":
        same = _common_prefix(live.ids[:exact_prefix], ids[:compute_from])
        source = np.full(count, -1, dtype=np.intp)
        source[:same] = np.arange(same)
        return _build_plan(live, (), source, {}, limit=limit, reserve=reserve)
    source = _match(live, saved, labels, ids, compute_from)
    restored: dict[int, tuple[int, int]] = {}
    if saved:
        # By id, too: system prompts with and without tools have the same labels. Later entries win: cells of this window.
        runs = sorted(enumerate(saved), key=lambda run: not run[1].borrowed)
        where = {token: (run, at) for run, held in runs for at, token in enumerate(held)}
        for i in np.flatnonzero(source[:compute_from] < 0).tolist():
            source_index = where.get((int(labels[i]), int(ids[i])))
            # The first token of a prompt is an attention sink: its cells are valid only at the beginning.
            if i and source_index:
                restored[i] = source_index
        _compute_short_borrowed(saved, labels, restored)
        _restore_adjacent_frames(saved, labels, ids, source, restored, compute_from)
    return _build_plan(live, saved, source, restored, limit=limit, reserve=reserve)


def _common_prefix(a: Ids, b: Ids) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _match(
    live: CachedTokens, saved: Sequence[CachedTokens], labels: Positions, ids: Ids, compute_from: int
) -> npt.NDArray[np.intp]:
    """For each token of the prompt the index of the same live token, or -1. Both stay in time order.

    A common prefix is matched by token ids alone, up to a token that can be identified by its label. Without this limit, the
    frames of two turns of the same day could be confused, and a frame would be computed again.
    """
    source = np.full(len(labels), -1, dtype=np.intp)
    same = _common_prefix(live.ids, ids[:compute_from])
    other = np.flatnonzero(live.labels[:same] != labels[:same])
    if len(other):
        cached = {token for tokens in (live, *saved) for token in tokens if token[0] > ANONYMOUS_LABELS}
        needed = {
            token for token in zip(labels.tolist(), ids.tolist(), strict=True) if token[0] > ANONYMOUS_LABELS
        }
        here = zip(labels[other].tolist(), live.labels[other].tolist(), ids[other].tolist(), strict=True)
        known = [(label, id) in cached or (live_label, id) in needed for label, live_label, id in here]
        same = int(other[known.index(True)]) if any(known) else same
    source[:same] = np.arange(same)
    where = {label: i for i, label in enumerate(live.labels[same:].tolist(), start=same)}
    last = same - 1
    for i, label in enumerate(labels[same:compute_from].tolist(), start=same):
        at = where.get(label, -1)
        if at > last and i and live.ids[at] == ids[i]:
            source[i] = last = at
    if bool((live.labels <= ANONYMOUS_LABELS).any()):
        _keep_adjacent_frames(live, labels, ids, source, compute_from)
    return source


def _keep_adjacent_frames(
    live: CachedTokens, labels: Positions, ids: Ids, source: npt.NDArray[np.intp], compute_from: int
) -> None:
    """Match frame tokens with anonymous labels by their neighbour: they are the same if their ids are."""
    free = (live.labels <= ANONYMOUS_LABELS) & ~np.isin(np.arange(len(live)), source)
    missing = np.flatnonzero((source[:compute_from] < 0) & (labels[:compute_from] < 0)).tolist()
    for step, indices in ((1, missing), (-1, missing[::-1])):
        for i in indices:
            if not 0 < i < compute_from - (step < 0):
                continue
            neighbour = source[i - step] + step
            unknown = source[i] < 0 and labels[i] < 0 and source[i - step] >= 0
            if unknown and 0 <= neighbour < len(live) and free[neighbour] and live.ids[neighbour] == ids[i]:
                source[i], free[neighbour] = neighbour, False


def _compute_short_borrowed(
    saved: Sequence[CachedTokens], labels: Positions, restored: dict[int, tuple[int, int]]
) -> None:
    """Compute short runs instead of copying them from another window: so few tokens may be equal by chance."""
    borrowed = np.array(sorted(i for i, (run, _) in restored.items() if saved[run].borrowed), np.intp)
    follows = (np.diff(borrowed) == 1) & (np.diff(labels[borrowed]) == 1)
    for run in np.split(borrowed, np.flatnonzero(~follows) + 1):
        for i in run.tolist() if len(run) < MIN_BORROWED_TOKENS else ():
            del restored[i]


def _restore_adjacent_frames(
    saved: Sequence[CachedTokens],
    labels: Positions,
    ids: Ids,
    source: npt.NDArray[np.intp],
    restored: dict[int, tuple[int, int]],
    compute_from: int,
) -> None:
    """Restore frame tokens with anonymous labels together with their neighbours in the same saved run."""
    for step in (1, -1):
        for i in sorted(restored, reverse=step < 0):
            (run, at), j = restored[i], i + step
            held = saved[run]
            if held.borrowed:
                continue
            while 0 < j < compute_from and source[j] < 0 and j not in restored and labels[j] < 0:
                at += step
                if not (
                    0 <= at < len(held) and held.labels[at] <= ANONYMOUS_LABELS and held.ids[at] == ids[j]
                ):
                    break
                restored[j] = (run, at)
                j += step


def _build_plan(
    live: CachedTokens,
    saved: Sequence[CachedTokens],
    source: npt.NDArray[np.intp],
    restored: dict[int, tuple[int, int]],
    *,
    limit: int,
    reserve: int,
) -> CachePlan:
    """Assign places and list the steps."""
    count = len(source)
    old = np.full(count, -1, dtype=np.int64)
    kept = source >= 0
    old[kept] = live.places[source[kept]]
    preferred = old.copy()
    for i, (run, at) in restored.items():
        old[i] = saved[run].places[at]
        preferred[i] = -1 if saved[run].borrowed else old[i]
    places = _assign_places(preferred, kept)
    # Shifting costs time, so gaps between places are closed only if places would exceed the limit.
    compacted = int(places[-1]) + 1 + reserve > limit and int(places[-1]) > count - 1
    if compacted:
        places = np.arange(count, dtype=np.int64)
    steps = tuple(_steps(source, restored, old, places))
    return CachePlan(
        kept=source[kept],
        removed=np.setdiff1d(np.arange(len(live)), source[kept]),
        moves=tuple(_moves(preferred[kept], places[kept])),
        steps=steps,
        places=places.astype(np.int32),
        compacted=compacted,
        reused=int(kept.sum()),
        restored=len(restored),
        computed=count - int(kept.sum()) - len(restored),
    )


def _assign_places(preferred: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The preferred places as far as the order of tokens allows it.

    A computed or borrowed token (-1) gets the place after its left neighbour. A restored token gets its old place if that is
    still free between its neighbours.
    """
    next_kept_place = np.full(len(preferred), np.iinfo(np.int64).max)  # the place of the next kept token
    following = np.iinfo(np.int64).max
    for i in range(len(preferred) - 1, -1, -1):
        next_kept_place[i] = following
        if kept[i]:
            following = preferred[i]
    places = np.empty(len(preferred), dtype=np.int64)
    last = -1
    for i, place in enumerate(preferred.tolist()):
        free = place > last and (kept[i] or place < next_kept_place[i])
        last = place if free else last + 1
        places[i] = last
    return places


def _moves(old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> Iterator[Move]:
    """Shifts in an order in which no token lands on another: to the right from the right, to the left from the left."""
    by = new - old
    runs = [Move(int(old[a]), int(old[b - 1]) + 1, int(by[a])) for a, b in contiguous_runs(by, 0) if by[a]]
    yield from (move for move in reversed(runs) if move.by > 0)
    yield from (move for move in runs if move.by < 0)


def _steps(
    source: npt.NDArray[np.intp],
    restored: dict[int, tuple[int, int]],
    old: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> Iterator[Restore | Compute]:
    """Runs of tokens to restore and to compute, in time order."""
    i, count = 0, len(source)
    while i < count:
        start = i
        i += 1
        if source[start] >= 0:
            continue
        if start in restored:
            run, at = restored[start]
            while (
                restored.get(i) == (run, at + i - start) and places[i] - places[start] == old[i] - old[start]
            ):
                i += 1
            yield Restore(start, i, run, at)
        else:
            while i < count and source[i] < 0 and i not in restored:
                i += 1
            yield Compute(start, i)


class CellAllocator:
    """Predicts which cells llama.cpp assigns to new tokens: it takes the first free cells from its head on."""

    def __init__(self, size: int) -> None:
        self.taken = np.zeros(size, dtype=np.bool_)
        self.used = 0  # number of taken cells
        self.head = 0

    def __len__(self) -> int:
        return len(self.taken)

    @property
    def free(self) -> int:
        return len(self.taken) - self.used

    def allocate(self, count: int) -> npt.NDArray[np.int32]:
        """The cells that the next `count` tokens will get."""
        if count == 1 and self.head < len(self) and not self.taken[self.head] and self.head <= self.used + 2:
            cell, self.head = self.head, self.head + 1  # the usual case while a reply is generated
            self.taken[cell] = True
            self.used += 1
            return np.array([cell], np.int32)
        free = np.flatnonzero(~self.taken)
        if len(free) < count:
            raise BadInput(f"{count} more tokens do not fit: {len(free)} of {len(self)} cells are free.")
        head = 0 if self.head > len(self) - len(free) + 2 * count else self.head
        cut = int(np.searchsorted(free, head))
        cells = np.concatenate([free[cut:], free[:cut]])[:count].astype(np.int32)
        self.taken[cells] = True
        self.used += count
        if count:
            self.head = int(cells[-1]) + 1
        return cells

    def release(self, cells: npt.NDArray[np.int32]) -> None:
        self.used -= int(np.count_nonzero(self.taken[cells]))
        self.taken[cells] = False
        if len(cells):
            self.head = min(self.head, int(cells.min()))

    def rewind(self) -> None:
        """A shift resets the head to the first cell."""
        self.head = 0
