"""People in a store: keys as hashes, what each may reach, and owners that go along with exports, imports and moves."""

import pytest

from halo_weave.errors import BadInput, UnknownPerson, UnknownWindow
from halo_weave.store.records import OWNER, ExportFilter
from halo_weave.store.transfer import copy_rows
from tests.store.material import NOW, ask, exported, live_keys, user, wake

HASH = "ab" * 32


@pytest.fixture
def ann(store):
    return store.add_person("ann", HASH, now=NOW).id


@pytest.fixture
def bob(store):
    return store.add_person("bob", "cd" * 32, now=NOW).id


def window(store, owner, name="Talk"):
    return store.create_window(name, now=NOW, owner=owner).id


def test_a_key_is_found_by_its_hash_until_it_is_revoked(store, ann):
    assert store.several()
    assert store.key_hashes(HASH[:8]) == [(HASH, ann)]
    assert store.key_hashes("ffffffff") == []
    with pytest.raises(BadInput, match="already"):
        store.add_person("ann", "ef" * 32, now=NOW)
    assert store.revoke_person("ann", now=NOW).revoked == NOW
    assert (store.key_hashes(HASH[:8]), store.key_mark(ann), store.key_mark(OWNER)) == ([], None, "")
    assert store.add_person("ann", "ef" * 32, now=NOW).id == ann  # their memory is there again
    with pytest.raises(UnknownPerson):
        store.revoke_person("cid", now=NOW)
    with pytest.raises(BadInput):
        store.add_person("owner", "ef" * 32, now=NOW)


def test_reach_is_what_is_own_and_what_is_shared(store, ann, bob):
    mine, first, second = window(store, bob), window(store, ann, "First"), window(store, ann, "Second")
    assert store.access_of(bob).readable == {mine}
    store.share(ann, first, bob, writes=False, now=NOW)
    reach = store.access_of(bob)
    assert (reach.own, reach.readable, reach.writable) == ({mine}, {mine, first}, {mine})
    assert store.readers(first) == (bob,)
    store.share(ann, "", bob, writes=True, now=NOW)
    later = window(store, ann, "Later")
    assert store.access_of(bob).writable == {mine, first, second, later}
    assert {one.name for one in store.windows(reader=bob)} == {"Talk", "First", "Second", "Later"}
    assert store.window_names(reader=bob)[later] == "Later, of ann"
    assert store.unshare(ann, "", bob)
    assert not store.unshare(ann, "", bob)
    assert store.access_of(bob).readable == {mine, first}
    with pytest.raises(BadInput):
        store.share(bob, first, ann, writes=False, now=NOW)
    with pytest.raises(UnknownWindow):
        store.share(bob, "nowhere", ann, writes=False, now=NOW)


def test_what_is_not_shared_any_more_leaves_the_windows_that_it_woke_up_in(store, ann, bob):
    hers, his, own = window(store, ann), window(store, bob), window(store, ann, "Own")
    said = user(ask(store, hers, "The key is under the mat.").user_turn)
    store.share(ann, hers, bob, writes=False, now=NOW)
    for one in (his, own):
        wake(store, one, said)
    store.unshare(ann, hers, bob)
    assert live_keys(store, his) == []
    assert live_keys(store, own) == [said]


def test_keepsakes_and_chats_of_different_people_have_the_same_names(store, ann):
    hers = store.for_owner(ann)
    for kept, said in ((store, "mine"), (hers, "hers")):
        kept.save_note("notes", {"said": said}, now=NOW)
        kept.save_entry("A/B", said, now=NOW)
        kept.change_settings("windows", {"said": said}, now=NOW)
    assert [one.content for one in hers.notes()] == [{"said": "hers"}]
    assert (store.entry("A/B").content, hers.entry("A/B").content) == ("mine", "hers")
    assert hers.delete_entry("A", now=NOW, recursive=True) == 1
    assert store.entries()[0].content == "mine"
    assert (store.settings(), hers.settings()) == (
        {"windows": {"said": "mine"}},
        {"windows": {"said": "hers"}},
    )
    store.name_chat("one", window(store, OWNER))
    assert store.chat_window("one", owner=ann) is None


def test_owners_and_shares_go_along_with_a_file_and_with_a_move(store, memory, ann, bob, tmp_path):
    hers = window(store, ann, "Hers")
    ask(store, hers, "The key is under the mat.")
    ask(store, window(store, OWNER, "Mine"), "The bell is broken.")
    store.share(ann, hers, bob, writes=True, now=NOW)
    store.for_owner(ann).save_note("notes", {"said": "hers"}, now=NOW)
    file = tmp_path / "all.json"
    file.write_text(exported(store))
    assert HASH not in file.read_text()
    other = memory("other")
    other.import_file(file, now=NOW)
    names = {one.id: one.name for one in other.people()}
    assert {one.name: names.get(one.owner, "") for one in other.windows()} == {"Hers": "ann", "Mine": ""}
    assert [(one.window, names[one.person], one.writes) for one in other.shares()] == [(hers, "bob", True)]
    assert other.for_owner(next(one for one in names if names[one] == "ann")).notes()[0].content == {
        "said": "hers"
    }
    assert not any(other.key_mark(one) for one in names)  # nobody gets a key by a file

    moved = memory("moved")
    with store._db.reading() as db:
        copy_rows(db, moved._db)
    assert moved.key_hashes(HASH[:8]) == [(HASH, ann)]
    assert moved.shares() == store.shares()
    assert moved.access_of(bob) == store.access_of(bob)


def test_an_import_shares_nothing_that_was_here(store, memory, ann, bob, tmp_path):
    hers = window(store, ann, "Hers")
    ask(store, hers, "The key is under the mat.")
    store.share(ann, hers, bob, writes=True, now=NOW)
    store.share(ann, "", bob, writes=True, now=NOW)
    file = tmp_path / "all.json"
    file.write_text(exported(store))
    for one in (hers, ""):
        store.unshare(ann, one, bob)
    store.import_file(file, now=NOW)
    assert store.shares() == []


def test_an_export_of_one_person_has_nothing_of_another(store, ann, bob):
    for owner, word in ((ann, "mat"), (bob, "bell"), (OWNER, "door")):
        ask(store, window(store, owner, f"The {word}"), f"The {word} is red.")
    told = exported(store, subset=ExportFilter(reader=ann))
    assert "The mat is red." in told
    assert "bell" not in told
    assert "door" not in told
    assert store.stats(reader=ann).chunks == 1
    assert [one.window for one in store.timeline(reader=ann)] == list(store.access_of(ann).own)
