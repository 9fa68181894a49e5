"""While nobody waits, the model reads chunks that have no cells on disk yet; a request ends that at once."""

import io
import json
import threading
from pathlib import Path

import pytest

from halo_weave.chat import events, idle_reading
from halo_weave.chat.idle_reading import IdleReader, linux_on_battery
from halo_weave.engines.base import Capabilities
from tests.chat.conftest import SMALL, of
from tests.fakes.scripted_engine import ScriptedEngine

FACT = (
    "The heron Gerda stands in the reeds behind the old mill, beside a boat that nobody has rowed for years."
)
ASKED = "Where does the heron Gerda stand?"
PLAIN = SMALL | {"tools": "off"}


@pytest.fixture(autouse=True)
def mains(monkeypatch):
    monkeypatch.setattr(idle_reading, "on_battery", lambda: False)


@pytest.fixture
def weave(assembled):
    return assembled()


def import_chats(weave, **chats):
    """Each chat is one question with an answer, in the form of ChatGPT's export."""
    exported = []
    for number, (title, (asked, answered)) in enumerate(chats.items()):
        nodes = {"root": {"id": "root", "message": None, "parent": None, "children": ["u"]}}
        for id, parent, role, text in (("u", "root", "user", asked), ("a", "u", "assistant", answered)):
            nodes[parent]["children"] = [id]
            message = {
                "id": id,
                "author": {"role": role},
                "create_time": 1_700_000_000 + 10_000 * number,
                "content": {"content_type": "text", "parts": [text]},
            }
            nodes[id] = {"id": id, "message": message, "parent": parent, "children": []}
        exported.append(
            {
                "title": title,
                "create_time": 1_700_000_000 + 10_000 * number,
                "conversation_id": title,
                "current_node": "a",
                "mapping": nodes,
            }
        )
    weave.memory.import_file(io.BytesIO(json.dumps(exported).encode()))


def read_all(weave):
    """All that idle time would read, and why it ended."""
    for _ in range(1000):
        state = weave.idle_reader.read_slice()
        if state != "reading":
            return state
    raise AssertionError("it never ends")


def read_windows(weave):
    """The names of the windows whose chunks were read, in this order."""
    names = weave.runtime.store.window_names()
    return [names[window] for window, _, _ in weave.engine.saved]


def recalled(weave, text=ASKED, **settings):
    """How the prompt is read for which something is resurrected."""
    window = weave.windows.create("new", settings=PLAIN | settings).id
    turn = list(weave.turns.steps(window, text))
    assert of(events.ChunksResurrected, turn)
    (prefill,) = of(events.PrefillFinished, turn)
    return prefill


def test_a_chunk_of_an_import_is_restored_after_idle_time_and_computed_without(weave):
    import_chats(weave, birds=(FACT, "How nice."))
    size = len(weave.engine.tokenize(FACT))
    before = recalled(weave)
    assert (before.restored, before.computed > size) == (0, True)
    assert read_all(weave) == "done"
    after = recalled(weave)
    assert after.restored == size
    assert after.computed <= before.computed - size


def test_a_chunk_of_a_document_is_restored_after_idle_time(weave):
    window = weave.windows.create("mail", settings=PLAIN).id
    file = weave.documents.read("birds.txt", FACT.encode())
    begun = weave.turns.send_message(window, "Keep this file.", documents=(file,)).result()
    list(weave.turns.follow(window, begun.last_event))
    weave.engine.forget(window)
    assert read_all(weave) == "done"
    assert recalled(weave).restored >= len(weave.engine.tokenize(FACT)) - 8


def test_what_was_resurrected_most_often_is_read_first_and_then_what_was_said_last(weave, monkeypatch):
    import_chats(
        weave,
        first=("The violin hangs on the northern wall of the attic.", "I see."),
        often=(FACT, "How nice."),
        last=("The lighthouse has a red lamp and a green door.", "Good."),
    )
    for _ in range(2):
        recalled(weave)
    assert read_all(weave) == "done"
    read = [name for name in read_windows(weave) if name != "new"]
    assert read == ["often", "last", "first"]


def test_another_model_reads_the_memory_again(assembled):
    weave = assembled()
    import_chats(weave, birds=(FACT, "How nice."))
    assert read_all(weave) == "done"
    other = ScriptedEngine()
    weave.runtime.change_engine(other, weave.calibration, stop_replies=lambda: None)
    assert read_all(weave) == "done"
    assert other.saved


def test_the_progress_counts_tokens_that_have_cells(assembled):
    shown = []
    weave = assembled(remember_idle_reading=shown.append)
    violin = "The violin hangs on the northern wall of the attic, above a chest of drawers."
    import_chats(weave, birds=(FACT, "Yes."), wall=(violin, "Yes."))
    total = weave.memory.stats().tokens
    short = 2 * 3  # so few tokens are computed faster than they are copied
    assert read_all(weave) == "done"
    assert [(one.state, one.total) for one in shown] == [
        (state, shown[0].total) for state in ("reading", "reading", "done")
    ]
    assert 0 < shown[0].done < shown[1].done == shown[2].done == shown[2].total
    assert total - short <= shown[2].total < total
    weave.engine.saved.clear()
    assert weave.idle_reader.read_slice() == "done"  # nothing has changed, so nothing is planned again


def test_a_long_conversation_is_read_in_slices(weave):
    import_chats(weave, long=(f"{FACT} " * 60, "I have read it."))
    assert weave.idle_reader.read_slice() == "reading"
    done, total = weave.idle_reader.progress.done, weave.idle_reader.progress.total
    assert 0 < done <= idle_reading.SLICE < total
    assert read_all(weave) == "done"
    assert weave.idle_reader.progress.done >= total - 8


class Interrupted(ScriptedEngine):
    """Calls `meanwhile` while it reads, as something that comes in between."""

    def meanwhile(self):
        pass

    def read_idle(self, window, prompt, *, stopped):
        self.meanwhile()
        return super().read_idle(window, prompt, stopped=stopped)


@pytest.mark.parametrize("what", ["typed", "sent", "deleted", "closed"])
def test_reading_is_given_up_at_once_when(what, assembled):
    weave = assembled(Interrupted(abilities=Capabilities(prefetch=True)))
    import_chats(weave, birds=(FACT, "How nice."))
    window = weave.windows.create("new", settings=PLAIN).id
    key = weave.memory.search("heron Gerda")[0].record.key
    home = weave.windows.find("birds").id

    def interrupt():
        if what == "typed":
            weave.memory.preview(window, "Where", prefetch=True)
        elif what == "sent":
            weave.turns.send_message(window, "Hello!").result()
        elif what == "deleted":
            weave.chunks.delete(home, key)
        else:
            weave.idle_reader.close()

    weave.engine.meanwhile = interrupt
    assert weave.idle_reader.read_slice() == "waiting"
    assert weave.engine.saved == []


def test_a_deleted_chunk_is_not_restored(weave):
    import_chats(weave, birds=(FACT, "How nice. I shall look for the heron Gerda myself, behind the mill."))
    assert read_all(weave) == "done"
    window = weave.windows.find("birds").id
    weave.chunks.delete(window, weave.memory.search("reeds boat rowed")[0].record.key)
    assert weave.engine.saved == []  # the answer was read in sight of it


@pytest.mark.parametrize(
    ("setting", "battery", "state"),
    [
        ("off", False, "off"),
        ("mains", True, "on battery"),
        ("always", True, "done"),
        ("mains", False, "done"),
    ],
)
def test_the_setting_says_when_is_read(setting, battery, state, weave, monkeypatch):
    monkeypatch.setattr(idle_reading, "on_battery", lambda: battery)
    import_chats(weave, birds=(FACT, "How nice."))
    weave.windows.change_settings({"idle_reading": setting})
    assert read_all(weave) == state
    assert bool(weave.engine.saved) == (state == "done")


def test_a_window_that_turns_it_off_is_not_read(weave):
    import_chats(weave, birds=(FACT, "How nice."), wall=("The violin hangs on the northern wall.", "Yes."))
    weave.windows.change(weave.windows.find("birds").id, settings={"idle_reading": "off"})
    assert read_all(weave) == "done"
    assert read_windows(weave) == ["wall"]


def test_a_full_disk_ends_it_before_other_cells_have_to_go(assembled):
    class Full(ScriptedEngine):
        def read_idle(self, window, prompt, *, stopped):
            return "disk full"

    weave = assembled(Full())
    import_chats(weave, birds=(FACT, "How nice."))
    assert read_all(weave) == "disk full"
    assert weave.idle_reader.progress.done == 0


def test_an_engine_without_cells_on_disk_reads_nothing(assembled):
    weave = assembled(ScriptedEngine(abilities=Capabilities(cuts=False)))
    import_chats(weave, birds=(FACT, "How nice."))
    assert read_all(weave) == "unavailable"


def test_cells_of_one_person_are_not_used_by_another(weave):
    ann, bob = (weave.people.add(name)[0].id for name in ("ann", "bob"))
    window = weave.of(ann).windows.create("birds", settings=PLAIN)
    list(weave.of(ann).turns.steps(window.id, FACT))
    weave.people.share(window.id, "bob", owner="ann")
    weave.engine.forget(window.id)
    assert read_all(weave) == "done"
    assert {owner for _, owner, _ in weave.engine.saved} == {f"{weave.runtime.store.memory_id()}/{ann}"}
    assert recalled(weave.of(bob)).restored == 0
    assert recalled(weave.of(ann)).restored > 0


def test_the_thread_reads_when_it_is_quiet_and_waits_while_somebody_types(assembled, monkeypatch):
    monkeypatch.setattr(idle_reading, "POLL", 0.01)
    monkeypatch.setattr(idle_reading, "machine_is_idle", lambda: True)
    done = threading.Event()
    weave = assembled(remember_idle_reading=lambda progress: progress.state == "done" and done.set())
    import_chats(weave, birds=(FACT, "How nice."))
    looked = threading.Semaphore(0)
    quiet = IdleReader._is_quiet
    monkeypatch.setattr(IdleReader, "_is_quiet", lambda reader: looked.release() or quiet(reader))
    weave.runtime.note_activity()
    weave.idle_reader.start()
    for _ in range(3):
        assert looked.acquire(timeout=30)
    assert weave.engine.saved == []
    monkeypatch.setattr(idle_reading, "QUIET", 0.0)
    assert done.wait(30)
    assert weave.engine.saved


@pytest.mark.parametrize(
    ("supplies", "battery"),
    [
        ({}, False),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Charging"}}, False),
        (
            {"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}},
            True,
        ),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        (
            {"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Discharging"}},
            False,
        ),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, False),
    ],
)
def test_whether_the_machine_runs_on_battery_is_read_from_its_power_supplies(
    supplies, battery, tmp_path: Path
):
    for name, facts in supplies.items():
        (tmp_path / name).mkdir()
        for fact, value in facts.items():
            (tmp_path / name / fact).write_text(f"{value}\n")
    assert linux_on_battery(tmp_path) == battery
