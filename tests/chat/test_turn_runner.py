"""Turns in threads of their own: what is told of them, what a single one may change, and how deep they are."""

import threading

import numpy as np
import pytest

from halo_weave.chat import events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, BadSetting, EngineError, UnknownWindow
from halo_weave.store.records import Draft
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, lived, of, spoken
from tests.chat.test_turn import FACT, chatter
from tests.fakes.scripted_engine import ScriptedEngine


def said(weave, window, text, **more):
    """A turn through the hub, as the skins follow it."""
    begun = weave.turns.send_message(window, text, **more).result(30)
    return list(weave.turns.follow(window, begun.last_event))


def test_a_turn_is_followed_from_its_first_event_to_its_last(assembled):
    weave = assembled(ScriptedEngine(["Nice to meet you."]))
    window = weave.windows.create("one", settings=SMALL).id
    told = said(weave, window, "Hello there.")
    assert isinstance(told[0], events.SearchStarted)
    assert isinstance(told[-1], events.TurnEnded)
    assert "".join(event.text for event in of(events.TokenGenerated, told)) == "Nice to meet you."
    assert weave.turns.last_stats(window) == told[-1].stats
    assert said(weave, window, "And again.")[-1].reason == "eos"  # at once: the window is free


def test_a_character_in_several_tokens_is_told_by_the_last_of_them(assembled):
    weave = assembled(ScriptedEngine(["A 🐈 sat."]))
    window = weave.windows.create("one", settings=SMALL).id
    tokens = of(events.TokenGenerated, said(weave, window, "What sat?"))
    assert "".join(event.text for event in tokens) == "A 🐈 sat."
    assert b"".join(event.piece for event in tokens).decode() == "A 🐈 sat."


def test_what_cannot_be_said_is_refused_before_anything_is_told(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    before = weave.turns.hub(window).last
    for place, text, error in ((window, " ", BadInput), ("nowhere", "Hello.", UnknownWindow)):
        with pytest.raises(error):
            weave.turns.send_message(place, text).result(30)
    assert weave.turns.hub(window).last == before


def test_a_turn_that_fails_says_so_to_those_who_follow(assembled):
    def broken():
        raise EngineError("The model stopped.")

    weave = assembled(ScriptedEngine(pause=broken))
    window = weave.windows.create("one", settings=SMALL).id
    assert said(weave, window, "Hello.")[-1] == events.TurnFailed("The model stopped.")


def test_sampling_of_one_turn_holds_for_that_turn_alone(assembled):
    weave = assembled(ScriptedEngine(answer=lambda prompt: "one two three four five six seven"))
    window = weave.windows.create("one", settings=SMALL).id
    short = said(weave, window, "Count.", sampling={"max_new_tokens": 3})
    assert (len(of(events.TokenGenerated, short)), short[-1].reason) == (3, "length")
    assert short[-1].budget.reserve == 3
    whole = said(weave, window, "Count.")
    assert (spoken(whole), whole[-1].reason) == ("one two three four five six seven", "eos")
    assert weave.windows.settings(window).max_new_tokens == SMALL["max_new_tokens"]


@pytest.mark.parametrize("sampling", [{"colour": 1}, {"max_context_tokens": 5}, {"temperature": -1}])
def test_only_sampling_can_be_set_for_one_turn(assembled, sampling):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    with pytest.raises(BadSetting):
        weave.turns.send_message(window, "Hello.", sampling=sampling).result(30)
    assert weave.windows.context(window).turns == ()


def test_a_stop_text_ends_the_reply_before_it(assembled):
    weave = assembled(ScriptedEngine(answer=lambda prompt: "Red, green, STOP and blue."))
    window = weave.windows.create("one", settings=SMALL).id
    told = said(weave, window, "Colours?", stop=("STOP", "never"))
    assert told[-1].reason == "stop"
    assert "green" in spoken(told)
    assert "blue" not in spoken(told)
    assert spoken(said(weave, window, "Colours?")).endswith("blue.")


def test_after_a_turn_its_events_have_told_all_that_the_context_shows(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    chatter(weave, window, 3)
    told = said(weave, window, "Hello.")
    context = weave.windows.context(window)
    assert told[-1].budget == context.budget
    # What fell asleep after the reply was in the last report; nothing did here.
    assert not of(events.ChunksPruned, told)
    assert np.array_equal(of(events.BrightnessChanged, told)[-1].brightness, context.brightness)
    question, answer = context.turns[-2:]
    heard, answered = of(events.MessageStored, told)[0], of(events.ReplyStored, told)[0]
    assert (heard.turn_id, heard.said, heard.speaker) == (question.turn_id, question.said, question.speaker)
    assert (answered.turn_id, answered.said, answered.speaker) == (
        answer.turn_id,
        answer.said,
        answer.speaker,
    )
    assert [one.brightness.tolist() for one in answered.chunks] == [
        one.brightness.tolist() for one in answer.chunks
    ]


def test_what_wakes_up_says_what_still_sleeps_before_it(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 0}).id
    chatter(weave, window, 4)
    list(weave.turns.steps(window, FACT))
    chunks = [one for turn in weave.windows.context(window).turns for one in turn.chunks]
    for one in chunks[2:9]:
        weave.chunks.prune(window, one.key)
    told = said(weave, window, "Where is the lighthouse key?")
    woken = {one.key: one for event in of(events.ChunksResurrected, told) for one in event.chunks}
    context = weave.windows.context(window)
    seen = {one.key: one for turn in context.turns for one in turn.chunks}
    assert chunks[8].key in woken
    assert context.gaps.whole.chunks == 7 - len(woken)
    for key, one in woken.items():
        assert (one.gap, one.pinned, one.resurrect_reason) == (
            seen[key].gap,
            seen[key].pinned,
            seen[key].resurrect_reason,
        )
    assert any(one.gap for one in woken.values())


# The working set between turns


def test_looking_again_loads_nothing_until_something_changes(assembled, monkeypatch, tmp_path):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, FACT))
    loads = []
    live = SqliteStore.live
    monkeypatch.setattr(SqliteStore, "live", lambda store, one: loads.append(one) or live(store, one))
    before = lived(weave, window)
    loaded = len(loads)
    weave.memory.preview(window, "Where is the key?")
    assert lived(weave, window) == before
    assert len(loads) == loaded
    key = weave.windows.context(window).turns[0].chunks[0].key
    with SqliteStore(tmp_path / "memory.sqlite") as other:  # as another process does
        other.pin(window, key, now=weave.now())
    assert weave.windows.context(window).turns[0].chunks[0].pinned
    assert weave.memory.preview(window, "Where?").plan is not None


def test_settings_and_names_that_change_are_seen_at_once(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    assert weave.windows.context(window).budget.reserve == 40
    weave.windows.change(window, settings={"max_new_tokens": 30})
    assert weave.windows.context(window).budget.reserve == 30


def test_a_killed_reply_is_cut_as_its_window_says(assembled):
    first = assembled()
    fine = first.windows.create(
        "fine", settings={**SMALL, "min_chunk_tokens": 4, "initial_brightness": 77}
    ).id
    text = "A few words to begin with.\n\nSome more words after them.\n\nAnd the la"
    ids = first.runtime.store.reserve(100)
    tokens, now = first.engine.tokenize(text), first.now()
    draft = Draft(fine, ids.assistant_turn, ids.start, None, tokens, "scripted", now, now)
    first.runtime.store.save_drafts([draft])
    with first.runtime.store._db.writing() as db:  # the process that wrote it is no more
        db.execute("UPDATE drafts SET owner = 'localhost-that-was 1 1', saved = 0")
    (turn,) = assembled().windows.context(fine).turns
    assert "".join(one.chunk.text for one in turn.chunks) == text
    assert len(turn.chunks) == 3
    assert {one.peak for one in turn.chunks} == {77}


def test_closing_ends_a_reply_in_its_middle_and_keeps_what_was_said(assembled):
    reached = threading.Event()
    engine = ScriptedEngine(["word " * 200], pause=reached.set)
    weave = assembled(engine)
    window = weave.windows.create("one", settings={**SMALL, "max_new_tokens": 300}).id
    weave.turns.send_message(window, "Go.").result(30)
    assert reached.wait(30)
    weave.close()
    (_, answer) = assembled().windows.context(window).turns
    assert answer.role is Role.ASSISTANT
    assert ("word " * 200).startswith("".join(one.chunk.text for one in answer.chunks))


def test_an_unknown_chunk_cannot_be_explained(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    with pytest.raises(BadInput):
        weave.chunks.why(window, ChunkKey(99, 0, Role.USER))


def test_who_waits_for_a_window_goes_on_when_the_window_is_free(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    waiting = threading.Thread(target=weave.turns.wait_until_free, args=(window, 30), daemon=True)
    with weave.runtime.exclusive(window):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(30)
    assert not waiting.is_alive()
    weave.turns.wait_until_free(window, 30)  # a free window is not waited for
