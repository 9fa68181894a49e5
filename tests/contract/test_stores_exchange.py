"""What every store exports it takes in again: nothing is lost, and the same twice changes nothing."""

import json
import tracemalloc
from datetime import timedelta

import numpy as np
import pytest

from halo_weave.core.tokens import Chunk, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.settings import SHARED_KEY, Settings
from halo_weave.store import importing
from halo_weave.store.records import ExportFilter
from tests.store.material import NOW, TOKENIZER, exported, live_keys, sleep, user


def test_a_round_trip_loses_nothing(rich, memory, load, content):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    result = load(copy, text)
    assert result.kept_ids
    assert result.turns == rich.stats().turns
    assert copy.verify() == []
    assert content(exported(copy, vectors=True)) == content(text)
    for window in rich.windows():
        ours, theirs = rich.live(window.id), copy.live(window.id)
        assert [item.brightness.tobytes() for item in ours] == [item.brightness.tobytes() for item in theirs]
        assert [item.chunk.tokens for item in ours] == [item.chunk.tokens for item in theirs]
        traces = [
            [one.traces is not None and one.traces.tobytes() for one in live] for live in (ours, theirs)
        ]
        assert traces[0] == traces[1]
        assert rich.window(window.id) == copy.window(window.id)
    assert any(traces[0])
    assert copy.search_terms(["question"], 50)[0][0].size
    assert copy.reserve(1).user_turn == rich.reserve(1).user_turn


def test_importing_twice_changes_nothing(rich, memory, load):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    load(copy, text)
    before, sequence = exported(copy, vectors=True), copy.sequence()
    again = load(copy, text)
    assert (again.turns, again.chunks, again.windows, again.entries) == (0, 0, 0, 0)
    assert again.known_turns == rich.stats().turns
    assert exported(copy, vectors=True) == before
    assert copy.sequence() == sequence


def test_settings_of_an_export_of_version_0_2_come_in_under_their_current_names(rich, memory, load):
    found = json.loads(exported(rich))
    found["windows"][0]["settings"] = {"fading": 3.0, "may_leave": "window", "top_k": 7}
    found["settings"] = [
        {**found["settings"][0], "key": "windows", "value": {"keep_exchanges": 2, "top_k": 5}}
    ]
    copy = memory("copy")
    load(copy, json.dumps(found))
    window = copy.window(found["windows"][0]["id"])
    assert window.settings == {"fade_per_token": 3.0, "remote_scope": "window", "top_k": 7}
    changed = copy.change_window(window.id, now=NOW, settings={"fade_per_token": 4.0}, reset=["remote_scope"])
    assert changed.settings == {"fade_per_token": 4.0, "top_k": 7}
    assert copy.window(window.id).settings == changed.settings
    assert Settings().restored(copy.settings()[SHARED_KEY]).protect_recent_exchanges == 2
    copy.change_settings(SHARED_KEY, {}, ["protect_recent_exchanges"], now=NOW)
    assert copy.settings()[SHARED_KEY] == {"top_k": 5}


def test_importing_into_the_memory_it_came_from_changes_nothing(rich, load):
    text = exported(rich)
    assert load(rich, text).turns == 0
    assert exported(rich) == text


def test_an_import_never_undoes_what_was_done_here_since(rich, memory, load):
    text = exported(rich)
    copy = memory("copy")
    load(copy, text)
    window = copy.windows()[0].id
    sleep(copy, window, user(3))
    copy.delete([user(5)], now=NOW)
    copy.change_window(window, now=NOW, name="renamed")
    copy.save_note("notes.json", "mine", now=NOW)
    before = exported(copy)
    load(copy, text)
    assert exported(copy) == before


def test_an_interrupted_import_goes_on(rich, memory, tmp_path, monkeypatch, load, content):
    monkeypatch.setattr(importing, "BATCH", 2)
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
    load(copy, text)
    assert content(exported(copy)) == content(text)


@pytest.mark.parametrize("form", [
    lambda found: json.dumps(found, indent=4),
    lambda found: json.dumps(found, sort_keys=True),
    lambda found: json.dumps(found, separators=(",", ":"), ensure_ascii=True),
    lambda found: "\ufeff" + json.dumps(dict(reversed(found.items())), indent="\t"),
], ids=["indented", "sorted", "compact", "backwards with a mark"])  # fmt: skip
def test_any_layout_of_the_json_is_read(rich, memory, form, load, content):
    text = exported(rich, vectors=True)
    copy = memory("copy")
    load(copy, form(json.loads(text)))
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


def test_the_roles_of_an_export_are_the_roles_of_the_core(rich):
    assert {turn["role"] for turn in json.loads(exported(rich))["turns"]} <= set(Role)


def test_a_part_can_be_exported_and_pairs_stay_whole(rich, memory, load):
    def turns(**subset):
        return [
            int(turn["turn"]) for turn in json.loads(exported(rich, subset=ExportFilter(**subset)))["turns"]
        ]

    first, second = (window.id for window in rich.windows())
    assert turns(first_turn=4, last_turn=5) == [3, 4, 5, 6]
    assert turns(since=NOW + timedelta(days=4), until=NOW + timedelta(days=4)) == [9, 10]
    assert turns(window=first) == list(range(1, 13))
    assert turns(window=second) == [3, 4, *range(13, 15), 17, 18]  # 4 woke up there, and brings its question
    copy = memory("copy")
    load(copy, exported(rich, subset=ExportFilter(window=second)))
    assert copy.verify() == []
    assert live_keys(copy, second) == live_keys(rich, second)
    assert copy.notes() == []
    load(copy, exported(rich))
    assert copy.stats().turns == rich.stats().turns
    assert copy.verify() == []


def test_vectors_of_another_embedder_are_left_out_and_made_again(rich, memory, load):
    other = memory("other")
    generation = other.begin_generation("another", 9, now=NOW)
    load(other, exported(rich, vectors=True))
    assert [item.model for item in other.generations()] == ["another"]
    present = sum(not record.gone for record in other.chunks(range(100)))
    assert len(other.wanted(generation.id, 100).numbers) == present


@pytest.mark.slow
def test_a_memory_larger_than_the_room_for_it_passes(memory, tmp_path, monkeypatch):
    """Neither side holds more of a long memory than of a short one."""
    monkeypatch.setattr(importing, "BATCH_CHARACTERS", 1 << 16)

    def peak_of(turns: int) -> int:
        store, copy = memory(f"from {turns}"), memory(f"to {turns}")
        window = store.create_window("w", now=NOW).id
        for number in range(turns):
            ids = store.reserve(1001)
            tokens = Tokens.of(np.arange(900) + number, [f" word{number}".encode()] * 900)
            live = LiveChunk(Chunk(user(ids.user_turn), ids.start, tokens), np.ones(900, np.float32))
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
