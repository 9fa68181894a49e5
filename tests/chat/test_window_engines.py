"""Windows with engines of their own, and what may leave this machine: decided before anything is sent."""

import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from halo_weave.app import Options, open_model
from halo_weave.chat import Weave, events
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, PENDING, Calibration, RetrievalHead
from halo_weave.engines.engine_list import EngineList, NamedEngine
from halo_weave.errors import BadSetting, EngineError, ServerFailed
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, WordRecall, of, spoken
from tests.engines.tiny import write
from tests.fakes.scripted_engine import ScriptedEngine

FOUND = Calibration((RetrievalHead(0, 1, 0.5, 0.5, 1.0),), "Light comes from one head.")


PLAIN = {**SMALL, "tools": "off"}


class Faraway(ScriptedEngine):
    """Notes every prompt, as whoever runs a server could."""

    def __init__(self, url="https://far.example/v1", **how):
        super().__init__(**how)
        self.read, self.asked = [], []
        self._info = replace(self._info, url=url, name="faraway", tokenizer="faraway")

    def tokenize(self, text, *, special=False):
        self.asked.append(text)
        return super().tokenize(text, special=special)

    def generate(self, window, prompt, *rest, **how):
        self.read.append("".join(self.pieces(segment.ids).text for segment in prompt.segments))
        return super().generate(window, prompt, *rest, **how)


@pytest.fixture
def far():
    return Faraway()


@pytest.fixture
def weave(tmp_path, far):
    store = SqliteStore(tmp_path / "memory.sqlite")
    listed = EngineList(tmp_path)
    listed.add(NamedEngine("far", "openai", "https://far.example/v1", key="s3cret"))

    def opened(name):
        if listed.get(name).name == "down":
            raise EngineError("It cannot be reached.")
        return far, NOT_CALIBRATED

    weave = Weave(
        ScriptedEngine(),
        store,
        WordRecall(store),
        engine_list=listed,
        open_other=opened,
        now=lambda: datetime.now(UTC),
    )
    yield weave
    weave.close()


def window(weave, name, **settings):
    return weave.windows.create(name, settings={**PLAIN, **settings}).id


def speak(weave, window, text):
    return list(weave.turns.steps(window, text))


def test_a_window_speaks_with_its_engine_and_the_others_with_theirs(weave, far):
    here, there = window(weave, "here"), window(weave, "there", engine_name="far")
    far.replies = ["From afar."]
    assert spoken(speak(weave, there, "Hello over there")) == "From afar."
    assert "Hello here" in spoken(speak(weave, here, "Hello here"))
    assert len(far.read) == 1
    assert "Hello here" not in far.read[0]


def test_a_window_changes_its_engine_and_goes_on(weave, far):
    one = window(weave, "one")
    speak(weave, one, "My parrot is called Kiwi.")
    weave.windows.change(one, settings={"engine_name": "far"})
    speak(weave, one, "What about parrots?")
    assert "My parrot is called Kiwi." in far.read[-1]
    weave.windows.change(one, settings={"engine_name": ""})
    turn = speak(weave, one, "And now?")
    assert len(far.read) == 1
    assert of(events.TurnEnded, turn)


def test_an_engine_that_is_not_known_or_not_there_is_told_and_the_window_can_be_looked_at(weave, far):
    one = window(weave, "one", engine_name="nobody")
    with pytest.raises(BadSetting, match="no engine named 'nobody'"):
        speak(weave, one, "Hello")
    weave.engines.add(NamedEngine("down", "kobold", "http://10.0.0.9:1"))
    weave.windows.change(one, settings={"engine_name": "down"})
    with pytest.raises(EngineError, match="cannot be reached"):
        speak(weave, one, "Hello")
    assert weave.windows.context(one).turns == ()
    assert weave.engines.where(one).elsewhere == "10.0.0.9"
    weave.windows.change(one, settings={"engine_name": ""})
    assert of(events.TurnEnded, speak(weave, one, "Hello"))


class Shelf:
    """Engines that open and are calibrated when the test lets them."""

    def __init__(self, *engines):
        self.engines = {one.info.name: one for one in engines}
        self.opens = {name: threading.Event() for name in self.engines}
        self.entered, self.calibrates = threading.Event(), threading.Event()

    def open(self, name):
        self.entered.set()
        assert self.opens[name].wait(60)
        return self.engines[name], PENDING

    def calibrate(self, engine, progress):
        progress("Finding out", 0, 2)
        assert self.calibrates.wait(60)
        progress("Finding out", 1, 2)
        return FOUND


@contextmanager
def shelved(folder, *engines):
    shelf, store = Shelf(*engines), SqliteStore(folder / "memory.sqlite")
    how = {"open_other": shelf.open, "calibrate": shelf.calibrate}
    with closing(Weave(ScriptedEngine(), store, WordRecall(store), **how)) as weave:
        yield weave, shelf
        shelf.calibrates.set()


def test_a_chosen_engine_speaks_before_it_is_calibrated_and_is_lit_afterwards(tmp_path, far):
    with shelved(tmp_path, far) as (weave, shelf):
        shelf.opens["faraway"].set()
        one = window(weave, "one", engine_name="faraway")
        hub = weave.turns.hub(one)
        before = hub.place(hub.last)
        assert of(events.TurnEnded, speak(weave, one, "Hello"))
        assert weave.engines.where(one).light == PENDING.sentence
        shelf.calibrates.set()
        weave.models._calibrations[-1].join(60)
        assert weave.engines.where(one).light == FOUND.sentence
        told = of(events.ModelChange, [one.event for one in hub.since(before)[0]])
        assert [(news.model, news.state) for news in told] == [
            ("faraway", "calibrating"),
            ("faraway", "calibrated"),
        ]
        assert weave.memory.status().calibration == NOT_CALIBRATED  # the model of all windows has its own
        spoke = speak(weave, one, "And now?")
        assert of(events.ReplyStored, spoke)[0].use is not None


def test_an_engine_that_was_let_go_of_is_not_calibrated_any_more(tmp_path, far):
    with shelved(tmp_path, far) as (weave, shelf):
        shelf.opens["faraway"].set()
        one = window(weave, "one", engine_name="faraway")
        speak(weave, one, "Hello")
        weave.runtime.close_engine("faraway")
        shelf.calibrates.set()
        weave.models._calibrations[-1].join(60)
        assert weave.engines.where(one).light == ""


def test_an_engine_that_takes_long_to_open_holds_up_no_other(tmp_path):
    slow, quick = Faraway(), Faraway()
    slow._info, quick._info = (replace(slow._info, name=name) for name in ("slow", "quick"))
    with shelved(tmp_path, slow, quick) as (weave, shelf):
        waits, goes = window(weave, "waits", engine_name="slow"), window(weave, "goes", engine_name="quick")
        later = weave.turns.send_message(waits, "Hello")
        assert shelf.entered.wait(60)
        shelf.opens["quick"].set()
        assert of(events.TurnEnded, speak(weave, goes, "Hello"))
        assert not later.done()
        shelf.opens["slow"].set()
        assert later.result(60)


def test_the_page_is_told_where_words_go_and_which_eyes_are_in_use(weave, far):
    one = window(weave, "one", engine_name="far")
    before = weave.engines.where(one)
    assert (before.elsewhere, before.rule, before.model) == ("far.example", "window", "")
    speak(weave, one, "Hello")
    after = weave.engines.where(one)
    assert (after.elsewhere, after.model) == ("far.example", "faraway")
    assert after.light
    assert weave.engines.where(window(weave, "two")).elsewhere == ""


def test_the_key_is_not_in_what_is_printed_or_told(weave):
    assert "s3cret" not in repr(weave.engines.list())


@pytest.mark.parametrize("engine", ["kobold", "openai"])
def test_a_model_that_is_chosen_by_name_runs_here_where_the_program_was_started_with_an_engine_elsewhere(
    tmp_path, engine
):
    path = write(tmp_path / "tiny.gguf", "llama")
    options = Options(tmp_path, engine=engine, url="http://127.0.0.1:1", model_name="any", context=256)
    chosen = open_model(options, str(path))
    try:
        assert chosen.info.file == str(path)
        assert not chosen.info.url
    finally:
        chosen.close()
    with pytest.raises(ServerFailed):  # without a name it is still the server that was named
        open_model(options, None)
