"""Another model takes over: calibrated between turns, with the settings and the words of the windows as they were."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from halo_weave.chat import Weave, events
from halo_weave.chat.reply_storage import recover_drafts
from halo_weave.core.retrieval_heads import PENDING, Calibration, RetrievalHead
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.errors import BadInput, ModelLoading, ModelNotFound, WindowBusy
from halo_weave.store.records import Draft
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, WordRecall, of, spoken
from tests.engines.templates.samples import THINKS
from tests.fakes.scripted_engine import ScriptedEngine

NOW = datetime(2026, 5, 4, tzinfo=UTC)
FOUND = Calibration((RetrievalHead(0, 1, 0.5, 0.5, 1.0),), "Light comes from one head.")


class Shelf:
    """Opens what it is told to, and waits or fails where it is told to."""

    def __init__(self) -> None:
        self.next: list[ScriptedEngine | Exception] = []
        self.asked: list[str | None] = []
        self.remembered: list[str] = []
        self.hold = threading.Event()
        self.hold.set()

    def open(self, name, progress):
        self.asked.append(name)
        progress("Downloading", 1, 2)
        assert self.hold.wait(60)
        progress("Downloading", 2, 2)
        got = self.next.pop(0)
        if isinstance(got, Exception):
            raise got
        return got, None

    def calibrate(self, engine, progress):
        for done in range(3):
            progress("Finding out", done, 3)
        return FOUND


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def made(tmp_path, shelf):
    opened = []

    def make(engine):
        store = SqliteStore(tmp_path / "memory.sqlite")
        weave = Weave(
            engine,
            store,
            WordRecall(store),
            open_model=shelf.open,
            calibrate=shelf.calibrate,
            remember_model=shelf.remembered.append,
        )
        opened.append(weave)
        return weave

    yield make
    for weave in opened:
        weave.close()


def silent(what, done, total):
    pass


def test_the_new_model_speaks_is_calibrated_and_remembered(made, shelf):
    old, new = ScriptedEngine(["Old."]), ScriptedEngine(["New."])
    weave = made(old)
    window = weave.windows.create("one", settings=SMALL).id
    assert spoken(list(weave.turns.steps(window, "Who?"))) == "Old."
    shelf.next = [new]
    weave.models.change("another", silent)
    assert old.closed
    assert shelf.remembered == ["another"]
    assert spoken(list(weave.turns.steps(window, "And now?"))) == "New."
    weave.models._calibrations[-1].join(60)
    assert weave.models.state().light == FOUND.sentence
    assert weave.memory.status().calibration == FOUND
    weave.turns.send_message(window, "Once more.").result()
    assert weave.runtime.busy_windows.get(window) is None or weave.runtime.calibration is FOUND


def test_calibrating_waits_while_a_reply_is_written(made, shelf):
    slow = threading.Event()
    weave = made(ScriptedEngine())
    window = weave.windows.create("one", settings=SMALL).id
    reached, go_on = threading.Event(), threading.Event()

    def calibrate(engine, progress):
        reached.set()
        go_on.wait(60)
        progress("Finding out", 0, 1)
        slow.set()
        return FOUND

    weave.models._make_calibration = calibrate
    busy = threading.Event()
    shelf.next = [ScriptedEngine(["One two three."], pause=lambda: busy.wait(60))]
    weave.models.change("another", silent)
    assert reached.wait(60)
    begun = weave.turns.send_message(window, "Count.").result()
    go_on.set()
    assert not slow.wait(0.5)
    assert weave.models.state().light == PENDING.sentence
    busy.set()
    list(weave.turns.follow(window, begun.last_event))
    assert slow.wait(60)
    weave.models._calibrations[-1].join(60)
    assert weave.models.state().light == FOUND.sentence


@pytest.mark.parametrize("error", [ModelNotFound("It is gone."), ZeroDivisionError("a defect")])
def test_a_failure_leaves_the_old_model_and_what_was_remembered(made, shelf, error, caplog):
    weave = made(ScriptedEngine(["Still here."]))
    window = weave.windows.create("one", settings=SMALL).id
    shelf.next = [error]
    with pytest.raises(Exception, match=r"It is gone|Something went wrong"):
        weave.models.change("another", silent)
    assert weave.models.state().change.state == "failed"
    assert shelf.remembered == []
    assert spoken(list(weave.turns.steps(window, "Well?"))) == "Still here."


def test_only_one_model_is_on_its_way_and_it_can_be_left(made, shelf):
    weave = made(ScriptedEngine(["Still here."]))
    window = weave.windows.create("one", settings=SMALL).id
    shelf.hold.clear()
    late = ScriptedEngine()
    shelf.next = [late]
    thread = weave.models.choose("first")
    with pytest.raises(WindowBusy, match="first is on its way"):
        weave.models.choose("second")
    assert weave.models.stop()
    shelf.hold.set()
    thread.join(60)
    assert weave.models.state().change.state == "stopped"
    assert not weave.models.stop()
    assert spoken(list(weave.turns.steps(window, "Well?"))) == "Still here."


def test_without_a_model_there_is_nobody_to_speak_until_one_is_loaded(made, shelf, tmp_path):
    weave = made(NoModelEngine(tmp_path))
    window = weave.windows.create("one", settings=SMALL).id
    with pytest.raises(ModelLoading):
        weave.turns.send_message(window, "Hello?").result(60)
    assert weave.windows.context(window).turns == ()
    shelf.next = [ModelNotFound("There is none.")]
    weave.models.load()
    assert weave.models.state().state == "missing"
    with pytest.raises(ModelNotFound, match="There is none"):
        weave.turns.send_message(window, "Hello?").result(60)
    assert weave.memory.preview(window, "Hello?").plan.chunks == ()
    shelf.next = [ScriptedEngine(["Here."])]
    weave.models.load()
    assert shelf.asked == [None, None]
    assert shelf.remembered == [], "only a choice is remembered"
    assert spoken(list(weave.turns.steps(window, "Hello?"))) == "Here."
    weave.models.load()
    assert len(shelf.asked) == 2


def test_what_a_killed_process_left_waits_for_a_model_that_can_read_it(made, shelf, tmp_path):
    weave = made(NoModelEngine(tmp_path))
    store = weave.runtime.store
    window = weave.windows.create("one", settings={**SMALL, "tools": "off"}).id
    ids = store.reserve(400)
    tokens = ScriptedEngine().tokenize("<think>\nHm.</think>\n\nYes.")
    store.save_drafts([Draft(window, ids.assistant_turn, ids.start, None, tokens, "scripted", NOW, NOW)])
    recover_drafts(weave.runtime, held=window)
    assert not store.turn(ids.assistant_turn)
    shelf.next = [ScriptedEngine(template=THINKS)]
    weave.models.load()
    recover_drafts(weave.runtime, held=window)
    found = {one.tags: one.chunk.text.strip() for one in store.turn(ids.assistant_turn)}
    assert found == {("cut", "thought"): "Hm.", ("cut",): "Yes."}


def test_a_turn_that_begins_in_the_middle_of_a_change_waits_for_it(made, shelf):
    weave = made(ScriptedEngine(["One two three four five."], pause=lambda: held.wait(60)))
    held = threading.Event()
    window, other = (weave.windows.create(name, settings=SMALL).id for name in ("one", "two"))
    weave.turns.send_message(window, "Count.").result(60)
    shelf.next = [ScriptedEngine(["New."])]
    thread = weave.models.choose("another")
    while weave.runtime.accepting_turns.is_set():
        assert thread.is_alive()
    with pytest.raises(WindowBusy, match="being changed"):
        weave.windows.delete(other)
    later = []
    asking = threading.Thread(target=lambda: later.extend(weave.turns.steps(other, "And me?")))
    asking.start()
    held.set()
    asking.join(60)
    thread.join(60)
    assert spoken(later) == "New."
    assert weave.models.state().change.state in ("done", "calibrating", "calibrated")


def test_those_who_watch_are_told_and_keep_only_the_last_of_it(made, shelf):
    weave = made(ScriptedEngine())
    window = weave.windows.create("one", settings=SMALL).id
    hub = weave.turns.hub(window)
    before = hub.place(hub.last)
    shelf.next = [ScriptedEngine()]
    weave.models.change("another", silent)
    weave.models._calibrations[-1].join(60)
    told = [one.event for one in hub.since(before)[0]]
    assert [one.state for one in of(events.ModelChange, told)] == [
        "loading",
        "done",
        "calibrating",
        "calibrated",
    ]
    assert of(events.WindowChanged, told)


def test_a_system_without_models_to_open_says_so(assembled):
    with pytest.raises(BadInput, match="cannot be changed here"):
        assembled().models.change("another", silent)
