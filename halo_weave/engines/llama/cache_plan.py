"""Plans the least work that brings a prompt into the KV cache: which tokens to keep, move, restore or compute. Pure: no llama.cpp here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import NAMELESS
from halo_weave.errors import BadInput

Places = npt.NDArray[np.int32]
LEAST_BORROWED = 8  # tokens in a row


@dataclass(frozen=True, slots=True, eq=False)
class CachedTokens:
    """Tokens whose keys and values exist, in time order: the live ones, or saved ones."""

    labels: Positions  # (n,), unique
    ids: Ids  # (n,)
    places: Places  # (n,), strictly increasing
    elsewhere: bool = False  # computed in another window: their places say nothing about this one

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Label and id of each."""
        return zip(self.labels.tolist(), self.ids.tolist(), strict=True)

    def part(self, index: npt.NDArray[np.intp] | slice) -> CachedTokens:
        return CachedTokens(self.labels[index], self.ids[index], self.places[index], self.elsewhere)


@dataclass(frozen=True, slots=True)
class _Move:
    """Shift the live tokens at places `start` to `stop` by `by` places to the right (to the left if negative)."""

    start: int
    stop: int
    by: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Load tokens `start` to `stop` of the prompt from `saved[run]`, from index `at` on."""

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

    kept: npt.NDArray[np.intp]  # which live tokens stay, in time order
    removed: npt.NDArray[np.intp]  # which live tokens leave
    moves: tuple[_Move, ...]
    steps: tuple[Restore | Compute, ...]
    places: Places  # (prompt,), where each token will be
    compacted: bool  # holes were closed since places ran out
    reused: int
    restored: int
    computed: int


def contiguous_runs(values: npt.NDArray[np.integer], step: int = 1) -> Iterator[tuple[int, int]]:
    """Start and stop of each stretch in which the values count up by `step`."""
    if len(values):
        breaks = np.flatnonzero(np.diff(values) != step) + 1
        edges = [0, *breaks.tolist(), len(values)]
        yield from itertools.pairwise(edges)


def split_runs(labels: Positions, most: int) -> Iterator[slice]:
    """Stretches of about so many tokens at most, cut only inside of what was said: a frame stays with the words next to it."""
    inside = np.flatnonzero((labels[1:] >= 0) & (labels[:-1] >= 0)) + 1
    start = 0
    while len(labels) - start > most:
        later = inside[inside > start]
        fits = later[later <= start + most]
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
    clean: int = 0,
) -> CachePlan:
    """The least work from `live` (and what is `saved`) to the prompt `labels`, `ids`.

    `limit`: places the model was trained for. `reserve`: how many tokens will follow the prompt. `compute_from`: tokens
    from this index on are computed even if they are there. `clean`: how many of the first live tokens are just as
    reading the text anew would make them; `exact` keeps only those, as far as the prompt begins with them.
    """
    count = len(labels)
    if not count:
        raise BadInput("There is nothing to read: the prompt has no tokens.")
    compute_from = min(compute_from, count - 1)
    if mode == "exact":
        same = _common_prefix(live.ids[:clean], ids[:compute_from])
        source = np.full(count, -1, dtype=np.intp)
        source[:same] = np.arange(same)
        return _lay_out(live, (), source, {}, limit=limit, reserve=reserve)
    source = _match(live, saved, labels, ids, compute_from)
    returning: dict[int, tuple[int, int]] = {}
    if saved:
        # By its id, too: system prompts with and without tools have the same labels. Cells of this window come first.
        runs = sorted(enumerate(saved), key=lambda one: not one[1].elsewhere)
        where = {token: (run, at) for run, held in runs for at, token in enumerate(held)}
        for i in np.flatnonzero(source[:compute_from] < 0).tolist():
            found = where.get((int(labels[i]), int(ids[i])))
            # The first token of all gathers attention as no other does: it must be computed as the first.
            if i and found:
                returning[i] = found
        _compute_short_borrowed(saved, labels, returning)
        _restore_adjacent_frames(saved, labels, ids, source, returning, compute_from)
    return _lay_out(live, saved, source, returning, limit=limit, reserve=reserve)


def _common_prefix(a: Ids, b: Ids) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _match(
    live: CachedTokens, saved: Sequence[CachedTokens], labels: Positions, ids: Ids, compute_from: int
) -> npt.NDArray[np.intp]:
    """For each token of the prompt the index of the same live token, or -1. Both stay in time order.

    A common beginning is matched by its text alone, up to a token that is known by its label: the frames of two turns of
    one day begin alike, and one whose tokens are taken for the other's would be read anew.
    """
    source = np.full(len(labels), -1, dtype=np.intp)
    same = _common_prefix(live.ids, ids[:compute_from])
    other = np.flatnonzero(live.labels[:same] != labels[:same])
    if len(other):
        named = {token for held in (live, *saved) for token in held if token[0] > NAMELESS}
        asked = {token for token in zip(labels.tolist(), ids.tolist(), strict=True) if token[0] > NAMELESS}
        here = zip(labels[other].tolist(), live.labels[other].tolist(), ids[other].tolist(), strict=True)
        known = [(label, id) in named or (taken, id) in asked for label, taken, id in here]
        same = int(other[known.index(True)]) if any(known) else same
    source[:same] = np.arange(same)
    where = {label: i for i, label in enumerate(live.labels[same:].tolist(), start=same)}
    last = same - 1
    for i, label in enumerate(labels[same:compute_from].tolist(), start=same):
        at = where.get(label, -1)
        if at > last and i and live.ids[at] == ids[i]:
            source[i] = last = at
    if bool((live.labels <= NAMELESS).any()):
        _keep_adjacent_frames(live, labels, ids, source, compute_from)
    return source


def _keep_adjacent_frames(
    live: CachedTokens, labels: Positions, ids: Ids, source: npt.NDArray[np.intp], compute_from: int
) -> None:
    """A frame without a name is that of the token next to it, if it says the same."""
    free = (live.labels <= NAMELESS) & ~np.isin(np.arange(len(live)), source)
    missing = np.flatnonzero((source[:compute_from] < 0) & (labels[:compute_from] < 0)).tolist()
    for step, indices in ((1, missing), (-1, missing[::-1])):
        for i in indices:
            if not 0 < i < compute_from - (step < 0):
                continue
            beside = source[i - step] + step
            unknown = source[i] < 0 and labels[i] < 0 and source[i - step] >= 0
            if unknown and 0 <= beside < len(live) and free[beside] and live.ids[beside] == ids[i]:
                source[i], free[beside] = beside, False


def _compute_short_borrowed(
    saved: Sequence[CachedTokens], labels: Positions, returning: dict[int, tuple[int, int]]
) -> None:
    """Of what comes from another window short stretches are computed: so few tokens could be the same by chance."""
    borrowed = np.array(sorted(i for i, (run, _) in returning.items() if saved[run].elsewhere), np.intp)
    follows = (np.diff(borrowed) == 1) & (np.diff(labels[borrowed]) == 1)
    for stretch in np.split(borrowed, np.flatnonzero(~follows) + 1):
        for i in stretch.tolist() if len(stretch) < LEAST_BORROWED else ():
            del returning[i]


def _restore_adjacent_frames(
    saved: Sequence[CachedTokens],
    labels: Positions,
    ids: Ids,
    source: npt.NDArray[np.intp],
    returning: dict[int, tuple[int, int]],
    compute_from: int,
) -> None:
    """Likewise for frames that sleep with the tokens next to them."""
    for step in (1, -1):
        for i in sorted(returning, reverse=step < 0):
            (run, at), j = returning[i], i + step
            held = saved[run]
            if held.elsewhere:
                continue
            while 0 < j < compute_from and source[j] < 0 and j not in returning and labels[j] < 0:
                at += step
                if not (0 <= at < len(held) and held.labels[at] <= NAMELESS and held.ids[at] == ids[j]):
                    break
                returning[j] = (run, at)
                j += step


def _lay_out(
    live: CachedTokens,
    saved: Sequence[CachedTokens],
    source: npt.NDArray[np.intp],
    returning: dict[int, tuple[int, int]],
    *,
    limit: int,
    reserve: int,
) -> CachePlan:
    """Give every token its place and put the work in order."""
    count = len(source)
    old = np.full(count, -1, dtype=np.int64)
    stays = source >= 0
    old[stays] = live.places[source[stays]]
    wished = old.copy()
    for i, (run, at) in returning.items():
        old[i] = saved[run].places[at]
        wished[i] = -1 if saved[run].elsewhere else old[i]
    places = _arrange(wished, stays)
    # Closing the holes is worth a shift only when places run out.
    compacted = int(places[-1]) + 1 + reserve > limit and int(places[-1]) > count - 1
    if compacted:
        places = np.arange(count, dtype=np.int64)
    steps = tuple(_work(source, returning, old, places))
    return CachePlan(
        kept=source[stays],
        removed=np.setdiff1d(np.arange(len(live)), source[stays]),
        moves=tuple(_moves(wished[stays], places[stays])),
        steps=steps,
        places=places.astype(np.int32),
        compacted=compacted,
        reused=int(stays.sum()),
        restored=len(returning),
        computed=count - int(stays.sum()) - len(returning),
    )


def _arrange(wished: npt.NDArray[np.int64], stays: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Places as near to the wished ones as order allows. What is computed or borrowed follows its neighbour on the left.

    Asleep tokens return to their old place if it is still free between their neighbours.
    """
    ahead = np.full(len(wished), np.iinfo(np.int64).max)  # the next staying token's place
    following = np.iinfo(np.int64).max
    for i in range(len(wished) - 1, -1, -1):
        ahead[i] = following
        if stays[i]:
            following = wished[i]
    places = np.empty(len(wished), dtype=np.int64)
    last = -1
    for i, wish in enumerate(wished.tolist()):
        free = wish > last and (stays[i] or wish < ahead[i])
        last = wish if free else last + 1
        places[i] = last
    return places


def _moves(old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> Iterator[_Move]:
    """Shifts, ordered so that no token lands on another: those to the right from the right, the others from the left."""
    by = new - old
    stretches = [
        _Move(int(old[a]), int(old[b - 1]) + 1, int(by[a])) for a, b in contiguous_runs(by, 0) if by[a]
    ]
    yield from (move for move in reversed(stretches) if move.by > 0)
    yield from (move for move in stretches if move.by < 0)


def _work(
    source: npt.NDArray[np.intp],
    returning: dict[int, tuple[int, int]],
    old: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> Iterator[Restore | Compute]:
    """Stretches of tokens that return together, and stretches that are computed together, in time order."""
    i, count = 0, len(source)
    while i < count:
        start = i
        i += 1
        if source[start] >= 0:
            continue
        if start in returning:
            run, at = returning[start]
            while (
                returning.get(i) == (run, at + i - start) and places[i] - places[start] == old[i] - old[start]
            ):
                i += 1
            yield Restore(start, i, run, at)
        else:
            while i < count and source[i] < 0 and i not in returning:
                i += 1
            yield Compute(start, i)


class CellAllocator:
    """Which cells are taken, kept in step with how llama.cpp gives them out: first free cell from the head on."""

    def __init__(self, size: int) -> None:
        self.taken = np.zeros(size, dtype=np.bool_)
        self.used = 0  # how many are taken
        self.head = 0

    def __len__(self) -> int:
        return len(self.taken)

    @property
    def free(self) -> int:
        return len(self.taken) - self.used

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """The cells that the next `count` tokens will get."""
        if count == 1 and self.head < len(self) and not self.taken[self.head] and self.head <= self.used + 2:
            cell, self.head = self.head, self.head + 1  # nearly always, while a reply is written
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

    def give_back(self, cells: npt.NDArray[np.int32]) -> None:
        self.used -= int(np.count_nonzero(self.taken[cells]))
        self.taken[cells] = False
        if len(cells):
            self.head = min(self.head, int(cells.min()))

    def rewind(self) -> None:
        """After a shift the search begins at the front again."""
        self.head = 0
