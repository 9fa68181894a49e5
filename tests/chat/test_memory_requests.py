"""What the user asks to be remembered is kept whatever the model does, and nothing else is lost by it."""

import threading
from contextlib import closing

import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import events
from halo_weave.chat.tools.memory_requests import FILING, filing_grammar
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.chat.turn_request import ClientOptions
from halo_weave.engines.base import ModelInfo
from halo_weave.errors import EngineError
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, of, spoken
from tests.chat.test_turn import spoken_prompt
from tests.fakes.scripted_engine import ScriptedEngine

CODE = "Please remember that the code of the store room is 4321."
KEPT = "The code of the store room is 4321."
UNSORTED = "Unsorted/The code of the store room is 4321"
FILED = '{"heading": "Work", "title": "Store room code"}'
ROOMY = {**SMALL, "max_new_tokens": 200, "max_context_tokens": 2_000, "tools": "auto"}


class Filing(ScriptedEngine):
    """Answers as it is told to, and files as it is told to."""

    def __init__(self, *replies: str, filed: str = FILED) -> None:
        super().__init__(list(replies))
        self.filed, self.asked = filed, []

    def generate(self, window, prompt, sampling, *args, **more):
        if window == FILING:
            self.asked.append(sampling.grammar)
            if self.filed == "fails":
                raise EngineError("The server takes no grammar.")
            self.replies.insert(0, self.filed)
        return super().generate(window, prompt, sampling, *args, **more)


@pytest.fixture
def toolbox(tmp_path):
    store = SqliteStore(tmp_path / "memory.sqlite")
    yield Toolbox(Notes(store), StructuredMemory(store))
    store.close()


def test_what_the_user_asks_to_keep_is_kept_in_their_own_words_with_its_source(assembled, toolbox):
    weave = assembled(Filing("Saved."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    turn = list(weave.turns.steps(window, CODE))
    (changed,) = of(events.MemoryChanged, turn)
    assert (changed.change, changed.path, changed.content) == ("saved", UNSORTED, KEPT)
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == ["Work/Store room code"]
    entry = toolbox.tree.query("Work/Store room code", now=None)
    assert entry.content == KEPT
    assert entry.keys[0] == of(events.MessageStored, turn)[0].chunks[0].chunk.key
    assert spoken(turn) == "Saved."
    assert not of(events.ToolCalled, turn)


@pytest.mark.parametrize("reply", ["I'm sorry, but I can't assist with that.", "", "People/Anna"])
def test_it_is_kept_whatever_the_model_says(assembled, toolbox, reply):
    weave = assembled(Filing(reply), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    assert [entry.content for entry in toolbox.tree.newest()] == [KEPT]


@pytest.mark.parametrize("filed", ["no json", '{"heading": "", "title": ""}', '{"heading": 3}', "fails"])
def test_what_cannot_be_filed_stays_unsorted(assembled, toolbox, filed):
    weave = assembled(Filing("Okay.", filed=filed), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == [UNSORTED]
    assert toolbox.tree.query(UNSORTED, now=None).content == KEPT


def test_who_follows_the_window_hears_where_the_entry_was_filed(assembled, toolbox):
    weave = assembled(Filing("Saved."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    hub = weave.turns.hub(window)
    before = hub.last
    list(weave.turns.steps(window, CODE))
    weave.turns.entry_filer.settle()
    (filed,) = of(events.MemoryChanged, weave.turns.events_since(window, before))
    assert (filed.path, filed.moved_from) == ("Work/Store room code", UNSORTED)


def test_an_entry_that_the_user_took_back_is_not_filed(assembled, toolbox):
    weave = assembled(Filing("Saved."), toolbox)
    weave.turns.entry_filer.pause = 60.0
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    toolbox.tree.delete(UNSORTED, now=weave.now())
    weave.turns.entry_filer.pause = 0.0
    weave.turns.entry_filer.turn_ended()
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == []


def test_a_message_interrupts_filing_and_the_entry_is_filed_after_it(assembled, toolbox):
    engine = Filing("Saved.", "It is sunny.")
    weave = assembled(engine, toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    filing, answered = threading.Event(), threading.Event()

    def hold() -> None:
        if engine.asked and not answered.is_set():
            filing.set()
            answered.wait(0.01)

    engine.pause = hold
    list(weave.turns.steps(window, CODE))
    assert filing.wait(30)
    turn = list(weave.turns.steps(window, "How is the weather?"))
    answered.set()
    assert spoken(turn) == "It is sunny."
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == ["Work/Store room code"]
    assert len(engine.asked) > 1


def test_nothing_that_is_saved_takes_the_place_of_something_else(assembled, toolbox):
    weave = assembled(Filing("Okay.", "Okay."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    weave.turns.entry_filer.settle()
    list(weave.turns.steps(window, "Remember that the code of the garage is 99."))
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == ["Work/Store room code", "Work/Store room code 2"]
    assert toolbox.tree.query("Work/Store room code", now=None).content == KEPT


def test_the_model_is_told_that_it_is_saved_and_no_tools_are_declared(assembled, toolbox):
    weave = assembled(Filing("Okay."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    prompt = spoken_prompt(weave, window)
    assert "saved in your memory now" in prompt.partition(CODE)[2]
    assert "save_memory" not in prompt
    shown = [chunk.chunk.text for turn in weave.windows.context(window).turns for chunk in turn.chunks]
    assert shown == [CODE, "Okay."]  # what the model is told beside is not part of what was said


def test_what_the_user_wants_forgotten_is_taken_out_and_the_rest_stays(assembled, toolbox):
    weave = assembled(ScriptedEngine(["Done.", "Done."]), toolbox)
    toolbox.tree.save("Work/Code", KEPT, now=weave.now())
    toolbox.tree.save("Pets/Cat", "The cat is called Mochi.", now=weave.now())
    window = weave.windows.create("one", settings=ROOMY).id
    (changed,) = of(
        events.MemoryChanged, list(weave.turns.steps(window, "Forget the code of the store room."))
    )
    assert (changed.change, changed.path, changed.content) == ("forgotten", "Work/Code", KEPT)
    assert toolbox.tree.paths() == ["Pets/Cat"]
    assert toolbox.tree.history("Work/Code")[0].content == KEPT
    turn = list(weave.turns.steps(window, "Forget that I like liquorice."))
    assert not of(events.MemoryChanged, turn)
    assert toolbox.tree.paths() == ["Pets/Cat"]
    assert "Nothing like this was saved" in spoken_prompt(weave, window)


@pytest.mark.parametrize(("parameters", "told"), [(135_000_000, False), (1_500_000_000, True)])
def test_who_asks_what_is_remembered_is_answered_with_it(assembled, toolbox, parameters, told):
    class Sized(ScriptedEngine):
        @property
        def info(self) -> ModelInfo:
            from dataclasses import replace

            return replace(super().info, parameters=parameters)

    weave = assembled(Sized(["4321.", "Hm."]), toolbox)
    toolbox.tree.save("Work/Code", KEPT, now=weave.now())
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, "What do you remember about the store room?"))
    assert (KEPT in spoken_prompt(weave, window)) is told
    other = weave.windows.create("two", settings=ROOMY).id
    list(weave.turns.steps(other, "What is the code of the store room?"))
    assert KEPT not in spoken_prompt(weave, other)


def test_a_mere_request_recalls_nothing_and_one_with_a_question_does(assembled, toolbox):
    weave = assembled(Filing("Okay.", "Okay.", "Sure.", "Red."), toolbox)
    first, other = (weave.windows.create(name, settings=ROOMY).id for name in ("one", "two"))
    list(weave.turns.steps(first, "The door of the store room is red."))
    assert not of(events.ChunksResurrected, list(weave.turns.steps(other, CODE)))
    assert of(events.ChunksResurrected, list(weave.turns.steps(other, f"{CODE} What colour is its door?")))


def test_an_answer_again_saves_nothing_twice(assembled, toolbox):
    weave = assembled(Filing("Okay.", "Sure."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    list(weave.turns.steps(window, CODE))
    begun = weave.turns.regenerate(window).result(30)
    list(weave.turns.follow(window, begun.last_event))
    assert len(toolbox.tree.paths()) == 1


def test_a_program_that_brings_its_own_tools_or_form_saves_nothing(assembled, toolbox):
    weave = assembled(ScriptedEngine(['{"a": 1}']), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    begun = weave.turns.send_message(
        window, CODE, client_options=ClientOptions(grammar='root ::= "a"')
    ).result(30)
    list(weave.turns.follow(window, begun.last_event))
    assert toolbox.tree.paths() == []


def test_a_program_that_speaks_for_the_user_saves_too(assembled, toolbox):
    weave = assembled(Filing("Okay."), toolbox)
    window = weave.windows.create("one", settings=ROOMY).id
    begun = weave.turns.send_message(window, CODE, client_options=ClientOptions("Be brief.")).result(30)
    list(weave.turns.follow(window, begun.last_event))
    weave.turns.entry_filer.settle()
    assert toolbox.tree.paths() == ["Work/Store room code"]


def test_headings_are_choices_of_the_grammar_whatever_they_hold():
    rules = filing_grammar(["Work", 'A "quoted" \\ one'])
    assert '"Work"' in rules.splitlines()[1]
    assert rules.count("\n") == 5


def test_what_is_kept_is_explained_only_by_what_its_owner_may_read(tmp_path):
    with closing(build_weave(Options(tmp_path, engine="scripted"))) as weave:
        ann, bob = (weave.people.add(name)[0].id for name in ("ann", "bob"))
        theirs = weave.of(bob).windows.create("Theirs", settings=ROOMY).id
        list(
            weave.of(bob).turns.steps(
                theirs, "The harbour festival is on Sunday, the harbour key hangs in the boat."
            )
        )
        own = weave.of(ann).windows.create("Own", settings=ROOMY).id
        list(weave.of(ann).turns.steps(own, "Please remember that I like the harbour festival and the boat."))
        tree = weave.of(ann).memory_tools.tree
        (path,) = tree.paths()
        explained = tree.query(path, now=None).keys
        assert explained
        assert {one.window for one in weave.runtime.store.chunks_by_key(explained)} == {own}
