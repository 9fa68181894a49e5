"""Where cells come from before anything is computed: the window's own files, the beginning of another window, what others have read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import NAMELESS
from halo_weave.engines.flat_prompt import FlatPrompt
from halo_weave.engines.llama.cache_files import CacheFiles, SavedCells, token_keys, window_key
from halo_weave.engines.llama.cache_plan import LEAST_BORROWED
from halo_weave.engines.llama.kv_cache import KvCache
from halo_weave.errors import EngineError


def restore_from_disk(
    disk: CacheFiles, window: str, cache: KvCache, prompt: FlatPrompt, *, asleep: bool
) -> None:
    """All that was live comes back if the cache is new, and what the prompt wakes if that is wanted."""
    if cache.rebuild_reason:
        return
    if cache.new:
        cache.new = False
        _restore_live(disk, window, cache, prompt)
    if asleep:
        here = [
            token_keys(held.labels, held.ids) for held in (cache.live, *(g.tokens for g in cache.evicted))
        ]
        wanted = np.setdiff1d(token_keys(prompt.labels, prompt.ids), np.concatenate(here))
        found = disk.asleep(window, wanted) if len(wanted) else []
        cache.evicted += [
            evicted_cells for evicted_cells in found if prompt.is_consistent_with(evicted_cells.tokens)
        ]


def _restore_live(disk: CacheFiles, window: str, cache: KvCache, prompt: FlatPrompt) -> None:
    saved = disk.live(window)
    if saved is None or sum(len(part.tokens) for part in saved.parts) > len(cache.cells):
        return
    try:
        cache.take_in(saved)
        if not prompt.is_consistent_with(
            cache.live
        ):  # other words at these positions: only what begins alike is the same
            cache.labels[: cache.count] = np.arange(NAMELESS, NAMELESS - cache.count, -1)
    except EngineError:  # of no use to this library
        cache.reset()


def copy_shared_prefix(cache: KvCache, others: Iterable[KvCache], prompt: FlatPrompt) -> None:
    """A cache with nothing in it takes what another window begins with, as the system prompt, instead of reading it.

    Windows have contexts of their own, between which llama.cpp cannot share cells: they are copied. Whole batches only, so
    that a reply does not depend on which other windows there are.
    """
    if cache.count or cache.rebuild_reason or not cache.settled:
        return
    known = [(_shared_prefix_length(other, prompt.ids[:-1]), other) for other in others if other is not cache]
    count, other = max(known, key=lambda one: one[0], default=(0, cache))
    count = min(count, len(cache.cells)) // cache.shape.batch * cache.shape.batch
    if count:
        with contextlib.suppress(EngineError):
            cache.take_in(other.saved(count))
            cache.lendable[: cache.count] = False  # it was not said here


def _shared_prefix_length(cache: KvCache, ids: Ids) -> int:
    """How many of the first live tokens are these, as reading them anew would make them."""
    most = 0 if cache.rebuild_reason or not cache.settled or cache.erased else min(cache.clean, len(ids))
    return int(np.argmin(np.append(cache.ids[:most] == ids[:most], False)))


def save_evicted(disk: CacheFiles | None, window: str, cache: KvCache) -> None:
    """What fell asleep in a turn goes to disk behind it."""
    for evicted_cells in cache.fresh:
        if disk:
            disk.keep(window, evicted_cells)
    cache.fresh.clear()


def save_window(disk: CacheFiles | None, window: str, cache: KvCache) -> None:
    """The window gives way; what was live in it goes to disk."""
    if disk and cache.settled and not cache.rebuild_reason:
        cache.drop_erased()
    if disk and cache.count and cache.settled and not cache.rebuild_reason:
        with contextlib.suppress(EngineError):
            disk.save_live(window, cache.saved())


def borrow(
    window: str,
    cache: KvCache,
    others: Mapping[str, KvCache],
    disk: CacheFiles | None,
    prompt: FlatPrompt,
    stop: int,
) -> None:
    """What other windows have read of the prompt's first `stop` tokens, and this one has not: copied from them, or from disk.

    Only windows of the memory borrow, from others of the same owner: there the labels are the same text, and whoever made the
    prompt has checked that it may be read here.
    """
    if prompt.owner is None:
        return
    wanted = (prompt.labels >= 0) & (np.arange(len(prompt)) < stop)
    for held in (cache.live, *(saved.tokens for saved in cache.evicted)):
        wanted &= ~np.isin(prompt.labels, held.labels)
    for name, other in others.items():
        if wanted.sum() < LEAST_BORROWED:
            return
        if other is not cache:
            with contextlib.suppress(EngineError):  # nothing is lost but time
                _take(cache, other.lent(window_key(name), prompt, wanted), wanted, prompt)
    if disk and wanted.sum() >= LEAST_BORROWED:
        _take(cache, disk.lent_to(window, prompt, wanted), wanted, prompt)


def _take(cache: KvCache, lent: list[SavedCells], wanted: npt.NDArray[np.bool_], prompt: FlatPrompt) -> None:
    for cells in lent:
        cache.evicted.append(cells)
        wanted &= ~np.isin(prompt.labels, cells.tokens.labels)
