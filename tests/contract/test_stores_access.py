"""What a store handle with limits refuses and leaves out: every public method declares a rule, and each rule holds."""

import inspect
from dataclasses import replace

import pytest

from halo_weave.core.attribution import Attribution, ChunkShare
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, HaloWeaveError, NotYours, UnknownChunk, UnknownWindow
from halo_weave.store.access import UNDECLARED, StoreHandle
from halo_weave.store.records import ExportFilter
from halo_weave.store.sql_store import SqlStore
from tests.store.material import NOW, answer, ask, exported, user

SECRET = "lighthouse"


def rules(kind):
    """The rule of each public method and property of a store."""
    found = {}
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            method = member.fget if isinstance(member, property) else member
            if callable(method):
                found[name] = getattr(method, "access_rule", UNDECLARED)
    return found


@pytest.fixture
def people(store):
    """Ann, who has said and kept things, and Bob's handle on the same store."""
    ann = store.add_person("ann", "ab" * 32, now=NOW).id
    bob = store.add_person("bob", "cd" * 32, now=NOW).id
    window = store.create_window("Hers", now=NOW, owner=ann).id
    ids = ask(store, window, f"The {SECRET} is red.")
    answer(store, window, ids, "It is.")
    turn = ids.user_turn
    use = Attribution((ChunkShare(user(turn), ids.start, 0.5),), 0.5, (), None)
    store.save_use(ids.assistant_turn, use, {user(turn): {"by": "recall"}})
    store.tag_chunk(user(turn), [SECRET], now=NOW, owner=ann)
    store.for_owner(ann).save_note("notes", {"hidden": SECRET}, now=NOW)
    store.for_owner(ann).save_entry("A", SECRET, now=NOW)
    store.for_owner(ann).change_settings("windows", {"stop": SECRET}, now=NOW)
    store.name_chat("chat", window, owner=ann)
    return window, turn, user(turn), store.with_access(store.access_of(bob))


def test_every_public_method_declares_who_may_call_it(store):
    undeclared = [name for name, rule in rules(type(store)).items() if rule == UNDECLARED]
    assert undeclared == [], "Say with a decorator of store/access.py who may call these."


def test_a_method_without_a_rule_refuses_a_person(store, people):
    class Newer(type(store)):
        def leak(self):
            return exported(self)

    newer = Newer.__new__(Newer)
    newer.__dict__.update(store.__dict__)
    assert rules(Newer)["leak"] == UNDECLARED
    assert SECRET in newer.leak()
    with pytest.raises(NotYours):
        newer.with_access(people[3].access).leak()


def test_what_is_the_servers_refuses_a_person_whatever_the_arguments(people):
    *_, bob = people
    servers = [name for name, rule in rules(type(bob)).items() if rule == "server_only"]
    assert {"clear", "backup", "people", "drafts", "chunk_places", "sync", "import_file", "search_terms"} <= {
        *servers
    }
    for name in servers:
        with pytest.raises(NotYours):
            getattr(bob, name)()  # a property is refused before it is called


def test_every_method_of_a_window_refuses_one_that_the_person_may_not_read(people):
    window, *_, bob = people
    tried = 0
    for name, rule in rules(type(bob)).items():
        if rule in ("reads_window", "writes_window", "owns_window"):
            assert [*inspect.signature(getattr(SqlStore, name)).parameters][1] == "window_id", name
            for arguments in (((window,), {}), ((), {"window_id": window})):
                with pytest.raises(UnknownWindow):
                    getattr(bob, name)(*arguments[0], **arguments[1])
                tried += 1
    assert tried > 30


@pytest.mark.parametrize("writes", [False, True])
def test_a_shared_window_may_be_read_and_only_with_leave_written(store, people, writes):
    window, _, key, bob = people
    store.share(store.window(window).owner, window, bob.access.person, writes=writes, now=NOW)
    bob = store.with_access(store.access_of(bob.access.person))
    assert bob.chunk(key).chunk.text.startswith("The")
    for name, rule in rules(type(bob)).items():
        if rule == "owns_window" or (rule == "writes_window" and not writes):
            with pytest.raises(NotYours):
                getattr(bob, name)(window)
    if writes:
        bob.unpin(window, key, now=NOW)
    else:
        with pytest.raises(NotYours):
            bob.delete([key], now=NOW)


def test_a_chat_name_does_not_lead_to_a_window_that_is_shared_no_more(store, people):
    window, *_, bob = people
    owner, person = store.window(window).owner, bob.access.person
    store.share(owner, window, person, writes=True, now=NOW)
    store.with_access(store.access_of(person)).name_chat("theirs", window)
    assert store.with_access(store.access_of(person)).chat_window("theirs") == window
    store.unshare(owner, window, person)
    assert store.with_access(store.access_of(person)).chat_window("theirs") is None


# For each method that checks in its own body: a call with Ann's ids, and what Bob gets.
CHECKED = {
    "remembered": (lambda s, w, t, k: s.remembered([t + 1]), {}),
    "use_of": (lambda s, w, t, k: s.use_of(t + 1), None),
    "used_in": (lambda s, w, t, k: s.used_in(k), UnknownChunk),
    "resurrection_count": (lambda s, w, t, k: s.resurrection_count(k), UnknownChunk),
    "chunk": (lambda s, w, t, k: s.chunk(k), UnknownChunk),
    "chunks_by_key": (lambda s, w, t, k: s.chunks_by_key([k]), []),
    "chunks_between": (lambda s, w, t, k: s.chunks_between(0, 9000), []),
    "turn": (lambda s, w, t, k: s.turn(t), []),
    "deletion_of": (lambda s, w, t, k: s.deletion_of(k), UnknownChunk),
    "holders": (lambda s, w, t, k: s.holders([k]), UnknownChunk),
    "delete": (lambda s, w, t, k: s.delete([k], now=NOW), UnknownChunk),
    "undelete": (lambda s, w, t, k: s.undelete([k], now=NOW), UnknownChunk),
    "add_negative_feedback": (lambda s, w, t, k: s.add_negative_feedback(k, "Where?", now=NOW), UnknownChunk),
    "tag_chunk": (lambda s, w, t, k: s.tag_chunk(k, ["mine"], now=NOW), UnknownChunk),
    "chunk_tags": (lambda s, w, t, k: s.chunk_tags([k], owner=s.window_owner), {}),
    "tagged": (lambda s, w, t, k: s.tagged([SECRET], owner=s.window_owner), {}),
    "tag_counts": (lambda s, w, t, k: s.tag_counts(owner=s.window_owner), {}),
    "turn_record": (lambda s, w, t, k: s.turn_record(t), BadInput),
    "timeline": (lambda s, w, t, k: s.timeline(), []),
    "followers": (lambda s, w, t, k: s.followers(0, w), []),
    "siblings": (lambda s, w, t, k: s.siblings([t]), {}),
    "turns_with_hash": (lambda s, w, t, k: s.turns_with_hash(s.a_mark), []),
    "hashes_before": (lambda s, w, t, k: s.hashes_before(t, 5), []),
    "windows": (lambda s, w, t, k: s.windows(deleted=True), []),
    "window_names": (lambda s, w, t, k: s.window_names(), {}),
    "chat_window": (lambda s, w, t, k: s.chat_window("chat", owner=s.window_owner), None),
    "name_chat": (lambda s, w, t, k: s.name_chat("other", w), UnknownWindow),
    "recall_candidates": (lambda s, w, t, k: s.recall_candidates("", [k]), {}),
    "history": (lambda s, w, t, k: s.history(key=k), UnknownChunk),
    "place": (lambda s, w, t, k: s.place, ""),
}
# Those that concern only what is the person's own, whatever they are asked; tested below.
OWN = {"create_window", "change_persona", "stats", "export"}


def test_what_checks_by_itself_shows_and_changes_nothing_of_somebody_else(store, people):
    window, turn, key, bob = people
    checked = {name for name, rule in rules(type(store)).items() if rule == "checks_access"}
    assert checked == CHECKED.keys() | OWN
    before = exported(store)
    for handle in (store, bob):
        handle.window_owner = store.window(window).owner
        handle.a_mark = store.hashes_before(turn, 1)[0][1]
    for name, (call, result) in CHECKED.items():
        if isinstance(result, type) and issubclass(result, HaloWeaveError):
            with pytest.raises(result):
                call(bob, window, turn, key)
        else:
            assert call(bob, window, turn, key) == result, name
            assert call(store, window, turn, key) != result, name
    for arguments in ({"window": window}, {}):
        with pytest.raises((UnknownWindow, NotYours)):
            bob.history(**arguments)
    assert exported(store) == before


def test_what_a_person_makes_counts_and_exports_is_their_own(store, people):
    window, _, _, bob = people
    made = bob.create_window("His", now=NOW, owner=store.window(window).owner)
    assert made.owner == bob.access.person
    said = ask(bob, made.id, "The boat is blue.")  # a window that was just made may be written in
    assert bob.chunk(user(said.user_turn)).window == made.id
    assert (bob.stats().windows, bob.stats().notes, bob.stats().bytes) == (1, 0, 0)
    assert bob.change_persona({"ai_name": "X"}, now=NOW, owner=store.window(window).owner) == ()
    told = exported(bob)
    assert "boat" in told
    assert SECRET not in told
    with pytest.raises(UnknownWindow):
        exported(bob, subset=ExportFilter(window=window))
    assert SECRET not in exported(bob, subset=ExportFilter(reader=store.window(window).owner))
    assert (bob.notes(), bob.entries(), bob.entry_versions("A"), bob.settings().get("windows")) == (
        [],
        [],
        [],
        None,
    )


def test_a_person_cannot_go_on_from_a_turn_of_somebody_else_or_take_other_limits(store, people):
    window, turn, key, bob = people
    own = bob.create_window("His", now=NOW).id
    with pytest.raises(BadInput, match="no turn"):
        bob.switch(own, turn, now=NOW)
    with pytest.raises(UnknownChunk):
        bob.merge(own, ChunkKey(turn, 1, Role.USER), now=NOW)
    assert bob.resurrectable_chunks(own, [key]) == {}
    assert bob.recall_candidates(own, [key]) == {}
    with pytest.raises(NotYours):
        bob.for_owner(store.window(window).owner)
    with pytest.raises(NotYours):
        bob.with_access(replace(bob.access, readable=frozenset({window})))
    assert isinstance(bob, StoreHandle)
