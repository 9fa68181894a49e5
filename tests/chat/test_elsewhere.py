"""Windows with engines of their own, and what may leave this machine: decided before anything is sent."""

import json
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from halo_weave.app import Options, open_model
from halo_weave.chat import Weave, events
from halo_weave.core.pruning import PruneReason
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, PENDING, Calibration, RetrievalHead
from halo_weave.engines.engine_list import EngineList, NamedEngine, configured_engines
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.errors import BadInput, BadSetting, EngineError, ServerFailed
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, WordRecall, of, spoken
from tests.engines.tiny import write

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
        weave._system.close_engine("faraway")
        shelf.calibrates.set()
        weave.models._calibrations[-1].join(60)
        assert weave.engines.where(one).light == ""


def test_an_engine_that_takes_long_to_open_holds_up_no_other(tmp_path):
    slow, quick = Faraway(), Faraway()
    slow._info, quick._info = (replace(slow._info, name=name) for name in ("slow", "quick"))
    with shelved(tmp_path, slow, quick) as (weave, shelf):
        waits, goes = window(weave, "waits", engine_name="slow"), window(weave, "goes", engine_name="quick")
        later = weave.turns.say(waits, "Hello")
        assert shelf.entered.wait(60)
        shelf.opens["quick"].set()
        assert of(events.TurnEnded, speak(weave, goes, "Hello"))
        assert not later.done()
        shelf.opens["slow"].set()
        assert later.result(60)


# What leaves


def told_elsewhere(weave, **settings):
    """A secret told in another window, then asked for in one whose model is far away."""
    other = window(weave, "other", **settings)
    speak(weave, other, "The code of the safe is four zebras.")
    return other


@pytest.mark.parametrize(
    ("rule", "private", "leaves"),
    [
        (None, False, False),
        ("window", False, False),
        ("not_private", False, True),
        ("not_private", True, False),
        ("all", True, True),
    ],
)
def test_only_what_may_leave_wakes_up_where_the_model_is_far_away(weave, far, rule, private, leaves):
    told_elsewhere(weave, private=private)
    asks = window(weave, "asks", engine_name="far", remote_scope=rule)
    speak(weave, asks, "What is the code of the safe?")
    assert ("four zebras" in far.read[-1]) is leaves


def test_on_this_machine_everything_may_be_read_unless_the_window_says_otherwise(weave):
    told_elsewhere(weave)
    near, narrow = window(weave, "near"), window(weave, "narrow", remote_scope="window")
    assert of(events.ChunksResurrected, speak(weave, near, "What is the code of the safe?"))
    assert not of(events.ChunksResurrected, speak(weave, narrow, "What is the code of the safe?"))


def test_what_was_live_and_may_not_leave_falls_asleep_before_anything_is_sent(weave, far):
    told_elsewhere(weave)
    one = window(weave, "one")
    woken = of(events.ChunksResurrected, speak(weave, one, "What is the code of the safe?"))[0]
    weave.chunks.pin(one, woken.chunks[0].key)
    weave.windows.change(one, settings={"engine_name": "far"})
    slept = of(events.ChunksPruned, speak(weave, one, "Say that again"))[0]
    assert {chunk.why for chunk in slept.chunks} == {PruneReason.STAYS}
    assert "The code of the safe is" not in far.read[-1]
    assert "What is the code of the safe?" in far.read[-1]  # that was said here


def test_what_may_not_leave_is_not_even_counted_there(weave, far):
    told_elsewhere(weave)
    one = window(weave, "one")
    assert of(events.ChunksResurrected, speak(weave, one, "What is the code of the safe?"))
    weave.windows.change(one, settings={"engine_name": "far"})
    speak(weave, one, "Say that again")
    weave.windows.context(one)
    assert "Say that again" in far.asked
    assert "What is the code of the safe?" in far.asked  # that was said here, and is read anew
    assert not any("four zebras" in text for text in far.asked)
    assert not any("other" in text for text in far.asked)  # the name of that window


def test_words_of_a_private_window_are_counted_here(tmp_path, far):
    store = SqliteStore(tmp_path / "memory.sqlite")
    with closing(
        Weave(far, store, WordRecall(store), silent=NoModelEngine(tmp_path), now=lambda: datetime.now(UTC))
    ) as weave:
        one = window(weave, "diary", private=True)
        weave.windows.change(one, system_prompt="We speak of elephants.")
        far.asked.clear()
        with pytest.raises(BadInput, match="diary is private"):
            speak(weave, one, "Nobody may know.")
        weave.memory.preview(one, "Nobody may know.")
        weave.documents.counted("letter.txt", "Nobody may know.", one)
        weave.windows.context(one)
        assert weave.engines.where(one).elsewhere == "far.example"
        assert far.asked == []


def test_a_private_window_never_speaks_with_another_machine(weave, far):
    one = window(weave, "diary", private=True, engine_name="far", remote_scope="all")
    with pytest.raises(BadInput, match=r"diary is private.*far\.example"):
        speak(weave, one, "Nobody may know.")
    assert not weave.engines.list()[0].open  # its server was not even asked for its model
    assert far.read == []
    weave.windows.change(one, settings={"engine_name": ""})
    assert of(events.TurnEnded, speak(weave, one, "Nobody may know."))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("", ""),
        ("http://127.0.0.1:1", ""),
        ("http://[::1]:1/v1", ""),
        ("http://localhost:1", ""),
        ("http://192.168.1.4:1", "192.168.1.4"),
        ("https://api.example.org/v1", "api.example.org"),
        ("http://localhost.example.org", "localhost.example.org"),
    ],
)
def test_which_machine_words_go_to(url, host):
    assert Faraway(url)._info.elsewhere == host


def test_the_page_is_told_where_words_go_and_which_eyes_are_in_use(weave, far):
    one = window(weave, "one", engine_name="far")
    before = weave.engines.where(one)
    assert (before.elsewhere, before.rule, before.model) == ("far.example", "window", "")
    speak(weave, one, "Hello")
    after = weave.engines.where(one)
    assert (after.elsewhere, after.model) == ("far.example", "faraway")
    assert after.light
    assert weave.engines.where(window(weave, "two")).elsewhere == ""


# Engines that were told


def test_engines_are_kept_for_the_next_start_in_a_file_that_only_the_user_can_read(tmp_path):
    EngineList(tmp_path).add(NamedEngine("cellar", "kobold", "http://cellar:4256", key="s3cret"))
    file = tmp_path / "engines.json"
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text())[0]["key"] == "s3cret"
    again = EngineList(tmp_path)
    assert again.get("cellar").key == "s3cret"
    again.add(NamedEngine("cellar", "kobold", "http://cellar:4256", model_name="x"))
    assert EngineList(tmp_path).get("cellar").key == "s3cret"  # not told again, so it stays
    again.add(NamedEngine("cellar", "kobold", "http://elsewhere:4256"))
    assert EngineList(tmp_path).get("cellar").key == ""  # it belongs to the other address
    again.remove("cellar")
    assert list(EngineList(tmp_path)) == []


def test_engines_of_version_0_2_keep_their_shadow_model(tmp_path):
    about = {"kind": "openai", "url": "http://cellar:4256", "reader": "smollm2-135m"}
    (tmp_path / "engines.json").write_text(json.dumps([{**about, "name": "cellar", "key": "s3cret"}]))
    listed = EngineList(tmp_path)
    assert (listed.get("cellar").shadow_model, listed.notice) == ("smollm2-135m", "")
    assert configured_engines({"engines": {"cellar": about}})["cellar"].shadow_model == "smollm2-135m"


GOOD = {"name": "cellar", "kind": "kobold", "url": "http://cellar:4256", "key": "s3cret"}


@pytest.mark.parametrize(
    ("held", "left"),
    [
        ("", []),
        ("[{", []),
        ("{}", []),
        (b"\xff\xfe", []),
        (json.dumps([GOOD, {"name": "later", "kind": "quantum"}]), ["cellar"]),
        (json.dumps([GOOD, {**GOOD, "name": "odd", "key": 7}]), ["cellar"]),
        (json.dumps([GOOD, "?"]), ["cellar"]),
    ],
)
def test_a_damaged_file_of_engines_is_put_aside_whole_and_told_of(tmp_path, caplog, held, left):
    raw = held if isinstance(held, bytes) else held.encode()
    (tmp_path / "engines.json").write_bytes(raw)
    (tmp_path / "engines.damaged.json").write_text("of another day")
    listed = EngineList(tmp_path)
    assert [one.name for one in listed] == left
    assert (tmp_path / "engines.damaged1.json").read_bytes() == raw
    assert (tmp_path / "engines.damaged.json").read_text() == "of another day"
    assert "engines.damaged1.json" in listed.notice
    assert listed.notice in caplog.text
    assert "s3cret" not in caplog.text
    listed.add(NamedEngine("new", "openai", "http://x"))
    again = EngineList(tmp_path)
    assert [one.name for one in again] == [*left, "new"]
    assert again.notice == ""


def test_an_engine_that_the_configuration_overrides_is_not_lost(tmp_path):
    EngineList(tmp_path).add(NamedEngine(**GOOD))
    configured = NamedEngine("cellar", "kobold", "http://new:4256", configured=True)
    listed = EngineList(tmp_path, {"cellar": configured})
    listed.add(NamedEngine("hosted", "openai", "http://x"))
    assert listed.get("cellar").url == "http://new:4256"
    assert EngineList(tmp_path).get("cellar").key == "s3cret"


def test_what_another_process_added_stays(tmp_path):
    one, other = EngineList(tmp_path), EngineList(tmp_path)
    one.add(NamedEngine("cellar", "kobold", "http://cellar:4256", key="s3cret"))
    other.add(NamedEngine("hosted", "openai", "http://x"))
    other.remove("hosted")
    assert [(kept.name, kept.key) for kept in EngineList(tmp_path)] == [("cellar", "s3cret")]


@pytest.mark.parametrize("url", ["http://[::1", "http://x:99999", "http://ann:s3cret@x", "http://"])
def test_an_address_that_cannot_be_used_is_not_kept(url):
    with pytest.raises(BadSetting, match="needs the address") as told:
        NamedEngine("a", "kobold", url)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("wrong", [{"kind": "x"}, {"url": "ftp://x"}, {"name": ""}, {"name": "a/b"}])
def test_engines_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadSetting):
        NamedEngine(**{"name": "a", "kind": "kobold", "url": "http://x", **wrong})


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
