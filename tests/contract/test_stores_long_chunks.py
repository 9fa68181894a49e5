"""Chunks of earlier versions that are too long to wake up are divided, each part at its place."""

import numpy as np

from halo_weave.store.records import ChunkMove
from tests.store.material import NOW, ask, exchange, holding, user


def long_text(words: int) -> str:
    return " ".join(f"word{i}" for i in range(words)) + " lighthouse"


def test_a_long_chunk_that_sleeps_is_divided_at_its_places(store, window):
    text = long_text(700)
    ids = ask(store, window, text, room=5000)
    key = user(ids.user_turn)
    before = store.chunk(key)
    traces = np.arange(2 * len(before.chunk), dtype=np.float32).reshape(2, -1)
    lit = store.live(window)[0].brightness
    store.prune(window, [ChunkMove(key, lit, {"why": "budget"}, traces)], now=NOW)
    bright = store.resurrectable_chunks(window, [key])[key].brightness
    assert store.split_long_chunks(256, now=NOW) == 1
    parts = store.chunks_between(before.chunk.start, before.chunk.stop)
    assert len(parts) >= 2
    assert "".join(part.chunk.text for part in parts) == text
    assert all(len(part.chunk) <= 256 for part in parts)
    assert [part.chunk.start for part in parts[1:]] == [part.chunk.stop for part in parts[:-1]]
    assert parts[0].key == key
    held = store.resurrectable_chunks(window, [part.key for part in parts])
    asleep = [held[part.key].brightness for part in parts]
    assert np.array_equal(np.concatenate(asleep), bright)
    assert np.array_equal(np.hstack([held[part.key].traces for part in parts]), traces)
    assert holding(store, "lighthouse") == {parts[-1].number}
    assert store.split_long_chunks(256, now=NOW) == 0


def test_what_is_live_or_short_stays_whole(store, window):
    ids = ask(store, window, long_text(700), room=5000)
    exchange(store, window, "short", "also short")
    assert store.split_long_chunks(256, now=NOW) == 0
    assert store.chunk(user(ids.user_turn)).chunk.text == long_text(700)
