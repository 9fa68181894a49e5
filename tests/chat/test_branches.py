"""Branches of a window: answered again, gone on with, said another way; what was left leaves the context and recall."""

import signal
import subprocess
import sys
import threading

import pytest

from halo_weave.chat import events
from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput, EngineError
from tests.chat.conftest import SMALL, of, spoken
from tests.fakes.scripted_engine import ScriptedEngine


def finish(weave, window, future):
    return list(weave.turns.follow(window, future.result(30).last_event))


def say(weave, window, text, **more):
    return finish(weave, window, weave.turns.send_message(window, text, **more))


def shown(weave, window):
    return ["".join(one.chunk.text for one in turn.chunks) for turn in weave.windows.context(window).turns]


def found(weave, text):
    return [one.record.chunk.text for one in weave.memory.search(text)]


@pytest.fixture
def talk(assembled):
    """Two exchanges with canned answers; more answers wait."""
    engine = ScriptedEngine(["I like Mochi.", "Mochi can nap.", "Mochi can purr.", "Mochi can jump."])
    weave = assembled(engine)
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "My cat is called Mochi.")
    say(weave, window, "What does she do?")
    return weave, window


def test_another_answer_takes_the_place_of_the_former_one(talk):
    weave, window = talk
    told = finish(weave, window, weave.turns.regenerate(window))
    assert isinstance(told[0], events.WindowChanged)
    assert not of(events.MessageStored, told)
    (answering,) = of(events.RegenerationStarted, told)
    assert shown(weave, window)[-2:] == ["What does she do?", "Mochi can purr."]
    assert not found(weave, "nap")
    last = weave.windows.context(window).turns[-1]
    assert (last.turn_id, last.siblings, last.sibling) == (answering.reply_turn, 2, 2)
    assert [one.text for one in weave.turns.siblings(window, last.turn_id)] == [
        "Mochi can nap.",
        "Mochi can purr.",
    ]
    assert [one.current for one in weave.turns.siblings(window, last.turn_id)] == [False, True]


def test_the_former_answer_comes_back_with_its_branch(talk):
    weave, window = talk
    former = weave.windows.context(window).turns[-1].turn_id
    finish(weave, window, weave.turns.regenerate(window))
    before = weave.turns.hub(window).last
    assert weave.turns.switch(window, former).id == former
    assert shown(weave, window)[-1] == "Mochi can nap."
    assert found(weave, "nap")
    assert not found(weave, "purr")
    assert isinstance(next(iter(weave.turns.hub(window).follow(before))).event, events.WindowChanged)


def test_words_that_are_said_another_way_set_aside_what_followed(talk):
    weave, window = talk
    first = weave.windows.context(window).turns[0].turn_id
    told = finish(weave, window, weave.turns.edit(window, first, "My dog is called Rex."))
    assert of(events.MessageStored, told)
    assert shown(weave, window) == ["My dog is called Rex.", "Mochi can purr."]
    assert not found(weave, "cat")
    assert weave.turns.switch(window, first).role is Role.ASSISTANT
    assert shown(weave, window) == [
        "My cat is called Mochi.",
        "I like Mochi.",
        "What does she do?",
        "Mochi can nap.",
    ]


def test_what_was_left_does_not_wake_up_for_the_new_words(talk):
    weave, window = talk
    question = weave.windows.context(window).turns[2].turn_id
    weave.chunks.prune(window, weave.windows.context(window).turns[2].chunks[0].key)
    told = finish(weave, window, weave.turns.edit(window, question, "What does she do at night?"))
    assert not of(events.ChunksResurrected, told)
    assert "What does she do?" not in shown(weave, window)


def test_a_reply_that_is_said_another_way_is_not_answered(talk):
    weave, window = talk
    last = weave.windows.context(window).turns[-1].turn_id
    assert weave.turns.edit(window, last, "Mochi can hunt.") is None
    assert shown(weave, window)[-2:] == ["What does she do?", "Mochi can hunt."]
    assert found(weave, "hunt")
    assert not found(weave, "nap")
    assert spoken(say(weave, window, "Really?")) == "Mochi can purr."


def test_a_reply_goes_on_where_it_ended(assembled):
    weave = assembled(ScriptedEngine(["One two three.", " Four five."]))
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "Count.", sampling={"max_new_tokens": 2})
    cut = shown(weave, window)[-1]
    assert cut
    assert cut != "One two three."
    told = finish(weave, window, weave.turns.continue_reply(window))
    assert spoken(told).startswith(cut)
    assert spoken(told).endswith(" Four five.")
    assert shown(weave, window) == ["Count.", cut + " Four five."]
    last = weave.windows.context(window).turns[-1]
    assert (last.siblings, last.sibling) == (2, 2)


@pytest.mark.parametrize("more", ["", "  \n"])
def test_a_reply_that_ended_by_itself_stays_as_it_is_when_the_model_has_nothing_to_add(assembled, more):
    weave = assembled(ScriptedEngine(["I like Mochi.", "Mochi can nap.", more, more]))
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "My cat is called Mochi.")
    say(weave, window, "What does she do?")
    before = weave.windows.context(window)
    for _ in range(2):
        told = finish(weave, window, weave.turns.continue_reply(window))
        (ended,) = of(events.TurnEnded, told)
        assert ended.stats["nothing_added"] is True
        assert shown(weave, window)[-1] == "Mochi can nap."
        last = weave.windows.context(window).turns[-1]
        assert (last.turn_id, last.siblings) == (before.turns[-1].turn_id, 1)
    assert weave.windows.context(window).budget.used == before.budget.used
    assert found(weave, "nap")
    assert weave.runtime.store.verify() == []


def test_a_window_is_within_its_budget_when_the_model_had_nothing_to_add(assembled):
    weave = assembled(ScriptedEngine())
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "The copper kettle leaks, " + "and it drips on the stove. " * 6)
    for number in range(6):
        say(weave, window, f"Let us speak of weather number {number}, which is cold and wet and grey.")
    say(weave, window, "What of the copper kettle?")
    weave.engine.replies.append("")
    finish(weave, window, weave.turns.continue_reply(window))
    seen = weave.windows.context(window)
    assert seen.budget.used <= 300
    assert shown(weave, window)[-2] == "What of the copper kettle?"
    assert shown(weave, window)[-1]


def test_a_reply_that_should_go_on_and_is_stopped_stays_as_it_is(assembled):
    weave = assembled(ScriptedEngine(["One two three."]))
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "Count.")

    def broken():
        raise EngineError("The model stopped.")

    weave.engine.pause = broken
    told = finish(weave, window, weave.turns.continue_reply(window))
    assert isinstance(told[-1], events.TurnFailed)
    last = weave.windows.context(window).turns[-1]
    assert (shown(weave, window)[-1], last.siblings) == ("One two three.", 1)


def test_words_without_a_reply_are_answered(assembled):
    def broken():
        raise EngineError("The model stopped.")

    weave = assembled(ScriptedEngine(pause=broken))
    window = weave.windows.create("one", settings=SMALL).id
    say(weave, window, "Hello.")
    weave.close()
    weave = assembled(ScriptedEngine(["Here I am."]))
    assert shown(weave, window) == ["Hello."]
    finish(weave, window, weave.turns.regenerate(window))
    assert shown(weave, window) == ["Hello.", "Here I am."]


def test_an_older_question_is_answered_again_also_when_it_sleeps(talk):
    weave, window = talk
    first = weave.windows.context(window).turns[0]
    weave.chunks.prune(window, first.chunks[0].key)
    finish(weave, window, weave.turns.regenerate(window, first.turn_id))
    assert shown(weave, window) == ["My cat is called Mochi.", "Mochi can purr."]


def test_an_answer_that_never_came_leaves_the_former_one(talk):
    weave, window = talk

    def broken():
        raise EngineError("The model stopped.")

    weave.engine.pause = broken
    told = finish(weave, window, weave.turns.regenerate(window))
    assert isinstance(told[-1], events.TurnFailed)
    assert shown(weave, window)[-1] == "Mochi can nap."
    assert found(weave, "nap")


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.fakes.scripted_engine import ScriptedEngine
from halo_weave.store.sqlite import SqliteStore
from halo_weave.chat import Weave, events
from tests.chat.conftest import WordRecall

store = SqliteStore(Path(sys.argv[1]) / "memory.sqlite")
weave = Weave(ScriptedEngine(["Cats climb up the tree and down the tree again."]), store, WordRecall(store))
begun = weave.turns.regenerate(sys.argv[2]).result(30)
said = 0
for event in weave.turns.follow(sys.argv[2], begun.last_event):
    said += isinstance(event, events.TokenGenerated)
    if said == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 4])
def test_a_process_killed_while_it_answers_again_leaves_one_answer_or_the_other(
    talk, assembled, tmp_path, tokens
):
    weave, window = talk
    weave.close()
    script = KILLED if tokens else KILLED.replace(".result(30)", "; os.kill(os.getpid(), signal.SIGKILL)")
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), window, str(tokens)], check=False)
    assert ended.returncode == -signal.SIGKILL
    weave = assembled()
    last = shown(weave, window)[-1]
    if tokens:
        assert "Cats climb up the tree and down the tree again.".startswith(last)
    else:
        assert last == "Mochi can nap."
    assert len(shown(weave, window)) == 4
    assert weave.runtime.store.verify() == []


def test_a_window_branches_off_and_both_go_on(talk):
    weave, window = talk
    second = weave.windows.context(window).turns[1].turn_id
    made = weave.turns.branch(window, second, "another way")
    assert shown(weave, made.id) == ["My cat is called Mochi.", "I like Mochi."]
    say(weave, made.id, "And the dog?")
    assert shown(weave, made.id)[2:] == ["And the dog?", "Mochi can purr."]
    assert shown(weave, window)[2:] == ["What does she do?", "Mochi can nap."]
    weave.turns.rewind(window, second)
    assert shown(weave, window) == ["My cat is called Mochi.", "I like Mochi."]
    assert shown(weave, made.id)[2:] == ["And the dog?", "Mochi can purr."]


def test_turns_from_elsewhere_become_part_of_the_window(talk):
    weave, window = talk
    added = weave.turns.add(window, [(Role.USER, "A question."), (Role.ASSISTANT, "An answer.")])
    assert [turn.answers for turn in added] == [None, added[0].id]
    assert shown(weave, window)[-2:] == ["A question.", "An answer."]


@pytest.mark.parametrize("act", ["regenerate", "continue_reply"])
def test_there_is_nothing_to_answer_in_an_empty_window(assembled, act):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    with pytest.raises(BadInput):
        getattr(weave.turns, act)(window).result(30)


def test_a_window_at_work_cannot_be_switched(assembled):
    go_on = threading.Event()
    weave = assembled(ScriptedEngine(["One two three."], pause=lambda: go_on.wait(30)))
    window = weave.windows.create("one", settings=SMALL).id
    begun = weave.turns.send_message(window, "Hello.").result(30)
    with pytest.raises(BadInput):
        weave.turns.rewind(window, begun.first_event.turn_id)
    go_on.set()
    list(weave.turns.follow(window, begun.last_event))


def test_a_branch_that_keeps_to_itself_recalls_what_led_up_to_it_and_nothing_after(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "memory_scope": "window"}).id
    say(weave, window, "The copper kettle leaks.")
    for number in range(12):
        say(weave, window, f"Let us speak of weather number {number}.")
    last = weave.windows.get(window).head
    branch = weave.turns.branch(window, last).id
    say(weave, window, "The silver kettle whistles.")
    elsewhere = weave.windows.create("other", settings=SMALL).id
    say(weave, elsewhere, "A kettle of iron is heavy.")
    assert "The copper kettle leaks." not in shown(weave, branch)
    (woken,) = of(events.ChunksResurrected, say(weave, branch, "What of the kettle?"))
    texts = [one.chunk.text for one in woken.chunks]
    assert "The copper kettle leaks." in texts
    assert not [text for text in texts if "silver" in text or "iron" in text]
