"""A turn on an engine that cannot do everything."""

from halo_weave.engines.base import Capabilities
from tests.chat.conftest import SMALL, spoken
from tests.fakes.scripted_engine import ScriptedEngine


def test_rows_that_cannot_be_seen_are_no_faults(assembled):
    weave = assembled(ScriptedEngine(["Nice to meet you."], abilities=Capabilities(attention=False)))
    window = weave.windows.create("one", settings=SMALL)
    turn = list(weave.turns.steps(window.id, "Hello there."))
    assert spoken(turn) == "Nice to meet you."
    assert turn[-1].stats["faults"] == 0


def test_the_engine_keeps_nothing_of_a_deleted_chunk(assembled):
    engine = ScriptedEngine()
    weave = assembled(engine)
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, "The safe is behind the barometer."))
    (key, *_) = [chunk.key for chunk in weave.runtime.window_for_reading(window.id).working_set.chunks]
    weave.chunks.prune(window.id, key)
    list(weave.turns.steps(window.id, "Something else."))
    kept = engine.windows[window.id]
    said = set(engine.tokenize("The safe is behind the barometer.").ids.tolist())
    assert any(said <= set(run.ids.tolist()) for run in kept.asleep)
    weave.chunks.delete(window.id, key)
    assert not any(said & set(run.ids.tolist()) for run in kept.asleep)
