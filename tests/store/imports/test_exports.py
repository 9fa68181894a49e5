"""Nobody is locked in: Markdown to read, and the shape of ChatGPT's export, which comes back as it was."""

from __future__ import annotations

import io
import json

import pytest

from halo_weave.chat.export import export_conversations
from halo_weave.errors import BadInput
from halo_weave.store.sqlite import SqliteStore
from tests.store.imports.conftest import NOW, heard


def told(store, *more) -> str:
    out = io.StringIO()
    export_conversations(store, out.write, *more)
    return out.getvalue()


def test_markdown_has_speakers_times_thoughts_and_only_the_current_branch(store, load):
    load("chatgpt.json")
    [window] = [one for one in store.windows() if one.name == "A lighthouse"]
    text = told(store, "markdown", window.id)
    assert text.startswith(
        "# A lighthouse\n\n## User, 2024-05-01 08:00\n\nWhere did I put the lighthouse key?\n"
    )
    assert "> *Thought*\n>\n> Counting steps\n> Twelve floors" in text
    assert text.endswith("The tower has 204 steps.\n")
    assert "I do not know." not in text
    with pytest.raises(BadInput, match="one window"):
        told(store, "markdown")


def test_in_the_shape_of_chatgpt_everything_comes_back_with_its_branches(store, load, tmp_path):
    names = ("chatgpt.json", "claude.json", "sillytavern.jsonl", "openwebui.json")
    turns = sum(load(name).turns for name in names)
    text = told(store, "chatgpt")
    assert len(json.loads(text)) == len(store.windows())
    with SqliteStore(tmp_path / "other.sqlite") as other:
        result = other.import_open_file(io.BytesIO(text.encode()), now=NOW)
        assert (result.program, result.turns, result.left) == ("ChatGPT", turns, {})
        assert sorted(heard(other)) == sorted(heard(store))
        for window, there in zip(_by_name(store), _by_name(other), strict=True):
            assert [turn.said for turn in store.branch(window.id)] == [
                turn.said for turn in other.branch(there.id)
            ]
            assert window.created == there.created


def _by_name(store):
    return sorted(store.windows(), key=lambda one: one.name)


def test_what_was_deleted_is_not_told(store, load):
    load("claude.json")
    [window] = [one for one in store.windows() if one.name == "Garden plans"]
    store.delete([store.turn(store.branch(window.id)[0].id)[0].key], now=NOW)
    for form in ("markdown", "chatgpt"):
        assert "tomatoes?" not in told(store, form, window.id)
