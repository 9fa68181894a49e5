"""All of memory embedded anew, by another embedder or another method: resumable, while the old vectors serve."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from halo_weave.index.embedding import embed_some, vectors_by
from halo_weave.ports import Embedder
from halo_weave.records import Generation
from halo_weave.store import Store

AT_ONCE = 256  # chunks: enough to be a backlog for the embedder, few enough that an interruption loses little


def reindex(
    store: Store,
    embedder: Embedder,
    *,
    now: Callable[[], datetime],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Generation:
    """Build the generation of this embedder and method, or what it lacks; then it serves, and older vectors are removed."""
    generation = store.begin_generation(vectors_by(embedder), embedder.dimension, now=now())
    done, total = 0, generation.wanted
    progress(done, total)
    while embedded := embed_some(store, embedder, generation.id, AT_ONCE):
        done += embedded
        progress(done, max(done, total))
    store.complete_generation(generation.id, now=now())
    store.sweep_vectors()
    return next(one for one in store.generations() if one.id == generation.id)
