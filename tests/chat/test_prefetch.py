"""Before a message is sent: what it will need is read while nobody waits."""

import threading

import pytest

from halo_weave.chat import events, prefetch
from halo_weave.engines.base import Capabilities
from tests.chat.conftest import SMALL
from tests.fakes.scripted_engine import ScriptedEngine

AHEAD = Capabilities(prefetch=True)


@pytest.fixture
def weave(assembled):
    return assembled(ScriptedEngine(abilities=AHEAD))


def read(weave, window, text):
    weave._prefetcher.settle()
    (one,) = [e for e in weave.turns.steps(window, text) if isinstance(e, events.PrefillFinished)]
    weave._prefetcher.settle()
    return one


def words(weave, text):
    return len(weave.engine.tokenize(text))


def test_after_a_reply_only_the_words_of_the_next_message_and_the_prompt_for_its_answer_are_read(weave):
    computed = {}
    for how in ("off", "frames"):
        apart = {**SMALL, "prefetch": how, "memory_scope": "window"}
        window = weave.windows.create(how, settings=apart).id
        for text in ("Hello there.", "How are you?"):
            computed[how] = read(weave, window, text).computed
    after = len(weave.engine.tokenize("<|end|>\n<|turn|>assistant\n", special=True))
    assert computed["frames"] == words(weave, "How are you?") + after
    assert computed["off"] > computed["frames"] + 4


def test_what_a_text_would_wake_up_is_live_in_the_model_before_it_is_sent(weave):
    window = weave.windows.create("one", settings={**SMALL, "prefetch": "compute"}).id
    elsewhere = weave.windows.create("two", settings=SMALL).id
    read(weave, elsewhere, "The heron Gerda stands in the reeds.")
    read(weave, window, "Good morning.")
    text = "Where does Gerda stand?"
    preview = weave.memory.preview(window, text, prefetch=True)
    assert preview.plan.chunks
    seen = read(weave, window, text)
    assert seen.restored == 0
    assert seen.computed == 1


@pytest.mark.parametrize("how", ["frames", "load", "compute"])
def test_words_are_read_while_they_are_typed_if_the_machine_may_compute(weave, how):
    apart = {**SMALL, "prefetch": how, "memory_scope": "window"}
    window = weave.windows.create("one", settings=apart).id
    read(weave, window, "Good morning.")
    typed, text = "Where does the heron", "Where does the heron stand today?"
    after = len(weave.engine.tokenize("<|end|>\n<|turn|>assistant\n", special=True))
    weave.memory.preview(window, typed, prefetch=True)
    rest = words(weave, text) - (words(weave, typed) - 1 if how == "compute" else 0)
    assert read(weave, window, text).computed == rest + after


def test_a_message_for_which_nothing_may_wake_up_is_read_while_it_is_typed(weave):
    window = weave.windows.create("one", settings={**SMALL, "resurrection_budget": 0}).id
    read(weave, window, "Good morning.")
    weave.memory.preview(window, "Where does the heron stand?", prefetch=True)
    assert read(weave, window, "Where does the heron stand?").computed == 1


def test_what_was_typed_and_not_sent_is_in_no_prompt(weave):
    window = weave.windows.create("one", settings={**SMALL, "memory_scope": "window"}).id
    read(weave, window, "Good morning.")
    weave.memory.preview(window, "The combination is 17 42 9.", prefetch=True)
    weave._prefetcher.settle()
    said = [e for e in weave.turns.steps(window, "Good night.") if isinstance(e, events.ReplyStored)]
    kept = weave.engine.windows[window].live
    assert said
    assert "combination" not in weave.engine.pieces(kept.ids).text


def test_frames_are_read_although_the_memory_is_written_to_meanwhile(weave, monkeypatch):
    """After a reply its chunks are embedded, just when the next frame is read."""
    window = weave.windows.create("one", settings={**SMALL, "memory_scope": "window"}).id
    made, writes = prefetch._prompt_of, iter(["a", "b"])

    def written_to(*of):
        prompt = made(*of)
        if (name := next(writes, None)) is not None:
            weave.windows.create(name)
        return prompt

    read(weave, window, "Good morning.")
    monkeypatch.setattr(prefetch, "_prompt_of", written_to)
    read(weave, window, "Good evening.")
    after = len(weave.engine.tokenize("<|end|>\n<|turn|>assistant\n", special=True))
    assert read(weave, window, "Good night.").computed == words(weave, "Good night.") + after


def test_looking_at_what_would_wake_up_changes_nothing_in_the_memory(weave):
    window = weave.windows.create("one", settings=SMALL).id
    read(weave, window, "The heron Gerda stands in the reeds.")
    version = weave.runtime.store.version()
    weave.memory.preview(window, "Gerda?", prefetch=True)
    weave._prefetcher.settle()
    assert weave.runtime.store.version() == version


def processor_times(*values):
    """Gives the values one after the other, and nothing of use to servers of other tests that read in idle time."""
    times = iter(values)
    return lambda: (0, 0) if threading.current_thread().name.endswith("idle reading") else next(times)


def test_a_busy_machine_computes_frames_only_and_an_idle_one_what_wakes_up(weave, monkeypatch):
    asked = []
    monkeypatch.setattr(weave.engine, "prefetch", lambda *_, max_computed, **__: asked.append(max_computed))
    window = weave.windows.create("one", settings={**SMALL, "prefetch": "compute"}).id
    read(
        weave, window, "The key of the lighthouse hangs behind the barometer."
    )  # nobody looks at the processors for a frame
    weave.chunks.prune(window, weave.windows.context(window).turns[0].chunks[0].chunk.key)
    for resting in (90, 10):
        monkeypatch.setattr(prefetch, "_processor_times", processor_times((0, 0), (100, resting)))
        weave.memory.preview(window, "Where does the key of the lighthouse hang?", prefetch=True)
        weave._prefetcher.settle()
    assert asked == [prefetch.FRAMES, None, prefetch.FRAMES]


def test_what_is_read_ahead_for_an_earlier_wish_does_not_make_the_machine_busy(monkeypatch):
    own = iter([0.0, 90.0])  # seconds of this process
    monkeypatch.setattr(prefetch.time, "process_time", lambda: next(own))
    monkeypatch.setattr(prefetch, "_processor_times", processor_times((0, 0), (100, 5)))
    assert prefetch.machine_is_idle()


@pytest.mark.parametrize(
    ("how", "abilities"),
    [("off", AHEAD), ("compute", Capabilities()), ("compute", Capabilities(cuts=False, prefetch=True))],
)
def test_nothing_is_read_ahead_if_it_is_off_or_the_engine_cannot(assembled, monkeypatch, how, abilities):
    weave, asked = assembled(ScriptedEngine(abilities=abilities)), []
    monkeypatch.setattr(weave.engine, "prefetch", lambda *_, **__: asked.append(1))
    window = weave.windows.create("one", settings={**SMALL, "prefetch": how}).id
    read(weave, window, "Hello.")
    assert not asked


def test_where_several_people_write_their_names_are_read_ahead(weave, monkeypatch):
    prompts = []
    monkeypatch.setattr(weave.engine, "prefetch", lambda window, prompt, **_: prompts.append(prompt))
    ann = weave.people.add("ann")[0].id
    weave.people.add("bob")
    window = weave.of(ann).windows.create("one", settings={**SMALL, "prefetch": "frames"}).id
    weave.of(ann).people.share(window, "bob", writes=True)
    list(weave.of(ann).turns.steps(window, "Good morning."))
    weave._prefetcher.settle()
    weave.of(ann).memory.preview(window, "And now?", prefetch=True)
    weave._prefetcher.settle()
    for prompt in (prompts[0], prompts[-1]):
        read = "".join(weave.engine.pieces(segment.ids).text for segment in prompt.segments)
        assert read.endswith("ann: ")
