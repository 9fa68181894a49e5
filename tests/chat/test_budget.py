"""A window's budget: by itself it follows the context of the model that answers there; a chosen number holds."""

import pytest

from halo_weave.engines.scripted import ScriptedEngine
from tests.chat.test_branches import say


def budget(weave, window):
    told = weave.windows.context(window).budget.max_context_tokens
    assert weave.windows.state(window).effective.max_context_tokens == told
    return told


def test_the_budget_follows_the_context_of_the_model(assembled):
    weave = assembled(ScriptedEngine(context=8192))
    window = weave.windows.create("one").id
    assert budget(weave, window) == 6656
    assert weave.windows.automatic() == {"max_context_tokens": 6656}
    weave.windows.change(window, settings={"max_context_tokens": 700})
    assert budget(weave, window) == 700
    weave.windows.change(window, settings={"max_context_tokens": None})
    assert budget(weave, window) == 6656
    weave.close()
    assert budget(assembled(ScriptedEngine(context=2048)), window) == 1280


@pytest.mark.parametrize("context", [400, 1024])
def test_a_conversation_goes_on_in_a_small_context(assembled, context):
    words = "The lighthouse keeper counted ships and wrote their names down. " * 3
    weave = assembled(ScriptedEngine([words] * 12, context=context))
    settings = {"timestamps": False, "tools": "off", "min_chunk_tokens": 8}
    window = weave.windows.create("one", settings=settings).id
    for number in range(12):
        ended = say(weave, window, f"Tell me about ship {number}.")[-1]
        assert ended.reason == "eos"
        assert ended.budget.used <= ended.budget.max_context_tokens
    assert weave.windows.state(window).asleep_chunks
