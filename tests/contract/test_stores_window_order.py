"""What every store keeps of how windows are put in order, and of the words that they share."""

import io
import json

import pytest

from halo_weave.errors import ImportRefused
from tests.store.material import NOW, exported


def test_tags_pins_and_archives_are_kept(store, again):
    made = store.create_window("w", now=NOW, tags=["work", "café"])
    assert (made.tags, made.pinned, made.archived) == (("work", "café"), False, False)
    store.change_window(made.id, now=NOW, tags=["home"], pinned=True, archived=True)
    store.change_window(made.id, now=NOW, name="renamed")
    found = again().window(made.id)
    assert (found.name, found.tags, found.pinned, found.archived) == ("renamed", ("home",), True, True)


def test_words_for_all_windows_reach_those_that_inherit_them(store):
    follows = store.create_window("follows", now=NOW, inherits=["system_prompt", "user_name", "ai_name"])
    own = store.create_window("own", now=NOW, system_prompt="Mine.", inherits=["ai_name"])
    assert store.change_persona({"system_prompt": "For all.", "ai_name": "Ada"}, now=NOW) == (
        follows.id,
        own.id,
    )
    assert store.window(follows.id).system_prompt == "For all."
    assert (store.window(own.id).system_prompt, store.window(own.id).ai_name) == ("Mine.", "Ada")
    assert store.settings()["persona"] == {"system_prompt": "For all.", "user_name": "User", "ai_name": "Ada"}


def test_a_window_takes_its_own_words_and_goes_back(store):
    window = store.create_window("w", now=NOW, inherits=["system_prompt", "ai_name"]).id
    changed = store.change_window(window, now=NOW, system_prompt="Mine.")
    assert changed.inherits == ("ai_name",)
    store.change_persona({"system_prompt": "For all."}, now=NOW)
    assert store.window(window).system_prompt == "Mine."
    back = store.change_window(window, now=NOW, inherits=["system_prompt"])
    assert (back.system_prompt, back.inherits) == ("For all.", ("system_prompt", "ai_name"))


def _copied(store, other):
    text = exported(store)
    return other.import_open_file(io.BytesIO(text.encode()), now=NOW)


def test_an_export_carries_order_and_shared_words(store, elsewhere):
    store.change_persona({"ai_name": "Ada"}, now=NOW)
    made = store.create_window("w", now=NOW, ai_name="Ada", tags=["a", "b"], inherits=["ai_name"])
    store.change_window(made.id, now=NOW, pinned=True, archived=True)
    _copied(store, elsewhere)
    found = elsewhere.window(made.id)
    assert (found.tags, found.pinned, found.archived, found.inherits) == (
        ("a", "b"),
        True,
        True,
        ("ai_name",),
    )
    elsewhere.change_persona({"ai_name": "Eve"}, now=NOW)
    assert elsewhere.window(made.id).ai_name == "Eve"


def test_an_imported_window_keeps_its_words_where_others_are_shared(store, elsewhere):
    made = store.create_window("w", now=NOW, inherits=["ai_name", "user_name"])
    elsewhere.change_persona({"ai_name": "Eve"}, now=NOW)
    _copied(store, elsewhere)
    found = elsewhere.window(made.id)
    assert (found.ai_name, found.inherits) == ("AI", ("user_name",))


@pytest.mark.parametrize(
    ("name", "value"),
    [("tags", ["x" * 41]), ("tags", [1]), ("tags", ["\0"]), ("pinned", "yes"), ("inherits", ["settings"])],
)
def test_a_file_with_a_wrong_order_is_refused(store, elsewhere, name, value):
    store.create_window("w", now=NOW)
    file = json.loads(exported(store))
    file["windows"][0][name] = value
    with pytest.raises(ImportRefused, match=name):
        elsewhere.import_open_file(io.BytesIO(json.dumps(file).encode()), now=NOW)
