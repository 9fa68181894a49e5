"""Export and import: lossless, streamed, the same twice, and safe with files of any kind."""

import io
import json
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.window import Live
from halo_weave.errors import ImportRefused, StoreBusy
from halo_weave.records import Subset
from halo_weave.stores import importfile, jsonstream
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.sqlite import SqliteStore, importing
from tests.stores.material import (
    NOW,
    TOKENIZER,
    answer,
    ask,
    assistant,
    embed_all,
    exchange,
    exported,
    live_keys,
    sleep,
    unit_vectors,
    user,
    wake,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def memory(tmp_path):
    opened = []

    def open_one(name: str) -> SqliteStore:
        opened.append(SqliteStore(tmp_path / f"{name}.sqlite"))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def rich(memory) -> SqliteStore:
    """A memory with something of everything."""
    store = memory("rich")
    first = store.create_window(
        "first", now=NOW, system_prompt="Be <kind>.", user_name="Ada", settings={"seed": 1}
    ).id
    second = store.create_window("zweites 🌙", now=NOW + timedelta(1), ai_name="Bob").id
    for number in range(6):
        exchange(
            store,
            first,
            f"question {number}",
            f"answer {number}",
            " goes on",
            now=NOW + timedelta(days=number),
        )
    ids = ask(store, second, "whole", " in", " parts", tags=lambda key: ["tool"])
    half = Tokens.of([7, 70_000], [b"\xf0\x9f", b"\x8c\x99 moon \xff"])
    chunk = Chunk(assistant(ids.assistant_turn), ids.start + 100, half, ids.user_turn)
    store.append(second, [Live(chunk, np.array([np.pi, -1e-20], np.float32))], tokenizer="other", now=NOW)
    embed_all(store)
    answer(store, second, store.reserve(300) and ask(store, second, "late"), "reply")
    sleep(store, first, user(1), assistant(2, 1), why="dimmest", rivals=3)
    wake(store, first, user(1), part="hit", similarity=0.25)
    wake(store, second, assistant(4), part="anchor")
    store.pin(first, user(3), now=NOW)
    store.merge(first, assistant(6, 1), now=NOW)
    store.merge(second, user(ids.user_turn, 1), now=NOW)
    store.delete(store.deletion_of(user(7)), now=NOW)
    store.delete([user(9)], now=NOW)
    store.undelete([user(9)], now=NOW)
    letters = Tokens.of(range(10), [bytes([letter]) for letter in b"question 4"])
    reading = Live(Chunk(user(9), store.chunk(user(9)).chunk.start, letters, span=2), np.ones(10, np.float32))
    store.reread(first, [reading], tokenizer="letters", now=NOW)
    store.save_entry(
        "A/B", {"goal": [1, None, "é"]}, now=NOW, snapshot=[{"text": "x"}], vectors=unit_vectors(1), model="m"
    )
    store.save_entry("A/B", "second", now=NOW + timedelta(1))
    store.save_entry("Gone", 1, now=NOW)
    store.delete_entry("Gone", now=NOW)
    store.save_note("notes.json", {"topics": {}}, now=NOW)
    store.change_settings("windows", {"top_p": 0.5}, now=NOW)
    assert store.verify() == []
    return store


def load(store: SqliteStore, tmp_path, text: str, name: str = "in.json"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return store.import_file(tmp_path / name, now=NOW)


def content(text: str) -> dict:
    """An export without what names the memory it came from."""
    found = json.loads(text)
    for name in ("id", "created", "exported"):
        found["memory"].pop(name)
    for turn in found["turns"]:
        turn.pop("origin", None)
    return found


def test_a_round_trip_loses_nothing(rich, memory, tmp_path):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    result = load(copy, tmp_path, text)
    assert result.kept_ids
    assert result.turns == rich.stats().turns
    assert copy.verify() == []
    assert content(exported(copy, vectors=True)) == content(text)
    for window in rich.windows():
        ours, theirs = rich.live(window.id), copy.live(window.id)
        assert [item.brightness.tobytes() for item in ours] == [item.brightness.tobytes() for item in theirs]
        assert [item.chunk.tokens for item in ours] == [item.chunk.tokens for item in theirs]
        assert rich.window(window.id) == copy.window(window.id)
    assert copy.search_terms(["question"], 50)[0][0].size
    assert copy.reserve(1).user_turn == rich.reserve(1).user_turn


def test_importing_twice_changes_nothing(rich, memory, tmp_path):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    load(copy, tmp_path, text)
    before, sequence = exported(copy, vectors=True), copy.sequence()
    again = load(copy, tmp_path, text)
    assert (again.turns, again.chunks, again.windows, again.entries) == (0, 0, 0, 0)
    assert again.known_turns == rich.stats().turns
    assert exported(copy, vectors=True) == before
    assert copy.sequence() == sequence


def test_importing_into_the_memory_it_came_from_changes_nothing(rich, tmp_path):
    text = exported(rich)
    assert load(rich, tmp_path, text).turns == 0
    assert exported(rich) == text


def test_an_import_never_undoes_what_was_done_here_since(rich, memory, tmp_path):
    text = exported(rich)
    copy = memory("copy")
    load(copy, tmp_path, text)
    window = copy.windows()[0].id
    sleep(copy, window, user(3))
    copy.delete([user(5)], now=NOW)
    copy.change_window(window, now=NOW, name="renamed")
    copy.save_note("notes.json", "mine", now=NOW)
    before = exported(copy)
    load(copy, tmp_path, text)
    assert exported(copy) == before


def test_a_memory_with_other_content_gives_new_ids_once(rich, memory, tmp_path):
    other = memory("other")
    exchange(other, other.create_window("mine", now=NOW).id, "my own words", "indeed")
    result = load(other, tmp_path, exported(rich, vectors=True))
    assert not result.kept_ids
    assert other.verify() == []
    assert other.chunk(user(1)).chunk.text == "my own words"
    shift = 2
    assert other.chunk(user(1 + shift)).chunk.text == "question 0"
    assert other.chunk(assistant(2 + shift)).chunk.answers == 1 + shift
    for window in rich.windows():
        assert [key.turn_id - shift for key in live_keys(other, window.id)] == [
            key.turn_id for key in live_keys(rich, window.id)
        ]
    assert load(other, tmp_path, exported(rich)).turns == 0


def test_two_copies_that_went_on_apart_can_be_joined(memory, tmp_path):
    """Both used the same ids for different words; each is kept, once, in both directions."""
    one = memory("one")
    window = one.create_window("w", now=NOW).id
    exchange(one, window, "common", "ground")
    one.backup(tmp_path / "two.sqlite")
    two = memory("two")
    exchange(one, window, "said in one", "yes", now=NOW + timedelta(1))
    exchange(two, window, "said in two", "no", now=NOW + timedelta(2))
    for _ in range(2):
        load(one, tmp_path, exported(two))
        load(two, tmp_path, exported(one))
    for store in (one, two):
        assert store.verify() == []
        assert store.stats().turns == 6
        texts = sorted(record.chunk.text for record in store.chunks(range(20)))
        assert texts == ["common", "ground", "no", "said in one", "said in two", "yes"]


def test_what_was_cleared_comes_back_under_its_own_ids(rich, tmp_path):
    text = exported(rich)
    rich.clear(confirm=True)
    result = load(rich, tmp_path, text)
    assert result.kept_ids
    assert content(exported(rich)) == content(text)


def test_copies_that_went_on_apart_are_joined_after_a_clear(rich, memory, tmp_path):
    rich.backup(tmp_path / "twin.sqlite")
    twin = memory("twin")
    for store, said, day in ((rich, "said here", 8), (twin, "said there", 9)):
        exchange(store, store.windows()[0].id, said, "yes", now=NOW + timedelta(day))
    here, there = exported(rich), exported(twin)
    rich.clear(confirm=True)
    assert load(rich, tmp_path, here).kept_ids
    assert load(rich, tmp_path, there).turns == 2
    assert rich.verify() == []
    live = [item.chunk.text for item in rich.live(rich.windows()[0].id)]
    assert [text for text in live if text.startswith("said")] == ["said here", "said there"]


def test_an_interrupted_import_goes_on(rich, memory, tmp_path, monkeypatch):
    monkeypatch.setattr(importfile, "BATCH", 2)
    text = exported(rich)
    copy = memory("copy")

    def stop(done: int, total: int) -> None:
        if done > total * 0.7:
            raise KeyboardInterrupt

    (tmp_path / "in.json").write_text(text)
    with pytest.raises(KeyboardInterrupt):
        copy.import_file(tmp_path / "in.json", now=NOW, progress=stop)
    assert 0 < copy.stats().turns < rich.stats().turns
    assert copy.verify() == []
    load(copy, tmp_path, text)
    assert content(exported(copy)) == content(text)


# The keys inside what is imported


def kept(key: str | None, text: str) -> dict:
    return {"key": key, "text": text, "tokens": 2, "similarity": 0.5, "said": None}


@pytest.fixture
def told(memory) -> SqliteStore:
    """A memory whose reasons and snapshots name turns: 3 and 4, woken by turn 3; an entry explained by 1 and 3."""
    store = memory("told")
    window = store.create_window("w", now=NOW).id
    for number in range(3):
        exchange(store, window, f"question {number}", f"answer {number}", now=NOW + timedelta(number))
    sleep(store, window, user(3), assistant(4), why="dimmest")
    wake(store, window, user(3), part="hit", hit="3.0.user")
    wake(store, window, assistant(4), part="answer", hit="3.0.user")
    store.save_entry("Agatha", "viola", now=NOW, snapshot=[kept("1.0.user", "question 0")])
    snapshot = [kept("3.0.user", "question 1"), {"own": "Agatha violin"}]
    vectors = unit_vectors(2)
    store.save_entry("Agatha", "violin", now=NOW, snapshot=snapshot, vectors=vectors, model="m")
    return store


@pytest.fixture
def other(memory) -> SqliteStore:
    """A memory that has two turns of its own, so that what is imported moves by two."""
    store = memory("other")
    exchange(store, store.create_window("mine", now=NOW).id, "my own words", "indeed")
    return store


def hits(store: SqliteStore, key) -> list[str | None]:
    """What is told of the wakings of a chunk."""
    return [event.detail.get("hit") for event in store.history(key=key) if event.event == "woke"]


def test_a_snapshot_and_its_versions_name_the_same_words_under_new_ids(told, other, tmp_path):
    assert not load(other, tmp_path, exported(told)).kept_ids
    entry, [old] = other.entry("Agatha"), other.entry_versions("Agatha")
    assert entry.snapshot == (kept("5.0.user", "question 1"), {"own": "Agatha violin"})
    assert entry.vectors.tobytes() == unit_vectors(2).tobytes()
    assert old.snapshot == (kept("3.0.user", "question 0"),)
    assert other.chunk(user(5)).chunk.text == "question 1"
    assert other.chunk(user(3)).chunk.text == "question 0"


def test_why_a_chunk_woke_names_the_same_hit_under_new_ids(told, other, tmp_path):
    load(other, tmp_path, exported(told))
    live = {one.key: one.woken for one in other.live(told.windows()[0].id)}
    assert live[user(5)] == {"part": "hit", "hit": "5.0.user"}
    assert live[assistant(6)] == {"part": "answer", "hit": "5.0.user"}
    assert hits(other, user(5)) == hits(other, assistant(6)) == ["5.0.user"]


def test_what_was_deleted_while_awake_is_undeleted_with_its_hit_under_new_ids(told, other, tmp_path):
    told.delete([assistant(4)], now=NOW)
    load(other, tmp_path, exported(told))
    other.undelete([assistant(6)], now=NOW)
    live = {one.key: one.woken for one in other.live(told.windows()[0].id)}
    assert live[assistant(6)] == {"part": "answer", "hit": "5.0.user"}


def test_keys_follow_when_a_memory_that_was_joined_is_cleared_and_imported_again(told, other, tmp_path):
    load(other, tmp_path, exported(told))
    text = exported(other)
    other.clear(confirm=True)
    assert not load(other, tmp_path, text).kept_ids
    key = ChunkKey.parse(other.entry("Agatha").snapshot[0]["key"])
    assert other.chunk(key).chunk.text == "question 1"
    assert hits(other, key) == [str(key)]


def test_importing_under_new_ids_twice_changes_nothing(told, other, tmp_path):
    load(other, tmp_path, exported(told))
    before = exported(other)
    load(other, tmp_path, exported(told))
    assert exported(other) == before


def test_a_key_of_a_turn_that_is_not_in_the_file_names_nobody(told, other, tmp_path):
    found = json.loads(exported(told))
    found["turns"] = [turn for turn in found["turns"] if turn["turn"] not in {"1", "2", "3"}]
    found["turns"][0]["answers"] = None
    load(other, tmp_path, json.dumps(found))
    entry, [old] = other.entry("Agatha"), other.entry_versions("Agatha")
    assert entry.snapshot == (kept(None, "question 1"), {"own": "Agatha violin"})
    assert entry.vectors.tobytes() == unit_vectors(2).tobytes()
    assert old.snapshot == (kept(None, "question 0"),)
    assert other.chunk(assistant(4)).chunk.text == "answer 1"
    live = {one.key: one.woken for one in other.live(told.windows()[0].id)}
    assert live[assistant(4)] == {"part": "answer"}
    assert hits(other, assistant(4)) == [None]


def test_an_entry_without_the_keys_of_its_chunks_goes_on_to_a_third_memory(told, other, memory, tmp_path):
    found = json.loads(exported(told))
    found["turns"], found["live"], found["asleep"], found["history"] = [], [], [], []
    load(other, tmp_path, json.dumps(found))
    third = memory("third")
    load(third, tmp_path, exported(other))
    assert third.entry("Agatha").snapshot == (kept(None, "question 1"), {"own": "Agatha violin"})


def test_a_part_without_the_hit_tells_no_event_twice(told, other, tmp_path):
    """First the part, then the whole; and the part into the memory that it came from."""
    second = told.create_window("second", now=NOW).id
    wake(told, second, user(5), part="hit", hit="3.0.user")
    before, part = exported(told), exported(told, subset=Subset(window=second))
    load(told, tmp_path, part)
    assert exported(told) == before
    for text in (part, before, part):
        load(other, tmp_path, text)
    [here] = [one.chunk.key for one in other.chunks(range(20)) if one.chunk.text == "question 2"]
    assert hits(other, here) == [None]
    assert other.verify() == []


@pytest.mark.parametrize("hit", [None, 5, [], "the third", f"{2**70}.0.user", f"{'9' * 5000}.0.user"])
def test_a_hit_that_is_no_key_is_left_out(told, other, tmp_path, hit):
    found = json.loads(exported(told))
    for event in found["history"]:
        event["detail"]["hit"] = hit
    load(other, tmp_path, json.dumps(found))
    assert hits(other, user(5)) == [None]


# Two at once


def in_the_middle(step):
    """A progress that takes this step once, when a part of the file was brought."""
    taken = []

    def progress(done: int, total: int) -> None:
        if done > total * 0.6 and not taken:
            taken.append(True)
            step()

    return progress


@pytest.fixture
def two_files(rich, memory, tmp_path, monkeypatch):
    """Exports of two copies of one memory that went on apart, and a store for both."""
    monkeypatch.setattr(importfile, "BATCH", 2)
    rich.backup(tmp_path / "twin.sqlite")
    twin = memory("twin")
    files = []
    for store, said, day in ((rich, "said here", 8), (twin, "said there", 9)):
        ids = exchange(store, store.windows()[0].id, said, "yes", now=NOW + timedelta(day))
        sleep(store, store.windows()[0].id, user(ids.user_turn), why=said)
        files.append(tmp_path / f"{said}.json")
        files[-1].write_text(exported(store))
    return memory("both"), *files


def assert_unmixed(store):
    assert store.verify() == []
    assert store.stats().turns == 20
    asleep = {one.record.chunk.text: one.reason for one in store.graveyard(store.windows()[0].id).items}
    assert [asleep[said] for said in ("said here", "said there")] == [
        {"why": "said here"},
        {"why": "said there"},
    ]


def test_a_second_import_waits_for_the_first(two_files):
    store, first, second = two_files
    result = []
    thread = threading.Thread(target=lambda: result.append(store.import_file(second, now=NOW)))

    def begin_another() -> None:
        thread.start()
        thread.join(0.3)
        store.reserve(1)  # all else goes on

    store.import_file(first, now=NOW, progress=in_the_middle(begin_another))
    thread.join()
    assert (result[0].turns, result[0].known_turns) == (2, 16)
    assert_unmixed(store)


IMPORT = """
import sys
from pathlib import Path
from halo_weave.stores.sqlite import SqliteStore
from tests.stores.material import NOW
with SqliteStore(Path(sys.argv[1])) as store:
    print("ready", flush=True)
    print(store.import_file(Path(sys.argv[2]), now=NOW).turns)
"""


def test_an_import_waits_for_that_of_another_process(two_files):
    store, first, second = two_files
    others = []

    def begin_another() -> None:
        command = [sys.executable, "-c", IMPORT, str(store.path), str(second)]
        others.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert others[0].stdout.readline() == "ready\n"
        with suppress(subprocess.TimeoutExpired):
            others[0].wait(0.5)

    store.import_file(first, now=NOW, progress=in_the_middle(begin_another))
    assert others[0].communicate(timeout=60)[0] == "2\n"
    assert_unmixed(store)


def test_while_an_import_goes_on_for_long_others_are_asked_to_wait(two_files, monkeypatch):
    store, first, second = two_files
    monkeypatch.setattr(importing, "PATIENCE", 0.1)

    def try_others() -> None:
        for other in (lambda: store.import_file(second, now=NOW), lambda: store.clear(confirm=True)):
            with pytest.raises(StoreBusy, match=r"Another import .* Nothing was changed; try again when"):
                other()

    store.import_file(first, now=NOW, progress=in_the_middle(try_others))
    store.import_file(second, now=NOW)
    assert_unmixed(store)
    store.clear(confirm=True)


def test_an_import_that_breaks_off_says_what_stays_and_goes_on(two_files):
    _, first, second = two_files
    with SqliteStore(first.with_name("held.sqlite"), busy_seconds=0.05) as store:
        other = sqlite3.connect(store.path, isolation_level=None)
        hold = in_the_middle(lambda: other.execute("BEGIN IMMEDIATE"))
        with closing(other), pytest.raises(StoreBusy, match=r"broke off: .* so far stays") as raised:
            store.import_file(first, now=NOW, progress=hold)
        assert "Nothing was changed" not in str(raised.value)
        assert 0 < store.stats().turns < 20
        for file in (first, second):
            store.import_file(file, now=NOW)
        assert_unmixed(store)


@pytest.mark.parametrize("form", [
    lambda found: json.dumps(found, indent=4),
    lambda found: json.dumps(found, sort_keys=True),
    lambda found: json.dumps(found, separators=(",", ":"), ensure_ascii=True),
    lambda found: "\ufeff" + json.dumps(dict(reversed(found.items())), indent="\t"),
], ids=["indented", "sorted", "compact", "backwards with a mark"])  # fmt: skip
def test_any_layout_of_the_json_is_read(rich, memory, tmp_path, form):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    load(copy, tmp_path, form(json.loads(text)))
    assert content(exported(copy, vectors=True)) == content(text)


def test_an_export_is_json_with_one_element_a_line_and_ids_as_text(rich):
    text = exported(rich)
    found = json.loads(text)
    assert found["format"] == "halo-weave memory"
    assert all(
        isinstance(turn["turn"], str) and isinstance(turn["chunks"][0]["start"], str)
        for turn in found["turns"]
    )
    lines = [json.loads(line.rstrip(",")) for line in text.splitlines() if line.startswith('{"turn"')]
    assert lines == found["turns"]


def test_a_part_can_be_exported_and_pairs_stay_whole(rich, memory, tmp_path):
    def turns(**subset):
        return [int(turn["turn"]) for turn in json.loads(exported(rich, subset=Subset(**subset)))["turns"]]

    first, second = (window.id for window in rich.windows())
    assert turns(first_turn=4, last_turn=5) == [3, 4, 5, 6]
    assert turns(since=NOW + timedelta(days=4), until=NOW + timedelta(days=4)) == [9, 10]
    assert turns(window=first) == list(range(1, 13))
    assert turns(window=second) == [3, 4, *range(13, 15), 17, 18]  # 4 woke up there, and brings its question
    copy = memory("copy")
    load(copy, tmp_path, exported(rich, subset=Subset(window=second)))
    assert copy.verify() == []
    assert live_keys(copy, second) == live_keys(rich, second)
    assert copy.notes() == []
    load(copy, tmp_path, exported(rich))
    assert copy.stats().turns == rich.stats().turns
    assert copy.verify() == []


def test_vectors_of_another_embedder_are_left_out_and_made_again(rich, memory, tmp_path):
    other = memory("other")
    generation = other.begin_generation("another", 9, now=NOW)
    load(other, tmp_path, exported(rich, vectors=True))
    assert [item.model for item in other.generations()] == ["another"]
    present = sum(not record.gone for record in other.chunks(range(100)))
    assert len(other.wanted(generation.id, 100).numbers) == present


def test_a_memory_larger_than_the_room_for_it_passes(memory, tmp_path, monkeypatch):
    """Neither side holds more of a long memory than of a short one."""
    monkeypatch.setattr(importfile, "BATCH_CHARACTERS", 1 << 16)

    def peak_of(turns: int) -> int:
        store, copy = memory(f"from {turns}"), memory(f"to {turns}")
        window = store.create_window("w", now=NOW).id
        for number in range(turns):
            ids = store.reserve(1001)
            tokens = Tokens.of(np.arange(900) + number, [f" word{number}".encode()] * 900)
            live = Live(Chunk(user(ids.user_turn), ids.start, tokens), np.ones(900, np.float32))
            store.append(window, [live], tokenizer=TOKENIZER, now=NOW)
        file = tmp_path / f"{turns}.json"
        tracemalloc.start()
        with file.open("w") as out:
            store.export(out.write, now=NOW)
        copy.import_file(file, now=NOW)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert copy.stats().tokens == turns * 900
        return peak

    peak_of(1)  # what is loaded once
    assert peak_of(80) < 1.5 * peak_of(20)


# Bad files


@pytest.fixture
def copy(memory):
    return memory("copy")


@pytest.mark.parametrize("text", [
    "", "   ", "[]", "null", "7", '"text"', "{", '{"format"', '{"format": "halo-weave memory"}', "not json",
    '{"a": 1} more', '{"tokens": [{"token_id": 1}', "{1: 2}", '{"a" 1}', '{"a": [1,, 2]}', '{"a": NaN}',
    '{"a": ' + "[" * 100_000, "\x00", '{"format": "halo-weave memory", "version": 1, "memory": []}',
    '{"format": "halo-weave memory", "version": 1, "memory": {"id": "x", "next_turn": "-1", "next_position": "0"}}',
])  # fmt: skip
def test_what_is_no_export_is_refused(copy, tmp_path, text):
    with pytest.raises(ImportRefused):
        load(copy, tmp_path, text)
    assert copy.stats().turns == 0


def test_bytes_that_are_no_text_are_refused(copy, tmp_path):
    (tmp_path / "in.json").write_bytes(b'{"format": "\xff\xfe')
    with pytest.raises(ImportRefused, match="UTF-8"):
        copy.import_file(tmp_path / "in.json", now=NOW)
    with pytest.raises(ImportRefused, match="folder"):
        copy.import_file(tmp_path, now=NOW)
    with pytest.raises(ImportRefused, match="cannot be read"):
        copy.import_file(tmp_path / "nowhere.json", now=NOW)


def test_a_newer_version_of_the_format_is_refused(rich, copy, tmp_path):
    with pytest.raises(ImportRefused, match="version 2"):
        load(copy, tmp_path, exported(rich).replace('"version": 1', '"version": 2', 1))


def change(path: list, value):
    def apply(found: dict) -> None:
        for step in path[:-1]:
            found = found[step]
        if value is ...:
            del found[path[-1]]
        else:
            found[path[-1]] = value

    return apply


def another_window(window_id: str):
    return lambda found: found["windows"].append({**found["windows"][0], "id": window_id})


DEEP = json.loads("[" * 200 + "]" * 200)
KEPT = {"key": "1.0.user", "text": "x", "tokens": 2, "similarity": 0.5, "said": None}


@pytest.mark.parametrize("damage", [
    change(["turns", 0, "turn"], "x"),
    change(["turns", 0, "turn"], True),
    change(["turns", 0, "turn"], "99999999999999999999"),
    change(["turns", 1, "turn"], "1"),
    change(["turns", 0, "role"], "robot"),
    change(["turns", 0, "said"], "yesterday"),
    change(["turns", 0, "said"], "2026-01-01T00:00:00"),
    change(["turns", 0, "said"], "0001-01-01T00:00:00+14:00"),
    change(["turns", 0, "said"], "9999-12-31T23:59:59+00:00"),
    change(["memory", "next_turn"], str(2**63 - 1)),
    change(["memory", "next_position"], str(2**63 - 1)),
    change(["turns", 0, "chunks"], []),
    change(["turns", 0, "window"], "nowhere"),
    change(["turns", 0, "speaker"], "\ud83d"),
    change(["turns", 1, "answers"], "2"),
    change(["turns", 0, "chunks", 0, "ends"], [3, 2]),
    change(["turns", 0, "chunks", 0, "ids"], ["a", "b"]),
    change(["turns", 0, "chunks", 0, "ids"], [1]),
    change(["turns", 0, "chunks", 0, "ids"], [2**40, 1]),
    change(["turns", 0, "chunks", 0, "text"], "another text"),
    change(["turns", 0, "chunks", 0, "text"], ...),
    change(["turns", 0, "chunks", 0, "start"], "9999999"),
    change(["turns", 1, "chunks", 1, "start"], "0"),
    change(["turns", 1, "chunks", 0, "merged_into"], 0),
    change(["turns", 2, "chunks", 0, "bytes"], "%%%"),
    change(["turns", 0], "not an object"),
    change(["windows", 0, "settings"], []),
    change(["windows", 0, "created"], ...),
    another_window("a b/../c"),
    another_window(""),
    another_window("line\n"),
    change(["windows", 0, "settings"], {"later": DEEP}),
    change(["windows", 0, "settings"], {"later": "\ud83d"}),
    change(["live", 0, "brightness"], "AAAA"),
    change(["live", 0, "brightness"], "AADAfw=="),
    change(["live", 0, "pinned"], 1),
    change(["asleep", 0, "reason"], None),
    change(["history", 0, "happened"], 7),
    change(["entries", 0, "versions", 0, "vectors"], "AAAAAAAA"),
    change(["entries", 0, "versions", 0, "vectors"], "AADAfw=="),
    change(["entries", 0, "path"], "/".join("a" * 2000)),
    change(["entries", 0, "path"], ""),
    change(["entries", 0, "path"], "A/B/"),
    change(["entries", 0, "path"], "A/../B"),
    change(["entries", 0, "versions"], []),
    change(["entries", 0, "versions", 1, "version"], 1),
    change(["entries", 0, "versions", 0, "version"], 3),
    change(["entries", 0, "versions", 0, "version"], 2**63 - 1),
    change(["entries", 0, "versions", 0, "ended"], None),
    change(["entries", 0, "versions", 0, "content"], DEEP),
    change(["entries", 0, "versions", 1, "snapshot"], {}),
    change(["entries", 0, "versions", 1, "snapshot"], [5]),
    change(["entries", 0, "versions", 1, "snapshot"], [{"text": 5}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{"key": "zzz"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "key": f"{'9' * 5000}.0.user"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "text": None}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "tokens": "2"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "similarity": "near"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "said": 7}]),
    change(["notes", 0, "name"], 7),
    change(["notes", 0, "content"], [1]),
    change(["notes", 0, "content"], {"topics": DEEP}),
    change(["notes", 0, "content"], {"_metadata": [1]}),
    change(["settings", 0, "value"], ...),
    change(["settings", 0], {"key": "windows", "value": 5, "modified": "2026-01-31T12:00:00+00:00"}),
    change(["vectors", 0, "vector"], "AADAfw=="),
    change(["generations", 0, "dimension"], 0),
    change(["surprises"], [1]),
])  # fmt: skip
def test_a_file_with_a_fault_anywhere_is_refused_as_a_whole(rich, copy, tmp_path, damage):
    found = json.loads(exported(rich, vectors=True))
    for section in ("asleep", "live"):  # the first ones belong to chunks of two tokens
        assert found[section]
    damage(found)
    empty = content(exported(copy))
    with pytest.raises(ImportRefused, match=r"Nothing was changed|not imported"):
        load(copy, tmp_path, json.dumps(found))
    assert content(exported(copy)) == empty


@pytest.mark.parametrize(
    "kept", [[KEPT], [{**KEPT, "said": "2026-01-31T12:00:00+00:00"}, {"own": "A B"}], [{"later": 1}]]
)
def test_a_sound_snapshot_passes(rich, copy, tmp_path, kept):
    found = json.loads(exported(rich))
    found["entries"][0]["versions"][1]["snapshot"] = kept
    load(copy, tmp_path, json.dumps(found))
    assert list(copy.entry("A/B").snapshot) == kept


def test_settings_of_a_newer_version_pass(rich, copy, tmp_path):
    found = json.loads(exported(rich))
    newer = {"top_k": 7, "a_later_one": {"any": ["thing"]}, "temperature": 99}
    found["windows"][0]["settings"] = newer
    found["settings"][0]["value"] = newer
    load(copy, tmp_path, json.dumps(found))
    assert copy.window(found["windows"][0]["id"]).settings == newer
    assert copy.settings()["windows"] == newer


def test_a_file_that_breaks_off_is_refused_as_a_whole(rich, copy, tmp_path):
    text = exported(rich)
    for part in (0.3, 0.6, 0.999):
        with pytest.raises(ImportRefused):
            load(copy, tmp_path, text[: int(len(text) * part)])
    assert copy.stats().turns == 0


# The reader

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    found=st.dictionaries(st.text(), values, max_size=6),
    step=st.integers(1, 7),
    indent=st.sampled_from([None, 0, 3]),
)
def test_json_is_read_the_same_in_pieces_of_any_size(found, step, indent):
    jsonstream_step, jsonstream.STEP = jsonstream.STEP, step
    try:
        got: dict = {}
        for key, value in JsonReader(io.StringIO(json.dumps(found, indent=indent))):
            if isinstance(found[key], list):
                got.setdefault(key, []).append(value)
            else:
                got[key] = value
    finally:
        jsonstream.STEP = jsonstream_step
    assert got == {key: value for key, value in found.items() if value != []}


def test_the_roles_of_an_export_are_the_roles_of_the_core(rich):
    assert {turn["role"] for turn in json.loads(exported(rich))["turns"]} <= set(Role)
