"""A window's budget: by itself it follows the model's context; small contexts and caches that cannot be cut."""

import pytest

from halo_weave.chat import events
from halo_weave.engines.base import Capabilities
from tests.chat.conftest import SMALL
from tests.chat.test_branches import say
from tests.fakes.scripted_engine import ScriptedEngine


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
    assert weave.windows.state(window).pruned_chunks


LONG = {"max_context_tokens": 400, "resurrection_budget": 0}


def _readings(weave, **settings):
    """Tokens that were kept and computed in each of 30 turns of a window that is over its budget from about the twelfth on."""
    window = weave.windows.create("long", settings={**SMALL, **LONG, **settings})
    read = []
    for number in range(30):
        for event in weave.turns.steps(window.id, f"Number {number} of nothing."):
            if isinstance(event, events.PrefillFinished):
                read.append((event.reused, event.computed))
    return read


def _anew(read):
    """How many turns had to read more than half of what is live."""
    return sum(computed > reused for reused, computed in read[12:])


def test_where_the_cache_cannot_be_cut_forgetting_goes_in_large_steps_so_that_most_turns_read_only_what_is_new(
    assembled,
):
    weave = assembled(ScriptedEngine(abilities=Capabilities(cuts=False)))
    by_default = _anew(_readings(weave))
    in_small_steps = _anew(_readings(weave, prune_to=1))
    assert by_default
    assert in_small_steps > 2 * by_default


def test_reading_all_anew_by_choice_forgets_in_large_steps_too(assembled):
    weave = assembled(ScriptedEngine())
    assert _anew(_readings(weave, kv_mode="exact")) < _anew(_readings(weave, kv_mode="exact", prune_to=1)) / 2


def test_where_the_cache_can_be_cut_forgetting_stops_at_the_budget(assembled):
    weave = assembled(ScriptedEngine())
    read = _readings(weave)
    assert _anew(read) == 0
    assert read == _readings(weave, prune_to=1)
    assert max(map(sum, read[12:])) < 1.2 * min(map(sum, read[12:]))
