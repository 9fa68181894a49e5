"""A reply that ended because of its length says so, also after a restart, and the room kept for a reply stays small."""

import pytest

from halo_weave.chat import events
from tests.chat.conftest import SMALL, of
from tests.chat.test_branches import finish, say
from tests.fakes.scripted_engine import ScriptedEngine

LONG = "One two three four five six seven eight."


def told(weave, window):
    """Whether the last turn is unfinished: in the context, and in what was said."""
    context = weave.windows.context(window).turns[-1].unfinished
    assert weave.windows.said(window).turns[-1].unfinished is context
    return context


def test_a_reply_of_the_longest_length_is_unfinished_until_it_is_continued(assembled):
    weave = assembled(ScriptedEngine([LONG, " Nine."]))
    window = weave.windows.create("one", settings=SMALL).id
    spoken = of(events.ReplyStored, say(weave, window, "Count.", sampling={"max_new_tokens": 3}))
    assert spoken[0].unfinished
    assert told(weave, window)
    weave.close()
    weave = assembled(ScriptedEngine([" Nine."]))
    assert told(weave, window)
    spoken = of(events.ReplyStored, finish(weave, window, weave.turns.continue_reply(window)))
    assert not spoken[0].unfinished
    assert not told(weave, window)


def test_a_finished_reply_is_not_unfinished(assembled):
    weave = assembled(ScriptedEngine([LONG]))
    window = weave.windows.create("one", settings=SMALL).id
    assert not of(events.ReplyStored, say(weave, window, "Count."))[0].unfinished
    assert not told(weave, window)


def test_an_unfinished_reply_of_a_model_with_native_tools_stays_in_the_context(assembled):
    weave = assembled(ScriptedEngine([LONG]))
    window = weave.windows.create("one", settings=SMALL | {"tools": "native"}).id
    say(weave, window, "Count.", sampling={"max_new_tokens": 3})
    assert told(weave, window)


@pytest.mark.parametrize(
    ("context", "most", "kept"), [(8192, 1024, 1024), (8192, 4000, 2048), (2048, 1024, 512)]
)
def test_the_room_kept_for_a_reply_is_at_most_a_quarter_of_the_context(assembled, context, most, kept):
    weave = assembled(ScriptedEngine([LONG], context=context))
    window = weave.windows.create("one", settings={"max_new_tokens": most, "max_context_tokens": 0}).id
    budget = weave.windows.context(window).budget
    assert budget.reserve == kept
    assert budget.free == context - kept - budget.used


def test_a_reply_longer_than_the_room_kept_for_it_goes_on_while_the_context_has_room(assembled):
    words = " ".join(["word"] * 80)
    engine = ScriptedEngine([words], context=256)
    weave = assembled(engine)
    settings = {"max_new_tokens": 200, "timestamps": False, "memory_tree_in_prompt": False, "tools": "off"}
    window = weave.windows.create("one", settings=settings).id
    ended = of(events.TurnEnded, say(weave, window, "Go."))[0]
    assert (ended.reason, ended.stats["tokens"]) == ("eos", len(engine.tokenize(words)))
    assert ended.stats["tokens"] > ended.budget.reserve
