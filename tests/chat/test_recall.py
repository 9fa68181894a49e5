"""The turn, the preview and a search with a budget are one search and one plan; tags and windows limit all of them."""

import re
from contextlib import closing
from datetime import timedelta

import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import events
from halo_weave.chat.recall_plan import RecallOverrides
from halo_weave.core.tokens import Role
from tests.chat.conftest import SMALL, of
from tests.chat.test_windows import spoken_prompt

FACTS = (
    "Ada keeps a greyhound named Comet in the yard.",
    "The greyhound Comet won a race near Lisbon in May.",
    "Our tomatoes ripen on the balcony all summer.",
    "A violin teacher moved into the flat below us.",
)
QUESTION = "What do you know about the greyhound named Comet?"


@pytest.fixture
def weave(tmp_path):
    with closing(build_weave(Options(tmp_path, engine="scripted"))) as weave:
        yield weave


def tag(weave, window: str, *tags: str) -> None:
    weave.runtime.store.change_window(window, tags=tags, now=weave.now())


def said_in(weave, name, *, tags=(), texts=FACTS, **settings):
    window = weave.windows.create(name, settings={**SMALL, "max_context_tokens": 120, **settings})
    tag(weave, window.id, *tags)
    for text in texts:
        list(weave.turns.steps(window.id, text))
    weave.runtime.memory_search.settle(30)
    return window.id


def woken(turn) -> list:
    return [one.key for event in of(events.ChunksResurrected, turn) for one in event.chunks]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_turn_wakes_what_the_preview_and_the_search_foretell(weave, elsewhere):
    window = said_in(weave, "Dogs")
    if elsewhere:
        window = weave.windows.create("Other", settings=SMALL).id
    preview = weave.memory.preview(window, QUESTION)
    found, cost = weave.memory.would_resurrect(QUESTION, preview.plan.room, window_id=window)
    assert [one.record.key for one in found] == list(preview.plan.keys)
    assert cost == preview.plan.cost > 0
    turn = list(weave.turns.steps(window, QUESTION))
    assert woken(turn) == list(preview.plan.keys)
    assert of(events.ChunksResurrected, turn)[0].cost == cost


def test_an_answer_from_another_window_has_its_date_and_origin(weave):
    weave.engine.replies = ["A greyhound needs a soft bed, short walks in winter and a fenced garden."]
    said_in(weave, "Dogs", texts=["What does a greyhound need?"])
    other = weave.windows.create(
        "Other", settings={**SMALL, "timestamps": True, "resurrect_pairs": "off", "min_probability": 0}
    ).id
    chunks = [
        one
        for event in of(
            events.ChunksResurrected, list(weave.turns.steps(other, "What does a greyhound need?"))
        )
        for one in event.chunks
    ]
    answers = [one for one in chunks if one.chunk.key.role is Role.ASSISTANT]
    assert answers
    prompt = spoken_prompt(weave, other)
    for one in answers:
        assert one.window_name == "Dogs"
        assert f"{one.said:%Y}" in prompt
    assert re.search(r'" \(you answered this on [\d-]{10} in the chat "Dogs"\)', prompt)


def test_a_search_can_be_limited_to_windows_with_a_tag(weave):
    dogs, cats = said_in(weave, "Dogs", tags=["pets"]), said_in(weave, "Cats", tags=["pets", "home"])
    said_in(weave, "Work", tags=["job"])
    weave.windows.change_settings({"min_probability": 0})  # the hashing embedder knows no meaning
    for word, windows in (("pets", {dogs, cats}), ("home", {cats}), ("nothing", set())):
        found = weave.memory.search(QUESTION, tag=word)
        assert {one.record.window for one in found} == windows
        budgeted, _ = weave.memory.would_resurrect(QUESTION, 400, tag=word)
        assert {one.record.window for one in budgeted} <= windows
        assert bool(budgeted) == bool(windows)
    both = weave.memory.search(QUESTION, window_id=dogs, only_window=True, tag="home")
    assert both == []


def only_tagged(weave, window: str, text: str, *tags: str):
    """The chunk that says this has these tags."""
    key = next(one.record.key for one in weave.memory.search(text) if one.record.chunk.text == text)
    assert weave.chunks.tag(window, key, tags) == tuple(sorted(tags))
    return key


def foretold(weave, window: str) -> list:
    """What wakes up in a turn, which the preview and the search foretell."""
    preview = weave.memory.preview(window, QUESTION)
    found, _ = weave.memory.would_resurrect(QUESTION, preview.plan.room, window_id=window)
    keys = woken(list(weave.turns.steps(window, QUESTION)))
    assert keys == list(preview.plan.keys) == [one.record.key for one in found]
    return keys


def test_a_search_finds_a_chunk_by_its_own_tag(weave):
    dogs = said_in(weave, "Dogs")
    weave.windows.change_settings({"min_probability": 0})
    key = only_tagged(weave, dogs, FACTS[1], "race", "pets")
    assert [(one.record.key, one.tags) for one in weave.memory.search(QUESTION, tag="race")] == [
        (key, ("pets", "race"))
    ]
    assert [one.record.key for one in weave.memory.would_resurrect(QUESTION, 400, tag="race")[0]] == [key]
    assert weave.chunks.why(dogs, key).tags == ("pets", "race")
    tag(weave, dogs, "pets")
    assert [(one.tag, one.windows, one.chunks) for one in weave.memory.tags()] == [
        ("pets", 1, 1),
        ("race", 0, 1),
    ]
    weave.chunks.tag(dogs, key, [])
    assert weave.memory.search(QUESTION, tag="race") == []


def test_recall_is_limited_by_tags_of_chunks_and_windows(weave):
    dogs = said_in(weave, "Dogs")
    said_in(weave, "Work", texts=("At work the greyhound Comet is our mascot.",))
    key = only_tagged(weave, dogs, FACTS[1], "race")
    asking = weave.windows.create(
        "Asking", settings={**SMALL, "min_probability": 0, "recall_tags": "race, chess"}
    ).id
    assert foretold(weave, asking) == [key]
    sharing = weave.windows.create(
        "Sharing", settings={**SMALL, "min_probability": 0, "memory_scope": "tags"}
    ).id
    tag(weave, sharing, "race")
    assert foretold(weave, sharing) == [key]
    chess = weave.windows.create("Chess", settings={**SMALL, "recall_tags": "chess"}).id
    assert foretold(weave, chess) == []


@pytest.mark.parametrize("role", [Role.USER, Role.ASSISTANT])
def test_recall_is_limited_by_role_pairs_included(weave, role):
    weave.engine.replies = ["A greyhound needs a soft bed, short walks in winter and a fenced garden."]
    said_in(weave, "Dogs", texts=[FACTS[0] if role is Role.USER else "What does a greyhound need?"])
    asking = weave.windows.create(
        "Asking", settings={**SMALL, "recall_role": role.value, "min_probability": 0}
    ).id
    assert {key.role for key in foretold(weave, asking)} == {role}


def test_recall_is_limited_by_time(weave):
    said_in(weave, "Dogs")
    today = weave.now().astimezone().date()
    tomorrow = str(today + timedelta(days=1))
    for limits, wakes in (
        ({"recall_since": str(today)}, True),
        ({"recall_since": tomorrow}, False),
        ({"recall_before": tomorrow}, True),
        ({"recall_before": str(today)}, False),
        ({"recall_since": str(today), "recall_before": tomorrow}, True),
    ):
        asking = weave.windows.create("Asking", settings={**SMALL, **limits}).id
        preview = weave.memory.preview(asking, QUESTION)
        assert bool(preview.plan.chunks) == wakes, limits
        found, _ = weave.memory.would_resurrect(QUESTION, preview.plan.room, window_id=asking)
        assert [one.record.key for one in found] == list(preview.plan.keys)


def test_what_the_user_asks_for_wakes_up_whatever_the_limits(weave):
    said_in(weave, "Dogs")
    asking = weave.windows.create("Asking", settings={**SMALL, "recall_tags": "chess"}).id
    key = weave.memory.search(FACTS[1])[0].record.key
    wish = RecallOverrides(also=(key,))
    assert weave.memory.preview(asking, QUESTION, wish).plan.keys == (key,)


def test_a_window_can_recall_from_windows_that_share_a_tag(weave):
    dogs = said_in(weave, "Dogs", tags=["pets"])
    said_in(weave, "Work", tags=["job"], texts=("At work the greyhound Comet is our mascot.",))
    asking = weave.windows.create("Asking", settings={**SMALL, "memory_scope": "tags"}).id
    tag(weave, asking, "pets")
    preview = weave.memory.preview(asking, QUESTION)
    origin = {one.key: one.window for one in weave.runtime.store.chunks_by_key(preview.plan.keys)}
    assert set(origin.values()) == {dogs}
    keys = woken(list(weave.turns.steps(asking, QUESTION)))
    assert keys == list(preview.plan.keys)
    alone = weave.windows.create("Alone", settings={**SMALL, "memory_scope": "tags"}).id
    assert not weave.memory.preview(alone, QUESTION).plan.chunks


def test_a_correction_is_resurrected_in_place_of_what_it_corrects(weave):
    said_in(
        weave,
        "Work",
        texts=("The weekly meeting is on Wednesday at noon.", "The weekly meeting is on Friday now."),
    )
    other = weave.windows.create("Other", settings=SMALL).id
    list(weave.turns.steps(other, "When is the weekly meeting?"))
    prompt = spoken_prompt(weave, other)
    assert "Friday" in prompt
    assert "Wednesday" not in prompt


def test_a_correction_that_is_left_out_corrects_nothing(weave):
    texts = ("The weekly meeting is on Wednesday at noon.", "The weekly meeting is on Friday now.")
    said_in(weave, "Work", texts=texts)
    other = weave.windows.create("Other", settings=SMALL).id
    question = "When is the weekly meeting?"
    (correction,) = weave.memory.preview(other, question).plan.keys
    assert weave.runtime.store.chunk(correction).chunk.text == texts[1]
    plan = weave.memory.preview(other, question, RecallOverrides(without=frozenset({correction}))).plan
    assert [weave.runtime.store.chunk(key).chunk.text for key in plan.keys] == [texts[0]]


def test_what_do_you_remember_about_something_resurrects_what_was_said_about_it(weave):
    said_in(weave, "Dogs")
    other = weave.windows.create("Other", settings={**SMALL, "min_probability": 0.9}).id
    turn = list(weave.turns.steps(other, "What do you remember about our greyhound?"))
    assert woken(turn)
    assert "If I have not told you this" not in spoken_prompt(weave, other)
    assert not woken(list(weave.turns.steps(other, "The greyhound has fleas.")))


def test_only_a_question_about_an_own_fact_may_be_answered_with_not_knowing(weave):
    window = weave.windows.create("Talk", settings=SMALL).id
    note = "If I have not told you this"
    for text in (
        "What is the capital of Estonia?",
        "My cat is called Mochi.",
        "What should I cook for my sister?",
    ):
        list(weave.turns.steps(window, text))
        assert note not in spoken_prompt(weave, window), text
    list(weave.turns.steps(window, "How old is my wife?"))
    assert note in spoken_prompt(weave, window)
    said = [live.chunk for live in weave.runtime.store.live(window) if live.chunk.key.role is Role.USER]
    assert not any(note in chunk.text for chunk in said)
