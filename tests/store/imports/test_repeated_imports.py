"""Importing again adds only what is new; what was edited or answered again elsewhere is a branch here."""

from __future__ import annotations

import copy
import io
import json

from halo_weave.core.tokens import Role
from halo_weave.store.records import ExportFilter
from tests.store.imports.conftest import NOW, heard, sample
from tests.store.imports.test_files import mapping
from tests.store.material import exchange


def current(store) -> list[str]:
    """The texts of the current branch of the only window."""
    [window] = store.windows()
    return ["".join(one.chunk.text for one in store.turn(turn.id)) for turn in store.branch(window.id)]


def test_every_sample_imports_once(store, load):
    for name in ("chatgpt.json", "claude.json", "sillytavern.jsonl", "openwebui.json", "koboldlite.json", "lmstudio.json",
                 "jan.jsonl", "textgen.json", "card.json"):  # fmt: skip
        first = load(name)
        assert first.turns
        again = load(name)
        assert (again.turns, again.windows, again.known_turns) == (0, 0, first.turns)
        assert again.left == first.left


def test_what_was_not_in_use_is_aside(store, load):
    load("claude.json")
    [window] = [one for one in store.windows() if one.name == "Garden plans"]
    branch = [store.turn(turn.id)[0].chunk.text.strip() for turn in store.branch(window.id)]
    assert branch[-2:] == ["And beside beans?", "Savory grows beside beans."]
    [other] = [turn for turn in store.followers(store.branch(window.id)[1].id, window.id) if turn.aside]
    assert store.turn(other.id)[0].chunk.text == "And beside carrots?"
    assert store.turn(other.id)[0].gone


def test_swipes_and_versions_are_siblings(store, load):
    load("sillytavern.jsonl")
    [window] = store.windows()
    branch = store.branch(window.id)
    assert len(branch) == 3
    for turn in (branch[0], branch[2]):
        assert len(store.siblings([turn.id])[turn.id]) == 2


def test_a_conversation_that_grew_gets_its_new_messages(store, load):
    texts = ["one", "two", "three", "four"]
    load([mapping(*texts[:2])])
    result = load([mapping(*texts)])
    assert (result.turns, result.known_turns, result.windows) == (2, 2, 0)
    assert current(store) == texts
    assert store.turn(4)[0].chunk.answers == 3
    assert len(store.live(store.windows()[0].id)) == 4


def test_an_edited_message_is_a_branch_and_becomes_the_current_one(store, load):
    chat = mapping("one", "two", "three", "four")
    load([chat])
    edited = copy.deepcopy(chat)
    other = mapping("one", "two", "drei", "vier", id="e")["mapping"]
    other["e2"]["parent"] = "c1"
    edited["mapping"].update(e2=other["e2"], e3=other["e3"])
    edited["current_node"] = "e3"
    assert load([edited]).turns == 2
    assert current(store) == ["one", "two", "drei", "vier"]
    assert not {"three", "four"} & {turn.text for turn in heard(store)}
    load([chat])  # an older file changes nothing
    assert current(store) == ["one", "two", "drei", "vier"]
    load([edited | {"current_node": "c3"}])
    assert current(store) == ["one", "two", "three", "four"]
    assert {"three", "four"} <= {turn.text for turn in heard(store)}


def test_a_message_edited_in_place_is_a_branch(store, load):
    chat = mapping("one", "two")
    load([chat])
    chat["mapping"]["c1"]["message"]["content"]["parts"] = ["zwei"]
    load([chat])
    assert current(store) == ["one", "zwei"]


def test_new_messages_come_after_what_was_said_here_meanwhile(store, load):
    load([mapping("one", "two")])
    [window] = store.windows()
    exchange(store, window.id, "said here", "answered here", now=NOW)
    load([mapping("one", "two", "three", "four")])
    assert current(store) == ["one", "two", "said here", "answered here", "three", "four"]


def test_an_edit_elsewhere_leaves_what_was_said_here_in_place(store, load):
    chat = mapping("one", "two", "three", "four")
    load([chat])
    [window] = store.windows()
    exchange(store, window.id, "said here", "answered here", now=NOW)
    other = mapping("one", "two", "drei", id="e")["mapping"]["e2"]
    chat["mapping"]["e2"] = {**other, "parent": "c1"}
    load([chat | {"current_node": "e2"}])
    assert current(store) == ["one", "two", "three", "four", "said here", "answered here"]
    assert len(store.followers(2, window.id)) == 2


def test_a_deleted_window_stays_deleted(store, load):
    load("claude.json")
    for window in store.windows():
        store.delete_window(window.id, now=NOW)
    load("claude.json")
    assert store.windows() == []


def test_a_memory_with_imports_moves_to_another_and_still_knows_them(store, load, tmp_path):
    from halo_weave.store.sqlite import SqliteStore

    load("chatgpt.json")
    out = io.StringIO()
    store.export(out.write, now=NOW, subset=ExportFilter())
    with SqliteStore(tmp_path / "other.sqlite") as other:
        other.import_open_file(io.BytesIO(out.getvalue().encode()), now=NOW)
        again = other.import_open_file(io.BytesIO(sample("chatgpt.json")), now=NOW)
        assert (again.turns, again.windows) == (0, 0)
        assert heard(other) == heard(store)


def test_a_file_of_the_same_words_in_another_layout_is_the_same(store, load):
    load("chatgpt.json")
    assert load(json.dumps(json.loads(sample("chatgpt.json")), indent=None).encode()).turns == 0


def test_roles_other_than_user_and_assistant_never_arrive(store, load):
    for name in ("chatgpt.json", "lmstudio.json", "jan.jsonl", "openwebui.json"):
        load(name)
    assert {place.role for place in store.chunk_places()} <= {Role.USER, Role.ASSISTANT}
