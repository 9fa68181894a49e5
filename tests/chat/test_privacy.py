"""What may be sent to a remote model is decided before anything is sent."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.pruning import PruneReason
from halo_weave.core.retrieval_heads import NOT_CALIBRATED
from halo_weave.engines.engine_list import EngineList, NamedEngine
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.errors import BadInput, EngineError
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, WordRecall, of
from tests.fakes.scripted_engine import ScriptedEngine

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
    assert {chunk.why for chunk in slept.chunks} == {PruneReason.PRIVATE}
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
        Weave(
            far,
            store,
            WordRecall(store),
            local_tokenizer=NoModelEngine(tmp_path),
            now=lambda: datetime.now(UTC),
        )
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
    assert Faraway(url).info.elsewhere == host
