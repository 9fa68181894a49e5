"""Replies that an earlier version stored with a time stamp lose it; everything that was derived from their text follows."""

import io

import numpy as np

from tests.store.material import NOW, answer, ask, assistant, exchange, holding, sleep

STAMP = "[2026-11-18 06:44, in First steps] "


def test_a_stored_reply_loses_its_stamp(store, window):
    ids = exchange(store, window, "Hi", f"{STAMP}The ferry leaves at nine.")
    key = assistant(ids.assistant_turn)
    before = {one.key: one for one in store.live(window)}[key]
    assert store.remove_timestamps(now=NOW) == 1
    after = {one.key: one for one in store.live(window)}[key]
    gone = len(before.chunk) - len(after.chunk)
    assert after.chunk.text.strip() == "The ferry leaves at nine."
    assert (after.chunk.start, after.chunk.stop) == (before.chunk.start + gone, before.chunk.stop)
    assert np.array_equal(after.brightness, before.brightness[gone:])
    assert holding(store, "steps") == set()
    assert holding(store, "ferry") == {store.chunk(key).number}
    event = next(one for one in store.history(key=key) if one.event == "cleaned")
    assert event.detail["removed"].startswith("[2026-11-18 06:44")
    assert [one for one in store.verify() if not one.mended] == []
    assert store.remove_timestamps(now=NOW) == 0


def test_a_sleeping_reply_loses_its_stamp_and_returns_without_it(store, window):
    ids = exchange(store, window, "Hi", f"{STAMP}The ferry leaves at nine.")
    key = assistant(ids.assistant_turn)
    sleep(store, window, key)
    store.remove_timestamps(now=NOW)
    held = store.resurrectable_chunks(window, [key])[key]
    assert held.record.chunk.text.strip() == "The ferry leaves at nine."
    assert len(held.brightness) == len(held.record.chunk)


def test_a_reply_that_is_only_a_stamp_is_deleted_and_can_be_undeleted(store, window):
    ids = exchange(store, window, "Hi", "[2026-11-18 06:44]")
    key = assistant(ids.assistant_turn)
    assert store.remove_timestamps(now=NOW) == 1
    assert store.chunk(key).gone
    store.undelete([key], now=NOW)
    assert store.chunk(key).chunk.text == "[2026-11-18 06:44]"


def test_what_the_user_says_stays_as_it_was_said(store, window):
    ids = ask(store, window, f"{STAMP}is what you wrote")
    answer(store, window, ids, "A list: [2026-11-18]")
    assert store.remove_timestamps(now=NOW) == 0
    assert [one.chunk.text for one in store.live(window)] == [
        f"{STAMP}is what you wrote",
        "A list: [2026-11-18]",
    ]


def test_replies_of_an_imported_file_lose_their_stamps_too(store, window):
    exchange(store, window, "Hi", f"{STAMP}The ferry leaves at nine.")
    parts: list[str] = []
    store.export(parts.append, now=NOW)
    store.clear(confirm=True)
    store.remove_timestamps(now=NOW)
    store.import_open_file(io.BytesIO("".join(parts).encode()), now=NOW)
    assert store.remove_timestamps(now=NOW) == 1
