"""What was imported on one device comes to the others, and importing it there as well doubles nothing."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.imports.conftest import NOW, heard, sample

SAMPLES = ["chatgpt.json", "claude.json", "sillytavern.jsonl", "openwebui.json", "koboldlite.json",
           "lmstudio.json", "jan.jsonl", "textgen.json", "card.json"]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_an_imported_conversation_reaches_another_device(store, load, tmp_path, name):
    said = load(name).turns
    shared = tmp_path / "shared"
    shared.mkdir()
    assert store.sync(shared, now=NOW).sent
    with SqliteStore(tmp_path / "other.sqlite") as other:
        came = other.sync(shared, now=NOW + timedelta(minutes=1))
        assert (came.turns, came.refused) == (said, ())
        assert heard(other) == heard(store)
        assert other.verify() == []


def test_what_both_devices_imported_is_there_once(store, load, tmp_path):
    load("chatgpt.json")
    said, shared = heard(store), tmp_path / "shared"
    shared.mkdir()
    store.sync(shared, now=NOW)
    with SqliteStore(tmp_path / "other.sqlite") as other:
        other.import_open_file(io.BytesIO(sample("chatgpt.json")), now=NOW)
        assert other.sync(shared, now=NOW + timedelta(minutes=1)).turns == 0
        assert store.sync(shared, now=NOW + timedelta(minutes=2)).turns == 0
        assert heard(other) == heard(store) == said
