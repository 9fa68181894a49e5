"""Small conversations to fill a store with."""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from halo_weave.core.terms import stems
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.store.records import ChunkMove, Draft

SHARED_MEMORY = Path("/dev/shm")
NOW = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
TOKENIZER = "words"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory if there is such a place, so that a test does not wait for the disk."""
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="halo-weave-", dir=place) as folder:
        yield Path(folder)


def cut(text: str) -> Tokens:
    """One token for each word, a space with the word that follows."""
    pieces = [piece.encode() for piece in re.findall(r" ?[^ ]+", text)]
    return Tokens.of([sum(piece) for piece in pieces], pieces)


def chunks(
    turn: int, role: Role, start: int, texts: Sequence[str], answers: int | None = None
) -> list[LiveChunk]:
    """Chunks of a turn, one for each text, with a brightness of its own for every token."""
    said = []
    for number, text in enumerate(texts):
        tokens = cut(text)
        brightness = np.arange(len(tokens), dtype=np.float32) + np.float32(1000 * turn + 100 * number + 1 / 3)
        said.append(LiveChunk(Chunk(ChunkKey(turn, number, role), start, tokens, answers), brightness))
        start += len(tokens)
    return said


def ask(store, window: str, *texts: str, room: int = 200, now=NOW, tags=None, **more):
    """A user turn; gives the reservation. `tags`: those of a key."""
    ids = store.reserve(room)
    said = chunks(ids.user_turn, Role.USER, ids.start, texts)
    tagged = {one.chunk.key: tags(one.chunk.key) for one in said} if tags else None
    store.append(window, said, tokenizer=TOKENIZER, now=now, tags=tagged, **more)
    return ids


def answer(store, window: str, ids, *texts: str, now=NOW, **more) -> list[LiveChunk]:
    said = chunks(ids.assistant_turn, Role.ASSISTANT, ids.start + 100, texts, ids.user_turn)
    store.append(window, said, tokenizer=TOKENIZER, now=now, **more)
    return said


def exchange(store, window: str, question: str, *answers: str, now=NOW, **more):
    ids = ask(store, window, question, now=now, **more)
    answer(store, window, ids, *answers, now=now, **more)
    return ids


def user(turn: int, number: int = 0) -> ChunkKey:
    return ChunkKey(turn, number, Role.USER)


def assistant(turn: int, number: int = 0) -> ChunkKey:
    return ChunkKey(turn, number, Role.ASSISTANT)


def sleep(store, window: str, *keys: ChunkKey, **reason) -> None:
    bright = {item.key: item.brightness for item in store.live(window)}
    store.prune(window, [ChunkMove(key, bright[key], reason) for key in keys], now=NOW)


def sleeping(store, window: str, key: ChunkKey):
    """The chunk in the window's graveyard, or None."""
    return next((one for one in store.graveyard(window, limit=1_000_000).items if one.key == key), None)


def wake(store, window: str, *keys: ChunkKey, pinned: bool = False, **reason) -> None:
    woken = []
    for key in keys:
        found = store.resurrectable_chunks(window, [key]).get(key)
        brightness = found.brightness if found else None
        if brightness is None:
            brightness = np.full(len(store.chunk(key).chunk), 10_000, np.float32)
        woken.append(ChunkMove(key, brightness, reason, pinned=pinned))
    store.resurrect(window, woken, now=NOW)


def unit_vectors(count: int, dimension: int = 4, seed: int = 1) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def holding(store, *terms: str, window: str | None = None) -> set[int]:
    """Numbers of the chunks that hold any of these terms."""
    return {
        int(number)
        for numbers, _ in store.search_terms(stems(list(terms), "english"), 1000, window=window)
        for number in numbers
    }


def live_keys(store, window: str) -> list[ChunkKey]:
    return [item.key for item in store.live(window)]


def draft(store, window: str, ids, tokens: Tokens, now=NOW) -> None:
    """Save a reply so far."""
    place = ids.assistant_turn, ids.start + 100, ids.user_turn
    store.save_drafts([Draft(window, *place, tokens, TOKENIZER, now, now)])


def embed_all(store, seed: int = 1):
    """A vector for every chunk that wants one; gives the generation and the vectors by number."""
    generation = store.begin_generation("test", 4, now=NOW)
    wanted = store.wanted(generation.id, 1000)
    vectors = unit_vectors(len(wanted.numbers), seed=seed)
    store.add_vectors(generation.id, wanted, vectors)
    return generation, dict(zip(wanted.numbers.tolist(), vectors, strict=True))


def exported(store, **more) -> str:
    out = io.StringIO()
    store.export(out.write, now=NOW, **more)
    return out.getvalue()
