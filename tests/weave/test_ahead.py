"""Before a message is sent: what it will need is read while nobody waits."""

import pytest

from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.ports import Abilities
from halo_weave.weave import ahead, events
from tests.weave.conftest import SMALL

AHEAD = Abilities(ahead=True)


@pytest.fixture
def weave(assembled):
    return assembled(ScriptedEngine(abilities=AHEAD))


def read(weave, window, text):
    weave._ahead.settle()
    (one,) = [e for e in weave.turns.steps(window, text) if isinstance(e, events.PromptRead)]
    weave._ahead.settle()
    return one


def words(weave, text):
    return len(weave.engine.tokenize(text))


def test_after_a_reply_only_the_words_of_the_next_message_and_the_prompt_for_its_answer_are_read(weave):
    computed = {}
    for how in ("off", "frames"):
        apart = {**SMALL, "read_ahead": how, "memory_scope": "window"}
        window = weave.windows.create(how, settings=apart).id
        for text in ("Hello there.", "How are you?"):
            computed[how] = read(weave, window, text).computed
    after = len(weave.engine.tokenize("<|end|>\n<|turn|>assistant\n", special=True))
    assert computed["frames"] == words(weave, "How are you?") + after
    assert computed["off"] > computed["frames"] + 4


def test_what_a_text_would_wake_up_is_live_in_the_model_before_it_is_sent(weave):
    window = weave.windows.create("one", settings={**SMALL, "read_ahead": "compute"}).id
    elsewhere = weave.windows.create("two", settings=SMALL).id
    read(weave, elsewhere, "The heron Gerda stands in the reeds.")
    read(weave, window, "Good morning.")
    text = "Where does Gerda stand?"
    preview = weave.memory.preview(window, text, ahead=True)
    assert preview.plan.wakes
    seen = read(weave, window, text)
    assert seen.restored == 0
    after = len(weave.engine.tokenize("<|end|>\n<|turn|>assistant\n", special=True))
    assert seen.computed == words(weave, text) + after


def test_looking_at_what_would_wake_up_changes_nothing_in_the_memory(weave):
    window = weave.windows.create("one", settings=SMALL).id
    read(weave, window, "The heron Gerda stands in the reeds.")
    version = weave._system.store.version()
    weave.memory.preview(window, "Gerda?", ahead=True)
    weave._ahead.settle()
    assert weave._system.store.version() == version


def test_a_busy_machine_computes_frames_only_and_an_idle_one_what_wakes_up(weave, monkeypatch):
    asked = []
    monkeypatch.setattr(weave.engine, "read_ahead", lambda *_, most, **__: asked.append(most))
    window = weave.windows.create("one", settings={**SMALL, "read_ahead": "compute"}).id
    for resting in (90, 10):
        times = iter([(0, 0), (100, resting)])
        monkeypatch.setattr(ahead, "_processor_times", lambda times=times: next(times))
        read(weave, window, "Hello.")
    assert asked == [None, ahead.FRAMES]


@pytest.mark.parametrize(
    ("how", "abilities"),
    [("off", AHEAD), ("compute", Abilities()), ("compute", Abilities(cuts=False, ahead=True))],
)
def test_nothing_is_read_ahead_if_it_is_off_or_the_engine_cannot(assembled, monkeypatch, how, abilities):
    weave, asked = assembled(ScriptedEngine(abilities=abilities)), []
    monkeypatch.setattr(weave.engine, "read_ahead", lambda *_, **__: asked.append(1))
    window = weave.windows.create("one", settings={**SMALL, "read_ahead": how}).id
    read(weave, window, "Hello.")
    assert not asked
