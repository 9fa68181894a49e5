"""Devices that share a folder come to the same memory, whatever they did apart and in whatever order they synchronise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halo_weave.app import open_store
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, StoreBusy
from halo_weave.store.sync_documents import turn_identity
from tests.store.material import NOW, ask, cut, draft, exchange, holding, quick_folder, user


def later(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


class Device:
    """A memory, and what its user does."""

    def __init__(self, folder: Path, name: str, clock: Iterator[int]) -> None:
        self.store, self.name, self._clock = open_store(folder), name, clock
        self.said: set[str] = set()

    def now(self) -> datetime:
        return later(next(self._clock))

    def sync(self, shared: Path):
        return self.store.sync(shared, now=self.now() + timedelta(minutes=5))

    def window(self, at: int = 0) -> str | None:
        found = self.store.windows()
        return found[at % len(found)].id if found else None

    def chunks(self) -> list[ChunkKey]:
        last = self.store.stats().next_turn
        return [
            one.key for turn in range(1, last) for one in self.store.turn(turn) if one.merged_into is None
        ]

    def do(self, act: str, at: int) -> None:
        """One act, if it is possible."""
        window, store = self.window(at), self.store
        if window is None or act == "open":
            store.create_window(f"{self.name}{at}", now=self.now())
            return
        keys = self.chunks()
        key = keys[at % len(keys)] if keys else None
        word = f"{self.name}{next(self._clock)}"
        try:
            if act == "say":
                exchange(store, window, f"ask {word}", f"first {word}", f" second {word}", now=self.now())
                self.said |= {f"ask {word}", f"first {word} second {word}"}
            elif act == "answer again":
                head = store.window(window).head
                if head:
                    parent = store.turn_record(head).parent or 0
                    ask(store, window, f"instead {word}", now=self.now(), after=parent)
                    self.said.add(f"instead {word}")
            elif act == "switch":
                turns = store.branch(window)
                if turns:
                    store.switch(window, turns[at % len(turns)].id, now=self.now())
            elif act == "delete" and key:
                store.delete(store.deletion_of(key), now=self.now())
            elif act == "undelete" and key:
                store.undelete([key], now=self.now())
            elif act == "merge" and key:
                store.merge(window, key, now=self.now())
            elif act == "mark" and key:
                store.add_negative_feedback(key, word if at % 3 else None, now=self.now())
            elif act == "tag" and key:
                store.tag_chunk(key, ["red", "blue", "green"][at % 3 : 1 + at % 4], now=self.now())
            elif act == "note":
                note = store.note("notes.json")
                content = dict(note.content) if note else {"_metadata": {}}
                content.setdefault("topics", {})[f"topic {at % 4}"] = word
                if at % 5 == 0:
                    content["topics"].pop("topic 1", None)
                store.save_note("notes.json", content, now=self.now())
            elif act == "remember":
                part = {"key": str(key), "text": "x", "tokens": 1, "similarity": 0.5}
                store.save_entry(f"Path/{at % 3}", word, now=self.now(), snapshot=[part] if key else [])
            elif act == "forget":
                store.delete_entry(f"Path/{at % 3}", now=self.now())
            elif act == "rename":
                store.change_window(
                    window, name=word, tags=[f"tag {at % 3}"], settings={"x": at}, now=self.now()
                )
            elif act == "close":
                store.delete_window(window, now=self.now())
            elif act == "persona":
                store.change_persona({"user_name": word}, now=self.now())
        except BadInput:
            pass


ACTS = (
    *(
        "open",
        "say",
        "say",
        "say",
        "answer again",
        "switch",
        "delete",
        "undelete",
        "merge",
        "mark",
        "tag",
        "note",
    ),
    *("remember", "forget", "rename", "close", "persona", "sync", "sync"),
)


def memory_of(device: Device) -> dict[str, object]:
    """All that devices must agree on, without the ids and places that each gives by itself."""
    store = device.store
    turns: dict[str, object] = {}
    with store._db.reading() as db:
        ids = [turn for (turn,) in db.execute("SELECT id FROM turns").fetchall()]
        names = {turn: turn_identity(db, turn) for turn in ids}
        wrong = dict(store.negative_feedback())
    for turn in ids:
        rows, record = store.turn(turn), store.turn_record(turn)
        present = [one for one in rows if one.merged_into is None]
        turns[names[turn]] = {
            "text": "".join(one.chunk.text for one in present),
            "gone": [one.deleted is not None for one in present for _ in range(len(one.chunk))],
            "wrong": sorted(wrong[one.number] for one in rows if one.number in wrong),
            "tags": {tag for tags in store.chunk_tags([one.key for one in rows]).values() for tag in tags},
            "who": (record.window, record.role, record.speaker, record.said, record.aside),
            "place": (names.get(record.parent), names.get(record.answers)),
        }
    return {
        "turns": turns,
        "windows": {
            window.id: (
                *(window.name, window.system_prompt, window.user_name, window.ai_name, window.settings),
                *(set(window.tags), window.pinned, window.archived, window.deleted, names.get(window.head)),
            )
            for window in store.windows(deleted=True)
        },
        "notes": {note.name: note.content for note in store.notes()},
        "entries": {entry.path: entry.content for entry in store.entries()},
        "versions": {
            path: [(one.content, one.version, one.ended) for one in store.entry_versions(path)]
            for path in (f"Path/{i}" for i in range(3))
        },
        "settings": store.settings(),
    }


@contextmanager
def devices(number: int) -> Iterator[tuple[Path, list[Device]]]:
    with quick_folder() as folder, ExitStack() as stack:
        shared = folder / "shared"
        shared.mkdir()
        clock = count()
        made = [Device(folder / f"d{i}", "abc"[i], clock) for i in range(number)]
        for one in made:
            stack.enter_context(one.store)
        yield shared, made


def settle_all(shared: Path, made: list[Device], chance: random.Random) -> None:
    """All synchronise, in any order, until nobody has anything to tell."""
    for _ in range(8):
        chance.shuffle(made)
        told = [one.sync(shared).sent for one in made]
        if not any(told):
            return
    raise AssertionError("They never end telling each other.")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    number=st.sampled_from([2, 3]),
    acts=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ACTS), st.integers(0, 50)), max_size=30),
    seed=st.integers(0, 99),
)
def test_whatever_devices_do_apart_they_come_to_the_same_memory_and_nothing_is_lost(number, acts, seed):
    with devices(number) as (shared, made):
        for who, act, at in acts:
            device = made[who % number]
            device.sync(shared) if act == "sync" else device.do(act, at)
        settle_all(shared, made, random.Random(seed))
        first, *others = [memory_of(one) for one in made]
        for other in others:
            assert other == first
        texts = {turn["text"].strip() for turn in first["turns"].values()}
        assert set().union(*(one.said for one in made)) <= texts
        if not {"answer again", "switch"} & {act for _, act, _ in acts}:
            assert not any(turn["who"][-1] for turn in first["turns"].values())  # all can be found
        assert [one.store.verify() for one in made] == [[]] * number


def test_what_was_said_apart_in_one_window_is_found_on_both_devices():
    with devices(2) as (shared, (one, other)):
        window = one.store.create_window("Cats", now=NOW).id
        exchange(one.store, window, "hello", "hi", now=later(1))
        one.sync(shared)
        other.sync(shared)
        assert len(other.store.live(window)) == 2  # the talk goes on where it was
        exchange(one.store, window, "Minka purrs", "good", now=later(2))
        exchange(other.store, window, "Felix hunts", "fine", now=later(3))
        for device in (one, other, one):
            device.sync(shared)
        for device in (one, other):
            assert holding(device.store, "minka")
            assert holding(device.store, "felix")
            names = sorted(found.name for found in device.store.windows())
            assert names == ["Cats", "Cats (said apart)"]
        assert memory_of(one) == memory_of(other)


def test_a_deletion_reaches_the_other_device_and_so_does_taking_it_back():
    with devices(2) as (shared, (one, other)):
        window = one.store.create_window("Cats", now=NOW).id
        ids = exchange(one.store, window, "secret word", "good", now=later(1))
        one.sync(shared)
        other.sync(shared)
        other.store.delete(other.store.deletion_of(user(1)), now=later(9))
        other.sync(shared)
        one.sync(shared)
        assert one.store.chunk(user(ids.user_turn)).deleted == later(9)
        assert not holding(one.store, "secret")
        one.store.undelete(one.store.deletion_of(user(ids.user_turn)), now=later(10))
        one.sync(shared)
        other.sync(shared)
        assert holding(one.store, "secret")
        assert holding(other.store, "secret")


def test_notes_changed_on_both_devices_keep_both_changes():
    with devices(2) as (shared, (one, other)):
        one.store.save_note("notes.json", {"_metadata": {}, "a": {"x": 1}}, now=NOW)
        one.sync(shared)
        other.sync(shared)
        one.store.save_note("notes.json", {"_metadata": {}, "a": {"x": 1, "y": 2}}, now=later(1))
        other.store.save_note("notes.json", {"_metadata": {}, "a": {"x": 5}, "b": [1]}, now=later(2))
        for device in (one, other, one):
            device.sync(shared)
        for device in (one, other):
            assert device.store.note("notes.json").content == {
                "_metadata": {},
                "a": {"x": 5, "y": 2},
                "b": [1],
            }


def test_a_file_that_is_torn_a_copy_and_a_file_of_others_do_no_harm():
    with devices(2) as (shared, (one, other)):
        window = one.store.create_window("Cats", now=NOW).id
        exchange(one.store, window, "hello", "hi", now=later(1))
        one.sync(shared)
        (bundle,) = shared.iterdir()
        whole = bundle.read_bytes()
        bundle.with_name(bundle.stem + " (conflicted copy).bundle").write_bytes(whole[:-9])
        (shared / "letter.txt").write_text("not ours")
        bundle.write_bytes(whole[: len(whole) // 2])
        assert other.sync(shared).waiting == 1
        assert other.store.windows() == []
        bundle.write_bytes(whole)
        assert other.sync(shared).turns == 2
        assert other.sync(shared).sent == 0
        assert memory_of(one) == memory_of(other)


def test_a_bundle_waits_for_those_that_its_writer_knew():
    with devices(2) as (shared, (one, other)):
        window = one.store.create_window("Cats", now=NOW).id
        exchange(one.store, window, "hello", "hi", now=later(1))
        one.sync(shared)
        (first,) = shared.iterdir()
        exchange(one.store, window, "again", "yes", now=later(2))
        one.sync(shared)
        held = first.rename(first.with_suffix(".later"))
        assert other.sync(shared).waiting == 1
        held.rename(first)
        assert other.sync(shared).turns == 4


def lies(shared: Path, *lines: object, **head: object) -> None:
    from halo_weave.store.sync_bundles import write_bundle

    write_bundle(shared, "f00", [], [json.dumps(line) for line in lines])


@pytest.mark.parametrize(
    "line",
    [
        [],
        {"turn": {}},
        {"turn": {"id": '["m", 1, "user 1"]', "window": "../../x"}},
        {"kind": "window", "key": "abc", "set": [[["name"], 1, ["\u0000"]]]},
        {"kind": "window", "key": "abc", "set": [[["name"], -1, ["x"]]]},
        {"kind": "table", "key": "abc", "set": []},
        {"kind": "note", "key": "n", "set": [[["_metadata"], 1, [3]]]},
        {"kind": "entry", "key": "/a//", "set": [[["versions", "x"], 1, [{}]]]},
        {"kind": "entry", "key": "a", "set": [[["versions"], 1, [7]]]},
        {"kind": "entry", "key": "a", "set": [[["versions", "1-2"], 1, [7]]]},
        {"kind": "turn", "key": '["m", 7, "user 1"]', "set": [[["gone", "0"], 1, [True]]]},
        {"kind": "window", "key": "abc", "set": [[["name"], 1 << 60, ["x"]]]},
        {"kind": "turn", "key": "[[[[", "set": [[["gone", "0"], 1, [True]]]},
    ],
)
def test_a_bundle_that_lies_is_refused_with_a_sentence_and_changes_nothing(line):
    with devices(1) as (shared, (one,)):
        one.store.create_window("Cats", now=NOW)
        before = memory_of(one)
        lies(shared, line)
        assert len(one.sync(shared).refused) == 1
        assert memory_of(one) == before
        assert one.store.verify() == []


def test_a_bundle_may_not_change_engines_or_settings_of_this_machine():
    with devices(1) as (shared, (one,)):
        window = one.store.create_window("Cats", now=NOW, settings={"remote_scope": "nothing"})
        lies(
            shared,
            {"kind": "setting", "key": "windows", "set": [[["max_context_tokens"], 1, [1]]]},
            {
                "kind": "window",
                "key": window.id,
                "set": [[["settings", "remote_scope"], 1 << 53, ["everything"]]],
            },
        )
        one.sync(shared)
        assert one.store.settings() == {}
        assert one.store.window(window.id).settings == {"remote_scope": "nothing"}


def test_a_bundle_of_version_0_2_may_not_change_engines_of_this_machine():
    with devices(1) as (shared, (one,)):
        window = one.store.create_window("Cats", now=NOW, settings={"remote_scope": "window"})
        names = ("may_leave", "answered_by", "fading")
        changes = [
            [["settings", name], 1 << 53, [value]]
            for name, value in zip(names, ("all", "spy", 3.0), strict=True)
        ]
        lies(shared, {"kind": "window", "key": window.id, "set": changes})
        one.sync(shared)
        assert one.store.window(window.id).settings == {"remote_scope": "window", "fade_per_token": 3.0}


def test_another_folder_is_told_everything_again():
    with devices(2) as (shared, (one, other)):
        window = one.store.create_window("Cats", now=NOW).id
        exchange(one.store, window, "hello", "hi", now=later(1))
        one.sync(shared)
        second = shared.with_name("second")
        second.mkdir()
        one.sync(second)
        other.sync(second)
        assert memory_of(one) == memory_of(other)


def test_sync_waits_until_a_reply_is_written():
    with devices(1) as (shared, (one,)):
        window = one.store.create_window("Cats", now=NOW).id
        draft(one.store, window, ask(one.store, window, "hello"), cut("I am"))
        with pytest.raises(StoreBusy, match="Sync again"):
            one.store.sync(shared, now=later(0.5))
