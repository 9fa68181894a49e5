"""Several people on one memory: each has their own, and what they share wakes up with whose it is."""

import json
import re

import pytest

from halo_weave.chat import events
from halo_weave.errors import BadInput, NotYours, UnknownChunk, UnknownWindow
from halo_weave.settings import PRESETS_KEY
from halo_weave.store.records import ExportFilter
from tests.chat.conftest import SMALL, of
from tests.chat.test_turn import spoken_prompt

CAT = "My cat is a Siamese with blue eyes."
ASKED = "What colour are the eyes of the Siamese?"


@pytest.fixture
def weave(assembled):
    return assembled()


@pytest.fixture
def people(weave):
    """Ann, Bob and Cid, each as they may use the system: asked for anew, since each use is for one request."""
    ids = {name: weave.people.add(name)[0].id for name in ("ann", "bob", "cid")}
    return lambda name: weave.of(ids.get(name, ""))


def talk(weave, window, text):
    return list(weave.turns.steps(window, text))


def window_of(weave, name, **settings):
    return weave.windows.create(name, settings={**SMALL, **settings}).id


def woken(turn):
    return [one for told in of(events.ChunksResurrected, turn) for one in told.chunks]


def test_what_one_person_said_does_not_wake_up_for_another(weave, people):
    cats = window_of(people("ann"), "Cats")
    talk(people("ann"), cats, CAT)
    own = window_of(people("bob"), "Own")
    assert woken(talk(people("bob"), own, ASKED)) == []
    assert people("bob").memory.search("Siamese") != []  # the question itself
    assert all(found.record.window == own for found in people("bob").memory.search("Siamese eyes"))
    mine = window_of(people("ann"), "Mine")
    assert CAT in {one.chunk.text for one in woken(talk(people("ann"), mine, ASKED))}


def test_a_shared_chunk_wakes_up_and_tells_whose_it_is_until_it_is_taken_back(weave, people):
    cats = window_of(people("ann"), "Cats")
    talk(people("ann"), cats, CAT)
    people("ann").people.share(cats, "bob")
    own = window_of(people("bob"), "Own", timestamps=True)
    told = woken(talk(people("bob"), own, ASKED))
    assert {one.window_name for one in told} == {"Cats, of ann"}
    quoted = r'"My cat is a Siamese.*" \(User said this on [\d-]{10} in the chat "Cats, of ann"\)'
    assert re.search(quoted, spoken_prompt(weave, own))
    key = next(one.chunk.key for one in told if one.chunk.text == CAT)
    assert people("bob").windows.names()[people("bob").chunks.why(own, key).window] == "Cats, of ann"
    assert people("ann").windows.names()[cats] == "Cats"

    people("ann").people.unshare(cats, "bob")
    assert all(turn.window == own for turn in people("bob").windows.context(own).turns)
    with pytest.raises(UnknownChunk):
        people("bob").chunks.why(own, key)
    assert CAT not in {one.chunk.text for one in woken(talk(people("bob"), own, ASKED))}
    assert "of ann" not in spoken_prompt(weave, own)
    with pytest.raises(UnknownWindow):
        people("bob").windows.get(cats)


def test_what_somebody_shared_with_one_does_not_reach_others_through_their_window(weave, people):
    cats = window_of(people("cid"), "Cats")
    talk(people("cid"), cats, CAT)
    people("cid").people.share("", "ann")
    open_to_bob, apart = window_of(people("ann"), "Open"), window_of(people("ann"), "Apart")
    people("ann").people.share(open_to_bob, "bob")
    assert woken(talk(people("ann"), open_to_bob, ASKED)) == []
    assert CAT in {one.chunk.text for one in woken(talk(people("ann"), apart, ASKED))}


def test_reading_is_not_writing_and_writing_is_not_owning(weave, people):
    window = window_of(people("ann"), "Plans")
    talk(people("ann"), window, "We meet on Friday.")
    people("ann").people.share(window, "bob")
    assert [one.window.id for one in people("bob").windows.list()] == [window]
    turn = people("bob").windows.said(window).turns[0]
    with pytest.raises(NotYours):
        talk(people("bob"), window, "Me too.")
    for act in (people("bob").chunks.pin, people("bob").chunks.delete):
        with pytest.raises(NotYours):
            act(window, turn.chunks[0].key)
    with pytest.raises(NotYours):
        people("bob").turns.abort(window)
    own = window_of(people("bob"), "Own")
    for act in (people("bob").chunks.delete, lambda _, key: people("bob").library.forget(str(key))):
        with pytest.raises(NotYours):
            act(own, turn.chunks[0].key)  # by way of a window of his own
    people("ann").people.share(window, "bob", writes=True)
    assert not people("bob").turns.abort(window)  # nothing is being said
    assert talk(people("bob"), window, "Me too.")[-1]
    for act in (
        lambda: people("bob").windows.change(window, name="Mine"),
        lambda: people("bob").windows.delete(window),
        lambda: people("bob").turns.branch(window, turn.turn_id),
        lambda: people("bob").people.share(window, "cid"),
    ):
        with pytest.raises(NotYours):
            act()
    assert {one.window.id for one in people("bob").windows.list()} == {window, own}
    assert people("ann").memory.search("Me too")[0].record.chunk.text == "Me too."


def test_a_window_goes_on_only_from_what_is_its_owners(weave, people):
    window = window_of(people("ann"), "Plans")
    talk(people("ann"), window, "We meet on Friday.")
    people("ann").people.share(window, "bob", writes=True)
    turn = people("ann").windows.said(window).turns[0].turn_id
    own = window_of(people("bob"), "Own")
    with pytest.raises(BadInput, match="no turn"):
        list(people("bob").turns.steps(own, "And then?", after=turn))


def test_what_nobody_decided_about_cannot_be_asked_of_the_store(weave, people):
    store = people("ann").runtime.store
    for name in (
        "clear",
        "backup",
        "chunk_places",
        "drafts",
        "import_file",
        "people",
        "share",
        "search_terms",
    ):
        with pytest.raises(NotYours):
            getattr(store, name)()


def test_a_preset_of_version_0_2_sets_what_its_settings_are_called_now(weave):
    stored = {"Old": {"settings": {"keep_used": False, "top_k": 3}, "words": {"ai_name": "Ada"}}}
    weave.runtime.store.change_settings(PRESETS_KEY, stored, now=weave.now())
    window = weave.windows.create("one").id
    assert weave.presets.apply("Old", window).settings == {"protect_used": False, "top_k": 3}
    assert weave.windows.settings(window).protect_used is False


def test_settings_persona_presets_notes_and_memories_are_each_persons_own(weave, people):
    ann, bob = people("ann"), people("bob")
    ann.windows.change_settings({"temperature": 0.25})
    ann.presets.change_persona({"ai_name": "Ada"})
    ann.presets.save("Calm", {"temperature": 0.5})
    assert (ann.windows.settings().temperature, bob.windows.settings().temperature) == (0.25, 0.7)
    assert people("owner").windows.settings().temperature == 0.7
    window = ann.windows.create("Plans")
    assert (window.ai_name, bob.windows.create("Plans").ai_name) == ("Ada", "AI")
    assert people("ann").windows.settings(window.id).temperature == 0.25
    assert weave.windows.settings(window.id).temperature == 0.25  # whoever looks
    assert bob.presets.list() == []


def test_a_person_exports_their_own_memory_alone(weave, people):
    for name in ("ann", "bob", "owner"):
        window = window_of(people(name), f"Plans of {name}")
        talk(people(name), window, f"The word of {name}.")
    written: list[str] = []
    people("ann").memory.export(written.append, subset=ExportFilter(), vectors=False)
    told = "".join(written)
    assert "The word of ann." in told
    assert "bob" not in told
    assert "owner" not in json.loads(told)["windows"][0]
    assert "people" not in json.loads(told)


def test_each_person_has_tags_of_their_own_on_what_is_shared(weave, people):
    cats = window_of(people("ann"), "Cats")
    talk(people("ann"), cats, CAT)
    key = people("ann").windows.said(cats).turns[0].chunks[0].key
    people("ann").chunks.tag(cats, key, ["secret"])
    with pytest.raises(UnknownWindow):
        people("bob").chunks.tag(cats, key, ["mine"])
    own = window_of(people("bob"), "Own", recall_tags="mine")
    with pytest.raises(UnknownChunk):
        people("bob").chunks.tag(own, key, ["mine"])
    people("ann").people.share(cats, "bob")  # to read is enough
    people("bob").chunks.tag(cats, key, ["mine"])
    assert people("bob").chunks.why(cats, key).tags == ("mine",)
    assert [one.tag for one in people("bob").memory.tags()] == ["mine"]
    assert people("ann").chunks.why(cats, key).tags == ("secret",)
    assert people("bob").memory.search("Siamese", tag="secret") == []
    assert [one.record.key for one in people("bob").memory.search("Siamese", tag="mine")] == [key]
    assert [one.chunk.key for one in woken(talk(people("bob"), own, ASKED))] == [key]
    people("ann").people.unshare(cats, "bob")
    assert people("bob").memory.tags() == []
    assert people("bob").memory.search("Siamese", tag="mine") == []


def test_a_window_tells_who_shares_it_and_whether_one_may_write_there(weave, people):
    window = window_of(people("ann"), "Plans")
    for writes in (False, True):
        people("ann").people.share(window, "bob", writes=writes)
        (state,) = people("bob").windows.list()
        assert (state.owner, state.writable) == ("ann", writes)
    (state,) = people("ann").windows.list()
    assert (state.owner, state.writable) == ("", True)


def test_a_window_that_was_just_made_may_be_used_in_the_same_request(weave, people):
    bob = people("bob")
    made = window_of(bob, "New")
    state = bob.windows.state(made)
    assert (state.owner, state.writable) == ("", True)
    talk(bob, made, CAT)
    assert {found.record.window for found in bob.memory.search("Siamese")} == {made}
    assert [one.window.id for one in bob.windows.list()] == [made]


def test_in_a_window_that_several_write_in_it_is_known_whose_words_they_are(weave, people):
    trip = window_of(people("ann"), "Trip", timestamps=False)
    talk(people("ann"), trip, "We leave on Monday.")
    people("ann").people.share(trip, "bob", writes=True)
    heard = of(events.MessageStored, talk(people("bob"), trip, "I bring the tent."))
    assert [one.speaker for one in heard] == ["bob"]
    talk(people("ann"), trip, "And I the stove.")
    users = [turn for turn in weave.windows.said(trip).turns if turn.role == "user"]
    assert [turn.speaker for turn in users] == ["User", "bob", "ann"]
    assert [turn.speaker for turn in people("bob").windows.context(trip).turns][::2] == ["User", "bob", "ann"]
    talk(people("bob"), trip, "Who brings what?")
    prompt = spoken_prompt(weave, trip)
    for words in ("bob: I bring the tent.", "ann: And I the stove.", "bob: Who brings what?"):
        assert words in prompt
    assert "We leave on Monday." in prompt
    assert "User: We" not in prompt
    open_window = weave.runtime.window_for_reading(trip)
    assert open_window.working_set.annotation_tokens  # the names are counted
    people("ann").people.unshare(trip, "bob")
    talk(people("ann"), trip, "Alone again.")
    assert "ann: Alone again." not in spoken_prompt(weave, trip)
    assert "bob: I bring the tent." in spoken_prompt(weave, trip)  # what was said by whom stays so


def test_a_window_with_one_writer_names_nobody(weave, people):
    own = window_of(people("ann"), "Own", timestamps=False)
    people("ann").people.share(own, "bob")
    talk(people("ann"), own, CAT)
    assert [turn.speaker for turn in weave.windows.said(own).turns] == ["User", "AI"]
    assert "ann:" not in spoken_prompt(weave, own)
    other = window_of(people("owner"), "Of the owner", timestamps=False)
    talk(people("owner"), other, CAT)
    assert "owner:" not in spoken_prompt(weave, other)


def test_whose_words_they_are_goes_along_in_an_export(weave, people, assembled):
    trip = window_of(people("ann"), "Trip")
    people("ann").people.share(trip, "bob", writes=True)
    talk(people("bob"), trip, "I bring the tent.")
    written: list[str] = []
    weave.runtime.store.export(written.append, now=weave.now())
    turns = json.loads("".join(written))["turns"]
    assert [turn["speaker"] for turn in turns] == ["bob", "AI"]
