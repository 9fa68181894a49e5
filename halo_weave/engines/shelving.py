"""What a window's cache takes from disk, and what it leaves there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.engines.cache import Cache
from halo_weave.engines.disk import CellFiles, names_of
from halo_weave.engines.prompts import FlatPrompt
from halo_weave.errors import EngineError
from halo_weave.ports import NAMELESS


def fetch(disk: CellFiles, window: str, cache: Cache, prompt: FlatPrompt, *, asleep: bool) -> None:
    """All that was live comes back if the cache is new, and what the prompt wakes if that is wanted."""
    if cache.doubt:
        return
    if cache.new:
        cache.new = False
        _take_live(disk, window, cache, prompt)
    if asleep:
        here = [names_of(held.labels, held.ids) for held in (cache.live, *(g.tokens for g in cache.graves))]
        wanted = np.setdiff1d(names_of(prompt.labels, prompt.ids), np.concatenate(here))
        found = disk.asleep(window, wanted) if len(wanted) else []
        cache.graves += [grave for grave in found if prompt.agrees(grave.tokens)]


def _take_live(disk: CellFiles, window: str, cache: Cache, prompt: FlatPrompt) -> None:
    saved = disk.live(window)
    if saved is None or sum(len(part.tokens) for part in saved.parts) > len(cache.cells):
        return
    try:
        cache.take_in(saved)
        if not prompt.agrees(
            cache.live
        ):  # other words at these positions: only what begins alike is the same
            cache.labels[: cache.count] = np.arange(NAMELESS, NAMELESS - cache.count, -1)
    except EngineError:  # of no use to this library
        cache.reset()


def begin_alike(cache: Cache, others: Iterable[Cache], prompt: FlatPrompt) -> None:
    """A cache with nothing in it takes what another window begins with, as the system prompt, instead of reading it.

    Windows have contexts of their own, between which llama.cpp cannot share cells: they are copied. Whole batches only, so
    that a reply does not depend on which other windows there are.
    """
    if cache.count or cache.doubt or not cache.settled:
        return
    known = [(_alike(other, prompt.ids[:-1]), other) for other in others if other is not cache]
    count, other = max(known, key=lambda one: one[0], default=(0, cache))
    count = min(count, len(cache.cells)) // cache.shape.batch * cache.shape.batch
    if count:
        with contextlib.suppress(EngineError):
            cache.take_in(other.saved(count))


def _alike(cache: Cache, ids: Ids) -> int:
    """How many of the first live tokens are these, as reading them anew would make them."""
    most = 0 if cache.doubt or not cache.settled or cache.erased else min(cache.clean, len(ids))
    return int(np.argmin(np.append(cache.ids[:most] == ids[:most], False)))


def keep_fresh(disk: CellFiles | None, window: str, cache: Cache) -> None:
    """What fell asleep in a turn goes to disk behind it."""
    for grave in cache.fresh:
        if disk:
            disk.keep(window, grave)
    cache.fresh.clear()


def put_aside(disk: CellFiles | None, window: str, cache: Cache) -> None:
    """The window gives way; what was live in it goes to disk."""
    if disk and cache.settled and not cache.doubt:
        cache.drop_erased()
    if disk and cache.count and cache.settled and not cache.doubt:
        with contextlib.suppress(EngineError):
            disk.keep_live(window, cache.saved())
