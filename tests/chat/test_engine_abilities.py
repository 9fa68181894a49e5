"""A turn on an engine that cannot do everything."""

from halo_weave.chat import events
from halo_weave.engines.base import Capabilities
from halo_weave.engines.scripted import ScriptedEngine
from tests.chat.conftest import SMALL, spoken


def test_rows_that_cannot_be_seen_are_no_faults(assembled):
    weave = assembled(ScriptedEngine(["Nice to meet you."], abilities=Capabilities(attention=False)))
    window = weave.windows.create("one", settings=SMALL)
    turn = list(weave.turns.steps(window.id, "Hello there."))
    assert spoken(turn) == "Nice to meet you."
    assert turn[-1].stats["faults"] == 0


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


def test_the_engine_keeps_nothing_of_a_deleted_chunk(assembled):
    engine = ScriptedEngine()
    weave = assembled(engine)
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, "The safe is behind the barometer."))
    (key, *_) = [chunk.key for chunk in weave._system.open_window(window.id).window.chunks]
    weave.chunks.sleep(window.id, key)
    list(weave.turns.steps(window.id, "Something else."))
    kept = engine.windows[window.id]
    said = set(engine.tokenize("The safe is behind the barometer.").ids.tolist())
    assert any(said <= set(run.ids.tolist()) for run in kept.asleep)
    weave.chunks.delete(window.id, key)
    assert not any(said & set(run.ids.tolist()) for run in kept.asleep)
