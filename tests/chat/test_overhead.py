"""What is declared or explained to the model beside system prompt, chunks and frames is counted for each turn."""

import pytest

from halo_weave.chat import events
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, of

FACT = "The heron Gerda stands in the reeds behind the old mill."


@pytest.fixture
def weave(assembled, tmp_path):
    store = SqliteStore(tmp_path / "memory.sqlite")
    return assembled(toolbox=Toolbox(Notes(store), StructuredMemory(store)))


def ended(weave, text, window=None, **settings):
    window = window or weave.windows.create("new", settings=SMALL | {"tools": "off"} | settings).id
    turn = list(weave.turns.steps(window, text))
    return turn, of(events.TurnEnded, turn)[0].stats


def test_a_plain_message_has_no_overhead(weave):
    _, stats = ended(weave, "Hello there.")
    assert stats["overhead"] == 0


def test_tools_and_the_overview_of_the_memory_are_overhead(weave):
    declared, plain = (ended(weave, "Hello there.", tools=how)[1] for how in ("tags", "off"))
    assert declared["overhead"] >= len(weave.engine.tokenize(weave.runtime.toolbox.instructions())) > 100
    assert declared["overhead"] == declared["computed"] - plain["computed"]


def test_the_day_and_the_origin_of_a_quotation_are_overhead(weave):
    ended(weave, FACT, timestamps=False)
    asked, quoted = ended(weave, "Where does the heron Gerda stand?", timestamps=False)
    assert of(events.ChunksResurrected, asked)
    _, dated = ended(weave, "Where does the heron Gerda stand?", timestamps=True)
    assert 0 < quoted["overhead"] < dated["overhead"] < 60
