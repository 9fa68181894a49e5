"""A turn on an engine that cannot do everything."""

from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.ports import Abilities
from tests.weave.conftest import SMALL, spoken


def test_rows_that_cannot_be_seen_are_no_faults(assembled):
    weave = assembled(ScriptedEngine(["Nice to meet you."], abilities=Abilities(attention=False)))
    window = weave.windows.create("one", settings=SMALL)
    turn = list(weave.turns.steps(window.id, "Hello there."))
    assert spoken(turn) == "Nice to meet you."
    assert turn[-1].stats["faults"] == 0
