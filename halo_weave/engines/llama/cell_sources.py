"""Fills a KV cache before a prefill: with cells from the window's files, from the prefix of another window, or from other windows' chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import ANONYMOUS_LABELS
from halo_weave.engines.flat_prompt import FlatPrompt
from halo_weave.engines.llama.cache_files import CacheFiles, SavedCells, token_keys, window_key
from halo_weave.engines.llama.cache_plan import MIN_BORROWED_TOKENS
from halo_weave.engines.llama.kv_cache import KvCache
from halo_weave.errors import EngineError


def restore_from_disk(
    disk: CacheFiles, window: str, cache: KvCache, prompt: FlatPrompt, *, evicted: bool
) -> None:
    """Load the window's live tokens from disk if the cache is new. `evicted`: also load cells of resurrected text."""
    if cache.rebuild_reason:
        return
    if cache.disk_unchecked:
        cache.disk_unchecked = False
        _restore_live(disk, window, cache, prompt)
    if evicted:
        present = [
            token_keys(tokens.labels, tokens.ids)
            for tokens in (cache.live, *(cells.tokens for cells in cache.evicted))
        ]
        missing = np.setdiff1d(token_keys(prompt.labels, prompt.ids), np.concatenate(present))
        loaded = disk.load_evicted(window, missing) if len(missing) else []
        cache.evicted += [cells for cells in loaded if prompt.is_consistent_with(cells.tokens)]


def _restore_live(disk: CacheFiles, window: str, cache: KvCache, prompt: FlatPrompt) -> None:
    saved = disk.load_live(window)
    if saved is None or sum(len(part.tokens) for part in saved.parts) > len(cache.cells):
        return
    try:
        cache.load_saved(saved)
        if not prompt.is_consistent_with(cache.live):
            # The positions have other text by now. Without labels, only a common prefix is reused.
            cache.labels[: cache.count] = np.arange(ANONYMOUS_LABELS, ANONYMOUS_LABELS - cache.count, -1)
    except EngineError:  # llama.cpp does not accept the saved state
        cache.reset()


def copy_shared_prefix(cache: KvCache, others: Iterable[KvCache], prompt: FlatPrompt) -> None:
    """Copy a common prefix, such as the system prompt, from another window into an empty cache.

    Each window has its own llama_context, and llama.cpp cannot share cells between contexts. Only whole batches are copied, so
    that a reply does not depend on which other windows exist.
    """
    if cache.count or cache.rebuild_reason or cache.shift_pending:
        return
    prefixes = [
        (_shared_prefix_length(other, prompt.ids[:-1]), other) for other in others if other is not cache
    ]
    count, other = max(prefixes, key=lambda prefix: prefix[0], default=(0, cache))
    count = min(count, len(cache.cells)) // cache.config.batch * cache.config.batch
    if count:
        with contextlib.suppress(EngineError):
            cache.load_saved(other.snapshot(count))
            cache.lendable[: cache.count] = False  # it was not said in this window


def _shared_prefix_length(cache: KvCache, ids: Ids) -> int:
    """The number of first tokens that the cache has in common with `ids`, as a prefill of them would make them."""
    usable = (
        0
        if cache.rebuild_reason or cache.shift_pending or cache.erased
        else min(cache.exact_prefix, len(ids))
    )
    return int(np.argmin(np.append(cache.ids[:usable] == ids[:usable], False)))


def save_evicted(disk: CacheFiles | None, window: str, cache: KvCache) -> None:
    """Write the cells of text that was pruned in this turn to disk."""
    for evicted_cells in cache.newly_evicted:
        if disk and not cache.temporary:
            disk.save_evicted(window, evicted_cells)
    cache.newly_evicted.clear()


def save_window(disk: CacheFiles | None, window: str, cache: KvCache) -> None:
    """Write the live tokens of a window to disk, before its cache is dropped."""
    disk = None if cache.temporary else disk
    if disk and not cache.shift_pending and not cache.rebuild_reason:
        cache.drop_erased()
    if disk and cache.count and not cache.shift_pending and not cache.rebuild_reason:
        with contextlib.suppress(EngineError):
            disk.save_live(window, cache.snapshot())


def borrow(
    window: str,
    cache: KvCache,
    others: Mapping[str, KvCache],
    disk: CacheFiles | None,
    prompt: FlatPrompt,
    stop: int,
) -> None:
    """Copy cells of the prompt's first `stop` tokens that this window lacks from other windows, in memory or on disk.

    Cells are only copied between windows of the same owner: there equal labels mean the same text. The caller has checked
    that the text of the prompt may be read in this window.
    """
    if prompt.owner is None:
        return
    missing = (prompt.labels >= 0) & (np.arange(len(prompt)) < stop)
    for tokens in (cache.live, *(saved.tokens for saved in cache.evicted)):
        missing &= ~np.isin(prompt.labels, tokens.labels)
    for name, other in others.items():
        if missing.sum() < MIN_BORROWED_TOKENS:
            return
        if other is not cache:
            with contextlib.suppress(EngineError):  # the tokens are computed instead
                _add(cache, other.cells_to_lend(window_key(name), prompt, missing), missing, prompt)
    if disk and missing.sum() >= MIN_BORROWED_TOKENS:
        _add(cache, disk.cells_to_lend(window, prompt, missing), missing, prompt)


def _add(cache: KvCache, lent: list[SavedCells], missing: npt.NDArray[np.bool_], prompt: FlatPrompt) -> None:
    for cells in lent:
        cache.evicted.append(cells)
        missing &= ~np.isin(prompt.labels, cells.tokens.labels)
