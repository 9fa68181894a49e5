"""What every store does beside the conversation: the AI's own memory, figures, upkeep."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, UnknownWindow
from halo_weave.store.records import ExportFilter
from tests.store.material import (
    NOW,
    answer,
    ask,
    assistant,
    cut,
    draft,
    embed_all,
    exchange,
    exported,
    holding,
    live_keys,
    quick_folder,
    sleep,
    unit_vectors,
    user,
    wake,
)

# The AI's own memory


def test_entries_have_versions(store, again):
    vectors = unit_vectors(2)
    snapshot = [{"key": "1.0.user", "text": "why"}, {"key": "2.0.assistant", "text": "because"}]
    store.save_entry("A/Goals/One", {"goal": 1}, now=NOW, snapshot=snapshot, vectors=vectors, model="m")
    later = NOW + timedelta(days=1)
    store.save_entry("A/Goals/One", "done", now=later)
    entry = again().entry("A/Goals/One")
    assert (entry.content, entry.version, entry.created, entry.modified) == ("done", 2, NOW, later)
    (old,) = store.entry_versions("A/Goals/One")
    assert (old.content, old.version, old.ended) == ({"goal": 1}, 1, later)
    assert list(old.snapshot) == snapshot
    assert np.array_equal(old.vectors, vectors)


def test_entries_are_listed_and_deleted_by_path(store):
    for path in ("A", "A/B", "A/B/C", "A/D", "AB", "Z"):
        store.save_entry(path, path, now=NOW)
    assert [entry.path for entry in store.entries("A")] == ["A/B", "A/B/C", "A/D"]
    assert len(store.entries()) == 6
    assert store.delete_entry("A/B", now=NOW) == 1
    assert store.delete_entry("A", now=NOW, recursive=True) == 3
    assert [entry.path for entry in store.entries()] == ["AB", "Z"]
    assert store.delete_entry("A", now=NOW) == 0
    assert store.save_entry("A", "again", now=NOW).version == 2


def test_reading_an_entry_can_count_as_access(store):
    store.save_entry("A", 1, now=NOW)
    later = NOW + timedelta(1)
    assert store.entry("A").accessed == NOW
    assert store.entry("A", now=later).accessed == later
    assert store.entry("B") is None


@pytest.mark.parametrize("path", ["", "A/"])
def test_a_path_without_a_heading_is_refused(store, path):
    with pytest.raises(BadInput):
        store.save_entry(path, 1, now=NOW)


def test_notes_are_json_by_name(store, again):
    store.save_note("notes.json", {"topics": {"cat": ["é", None, 1.5]}}, now=NOW)
    note = again().note("notes.json")
    assert note.content == {"topics": {"cat": ["é", None, 1.5]}}
    later = NOW + timedelta(1)
    store.save_note("notes.json", [], now=later, unless_modified_since=NOW)
    with pytest.raises(BadInput, match="changed meanwhile"):
        store.save_note("notes.json", {}, now=later, unless_modified_since=NOW)
    assert (store.note("notes.json").created, store.note("notes.json").modified) == (NOW, later)
    assert [one.name for one in store.notes()] == ["notes.json"]
    assert store.note("other.json") is None


@pytest.mark.parametrize("content", [float("nan"), object(), "\ud800", {1, 2}])
def test_what_json_cannot_hold_is_refused(store, content):
    with pytest.raises(BadInput):
        store.save_note("n", content, now=NOW)
    assert store.notes() == []


def test_settings_for_all_windows(store, again):
    store.change_settings("windows", {"top_p": 0.9, "seed": 1}, now=NOW)
    store.change_settings(
        "windows", {"user_weight": 2, "max_context_tokens": None}, ["seed", "top_k"], now=NOW
    )
    assert again().settings() == {"windows": {"top_p": 0.9, "user_weight": 2, "max_context_tokens": None}}


def test_changes_of_different_settings_at_the_same_time_are_all_kept(store, window, again):
    def change(name: str, store) -> None:
        for i in range(20):
            store.change_settings("windows", {name: i}, now=NOW)
            store.change_window(window, now=NOW, settings={name: i})

    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(change, "abcd", [store, store, again(), again()]))
    assert store.settings()["windows"] == store.window(window).settings == dict.fromkeys("abcd", 19)


# Upkeep


def test_figures(store, window):
    ids = exchange(store, window, "one two three", "four")
    exchange(store, window, "five", "six")
    store.delete([user(ids.user_turn)], now=NOW)
    stats = store.stats()
    assert (stats.turns, stats.chunks, stats.tokens, stats.deleted_chunks, stats.windows) == (4, 4, 6, 1, 1)
    assert (stats.next_turn, stats.next_position) == (5, 400)
    figures = store.window_stats(window)
    assert (figures.live_chunks, figures.live_tokens, figures.pruned_chunks) == (3, 3, 0)


def test_clearing_needs_a_word_and_ids_start_over(store, window):
    exchange(store, window, "one", "two")
    store.save_note("n", 1, now=NOW)
    with pytest.raises(BadInput, match="cannot be undone"):
        store.clear()
    assert store.stats().turns == 2
    store.clear(confirm=True)
    stats = store.stats()
    assert (stats.turns, stats.tokens, stats.windows, stats.notes) == (0, 0, 0, 0)
    assert holding(store, "one") == set()
    assert store.reserve(1).user_turn == 1
    assert store.verify() == []


def test_a_sound_memory_verifies(store, window):
    ids = ask(store, window, "one", " two")
    answer(store, window, ids, "three", " four")
    embed_all(store)
    sleep(store, window, user(1), why="x")
    store.merge(window, assistant(2, 1), now=NOW)
    store.delete([user(1, 1)], now=NOW)
    draft(store, window, store.reserve(300), cut("a draft"))
    assert store.verify() == []


def test_what_is_exported_can_be_imported(store, window, elsewhere, tmp_path):
    exchange(store, window, "one", "two")
    file = tmp_path / "export.json"
    file.write_text(exported(store))
    assert elsewhere.import_file(file, now=NOW).turns == 2
    assert [item.chunk.text for item in elsewhere.live(window)] == ["one", "two"]


def test_the_version_is_another_one_after_any_commit(store, window, again):
    other, seen = again(), []
    for step in (
        lambda: ask(store, window, "one"),
        lambda: store.change_window(window, now=NOW, name="renamed"),
        lambda: ask(other, window, "by another process"),
    ):
        seen.append(store.version())
        assert store.version() == seen[-1]
        step()
    assert len({*seen, store.version()}) == 4


def test_an_unknown_window_cannot_be_exported(store):
    with pytest.raises(UnknownWindow):
        exported(store, subset=ExportFilter(window="nowhere"))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_steps_leaves_a_sound_memory(kind, data):
    """Live, asleep and deleted make up everything said in the window, and a restart changes nothing."""
    with quick_folder() as folder:
        any_steps(kind, folder, data)


def any_steps(kind, folder: Path, data: st.DataObject) -> None:
    with kind.open(folder) as store:
        store.begin_generation("m", 4, now=NOW)
        window = store.create_window("w", now=NOW).id
        said: set[ChunkKey] = set()
        merged: set[ChunkKey] = set()
        deleted: set[ChunkKey] = set()
        for _ in range(data.draw(st.integers(1, 15))):
            step = data.draw(
                st.sampled_from(["say", "say", "prune", "wake", "merge", "delete", "undelete", "pin"])
            )
            live = live_keys(store, window)
            asleep = [item.key for item in store.graveyard(window, limit=1000).items]
            if step == "say":
                ids = ask(store, window, "a b", " c")
                said |= {item.chunk.key for item in answer(store, window, ids, "d e", " f", " g")}
                said |= {user(ids.user_turn), user(ids.user_turn, 1)}
            elif step == "prune" and live:
                sleep(store, window, data.draw(st.sampled_from(live)))
            elif step == "wake" and asleep:
                wake(store, window, data.draw(st.sampled_from(asleep)))
            elif step == "pin" and live:
                store.pin(window, data.draw(st.sampled_from(live)), now=NOW)
            elif step == "merge" and live:
                key = data.draw(st.sampled_from(live))
                try:
                    store.merge(window, key, now=NOW)
                except BadInput:
                    continue
                merged.add(key)
            elif step == "delete" and live + asleep:
                keys = store.deletion_of(data.draw(st.sampled_from(live + asleep)))
                store.delete(keys, now=NOW)
                deleted |= set(keys)
            elif step == "undelete" and deleted:
                key = data.draw(st.sampled_from(sorted(deleted)))
                store.undelete([key], now=NOW)
                deleted.discard(key)
        assert store.verify() == []
        live, asleep = (
            live_keys(store, window),
            [item.key for item in store.graveyard(window, limit=1000).items],
        )
        assert set(live).isdisjoint(asleep)
        assert set(live) | set(asleep) | deleted | merged == said
        before = [
            (item.key, item.chunk.tokens, item.brightness.tobytes(), item.pinned)
            for item in store.live(window)
        ]
    with kind.open(folder) as store:
        after = [
            (item.key, item.chunk.tokens, item.brightness.tobytes(), item.pinned)
            for item in store.live(window)
        ]
        assert after == before
