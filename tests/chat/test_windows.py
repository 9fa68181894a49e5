"""Windows share one memory and nothing else."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import events
from halo_weave.core.tokens import ChunkKey, Role, Tokens
from halo_weave.errors import (
    BadInput,
    BadSetting,
    StoreBusy,
    UnknownChunk,
    UnknownWindow,
    WindowBusy,
)
from halo_weave.store.records import Draft
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, lived, of, spoken
from tests.chat.test_turn import FACT, chatter, spoken_prompt
from tests.fakes.scripted_engine import ScriptedEngine


def test_the_cat_of_one_window_wakes_up_in_another(assembled):
    """The seeds' scenario: what was said in one window is remembered in another, with its origin and date."""
    weave = assembled()
    halo = weave.windows.create("Halo", settings=SMALL)
    cats = weave.windows.create("Cats", settings={**SMALL, "timestamps": True})
    list(weave.turns.steps(halo.id, "How does brightness scoring work?"))
    list(weave.turns.steps(cats.id, "My cat is a Siamese with blue eyes."))
    turn = list(weave.turns.steps(halo.id, "My cat is like brightness scoring: unpredictable."))
    woken = of(events.ChunksResurrected, turn)[0].chunks
    siamese = next(one for one in woken if one.chunk.text == "My cat is a Siamese with blue eyes.")
    assert siamese.window == cats.id
    shown = next(
        seen for seen in weave.windows.context(halo.id).turns if seen.turn_id == siamese.chunk.key.turn_id
    )
    assert (shown.window, shown.said) == (cats.id, siamese.said)
    assert lived(weave, cats.id)[0][1] == "My cat is a Siamese with blue eyes."


def test_the_model_is_told_where_a_memory_comes_from(assembled):
    weave = assembled()
    cats = weave.windows.create("Cats", settings=SMALL)
    halo = weave.windows.create("Halo", settings={**SMALL, "timestamps": True})
    answer = "A Siamese often answers when it is called, and its eyes shine red at night."
    weave.engine.replies = ["You have a Siamese whose eyes are green.", answer]
    list(weave.turns.steps(cats.id, "My cat is a Siamese with blue eyes."))
    list(weave.turns.steps(cats.id, "How does a Siamese behave, and what do its eyes do?"))
    list(weave.turns.steps(halo.id, "What colour are the eyes of the Siamese?"))
    prompt = spoken_prompt(weave, halo.id)
    assert re.search(
        r'"My cat is a Siamese with blue eyes\." \(I said this on [\d-]{10} in the chat "Cats"\)\n', prompt
    )
    assert re.search(
        r'"A Siamese often answers.*" \(you answered this on [\d-]{10} in the chat "Cats"\)', prompt
    )
    assert "green" not in prompt  # what answers a statement of another chat does not return
    assert (
        prompt.count("<|turn|>assistant") == 1
    )  # of the answer here: nothing of another chat poses as dialogue
    list(weave.turns.steps(cats.id, "What colour are the eyes of the Siamese?"))
    assert 'in the chat "Cats"' not in spoken_prompt(
        weave, cats.id
    )  # in its own chat it stands as it was said


def test_a_question_of_another_chat_returns_only_with_its_answer(assembled):
    weave = assembled()
    cats = weave.windows.create("Cats", settings=SMALL)
    weave.engine.replies = ["I don't know.", "The Siamese comes from Thailand."]
    list(weave.turns.steps(cats.id, "What colour are the eyes of the Siamese?"))
    list(weave.turns.steps(cats.id, "Which country does the Siamese come from?"))
    halo = weave.windows.create("Halo", settings={**SMALL, "resurrect_pairs": "with"})
    list(weave.turns.steps(halo.id, "Siamese: eyes, colour, country?"))
    prompt = spoken_prompt(weave, halo.id)
    assert "What colour are the eyes" not in prompt
    assert "comes from Thailand" in prompt
    assert "Which country does the Siamese come from?" in prompt


def test_an_isolated_window_recalls_only_its_own(assembled):
    weave = assembled()
    cats = weave.windows.create("Cats", settings=SMALL)
    alone = weave.windows.create("Alone", settings={**SMALL, "memory_scope": "window"})
    list(weave.turns.steps(cats.id, "My cat is a Siamese with blue eyes."))
    assert not of(events.ChunksResurrected, list(weave.turns.steps(alone.id, "Tell me about the Siamese.")))
    assert not weave.memory.preview(alone.id, "Siamese").plan.chunks
    open_to_all = weave.windows.create("Open", settings=SMALL)
    assert (
        "My cat is a Siamese with blue eyes."
        in weave.memory.preview(open_to_all.id, "Siamese").texts.values()
    )
    (woken,) = of(
        events.ChunksResurrected, list(weave.turns.steps(open_to_all.id, "Tell me about the Siamese."))
    )
    assert "My cat is a Siamese with blue eyes." in [one.chunk.text for one in woken.chunks]


def test_what_an_isolated_window_saves_is_explained_by_its_own_talk(tmp_path):
    with closing(build_weave(Options(tmp_path, engine="scripted"))) as weave:
        cats = weave.windows.create("Cats", settings=SMALL)
        alone = weave.windows.create(
            "Alone", settings={**SMALL, "max_new_tokens": 200, "memory_scope": "window"}
        )
        list(weave.turns.steps(cats.id, "My cat is a Siamese with blue eyes."))
        weave.engine.replies += ['<tool>save_memory("Cat", "a Siamese cat")</tool>', "Saved."]
        list(weave.turns.steps(alone.id, "Save what you know of the Siamese cat."))
        snapshot = weave.runtime.toolbox.tree.query("Cat", now=None).snapshot
        assert snapshot
        assert {weave.runtime.store.chunk(one.key).window for one in snapshot} == {alone.id}
        weave.runtime.toolbox.tree.save("Other", "a Siamese cat", now=weave.now())
        said = weave.windows.context(cats.id).turns[0].chunks[0].chunk.key
        assert said in weave.runtime.toolbox.tree.query("Other", now=None).keys
        weave.engine.replies += ['<tool>inject_memory("Other")</tool>', "Nothing."]
        list(weave.turns.steps(alone.id, "Bring it back."))
        assert said not in {one.key for one in weave.runtime.store.live(alone.id)}


def test_two_windows_at_once_never_mix(assembled):
    weave = assembled()
    windows = [weave.windows.create(f"w{i}", settings={**SMALL, "memory_scope": "window"}) for i in range(4)]
    failures = []

    def talk(number: int) -> None:
        for turn in range(8):
            text = f"I am speaker{number} in round{turn}."
            reply = spoken(list(weave.turns.steps(windows[number].id, text)))
            if reply != f"You said: {text}":
                failures.append(reply)

    threads = [threading.Thread(target=talk, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for number, window in enumerate(windows):
        texts = [text for _, text, _, _ in lived(weave, window.id)]
        assert texts
        assert all(f"speaker{number}" in text for text in texts)
    positions = [
        record.start for w in windows for record in (one.chunk for one in weave.runtime.store.live(w.id))
    ]
    assert len(set(positions)) == len(positions)


def test_what_is_deleted_elsewhere_during_a_reply_is_gone_when_it_ends(assembled):
    weave = assembled()
    here = weave.windows.create("here", settings=SMALL)
    there = weave.windows.create("there", settings=SMALL)
    list(weave.turns.steps(here.id, FACT))
    key = weave.windows.context(here.id).turns[0].chunks[0].chunk.key
    turn = weave.turns.steps(here.id, "Go on.")
    next(event for event in turn if isinstance(event, events.TokenGenerated))
    weave.chunks.delete(there.id, key)
    assert list(turn)[-1].reason == "eos"
    assert key not in {one.key for one in weave.runtime.store.live(here.id)}
    assert spoken(list(weave.turns.steps(here.id, "Still there?"))) == "You said: Still there?"


def test_a_restart_loses_nothing(assembled):
    first = assembled()
    window = first.windows.create("one", settings=SMALL)
    list(first.turns.steps(window.id, FACT))
    chatter(first, window.id, 20)
    before = lived(first, window.id)
    second = assembled()
    assert lived(second, window.id) == before
    turn = list(second.turns.steps(window.id, "Where does the lighthouse key hang?"))
    assert any(one.chunk.text == FACT for one in of(events.ChunksResurrected, turn)[0].chunks)


def test_a_killed_reply_is_there_after_the_restart_and_ids_move_on(assembled):
    first = assembled()
    window = first.windows.create("one", settings=SMALL)
    list(first.turns.steps(window.id, "Hello."))
    ids = first.runtime.store.reserve(100)
    tokens = first.engine.tokenize("An answer that was never fin")
    place, now = (window.id, ids.assistant_turn, ids.start), first.now()
    first.runtime.store.save_drafts([Draft(*place, None, tokens, "scripted", now, now)])
    with first.runtime.store._db.writing() as db:  # the process that wrote it is no more
        db.execute("UPDATE drafts SET owner = 'localhost-that-was 1 1', saved = 0")
    second = assembled()
    last = second.windows.context(window.id).turns[-1]
    assert last.chunks[0].chunk.text == "An answer that was never fin"
    assert last.cut
    assert not any(turn.cut for turn in second.windows.context(window.id).turns[:-1])
    assert second.runtime.store.drafts(now=second.now(), abandoned=False) == []
    heard = of(events.MessageStored, list(second.turns.steps(window.id, "Go on.")))[0]
    assert heard.turn_id > ids.assistant_turn


def test_a_killed_reply_waits_for_a_store_that_is_busy_at_the_restart(assembled, monkeypatch):
    first = assembled()
    window = first.windows.create("one", settings=SMALL)
    ids = first.runtime.store.reserve(100)
    tokens = first.engine.tokenize("An answer that was never fin")
    place, now = (window.id, ids.assistant_turn, ids.start), first.now()
    first.runtime.store.save_drafts([Draft(*place, None, tokens, "scripted", now, now)])
    with first.runtime.store._db.writing() as db:
        db.execute("UPDATE drafts SET owner = 'localhost-that-was 1 1', saved = 0")
    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "append", refusing(StoreBusy("Another process held it.")))
        assert not assembled().windows.context(window.id).turns
    assert spoken_in(assembled(), window.id) == ["An answer that was never fin"]


def test_a_reply_is_stored_though_another_process_holds_the_store_for_long(assembled, monkeypatch):
    weave = assembled(ScriptedEngine(["Thirteen lamps burn."]))
    window = weave.windows.create("one", settings=SMALL)
    turn = weave.turns.steps(window.id, "How many?")
    next(event for event in turn if isinstance(event, events.TokenGenerated))
    append, left = SqliteStore.append, [1, 2, 3]

    def busy(store, *given, **named):
        if left.pop() > 1:
            raise StoreBusy("Another process held it.")
        return append(store, *given, **named)

    monkeypatch.setattr(SqliteStore, "append", busy)
    assert list(turn)[-1].reason == "eos"
    assert spoken_in(weave, window.id) == ["How many?", "Thirteen lamps burn."]


def refusing(error):
    def append(*given, **named):
        raise error

    return append


def spoken_in(weave, window):
    return ["".join(one.chunk.text for one in turn.chunks) for turn in weave.windows.context(window).turns]


def test_taking_a_deletion_back_holds_for_every_window(assembled):
    weave = assembled()
    here, there = (weave.windows.create(name, settings=SMALL) for name in ("here", "there"))
    list(weave.turns.steps(here.id, FACT))
    answer = weave.windows.context(here.id).turns[1].chunks[0].chunk.key
    list(weave.turns.steps(there.id, "Something else."))
    weave.chunks.resurrect(there.id, answer)  # its question is not live there
    before = lived(weave, here.id), lived(weave, there.id)
    gone = weave.chunks.delete(there.id, answer)
    assert set(gone.windows) == {here.id, there.id}
    assert not lived(weave, here.id)
    assert set(weave.chunks.undelete(there.id, gone.keys)) == {here.id, there.id}
    assert (lived(weave, here.id), lived(weave, there.id)) == before


@pytest.mark.parametrize("name", ["灯台守の長い長い記録と、その家族についての覚え書き", "🗼" * 200])
def test_the_name_of_another_window_is_counted_and_never_too_long(assembled, name):
    weave = assembled()
    there = weave.windows.create(name, settings=SMALL)
    for word in ("barometer", "lantern", "foghorn"):
        list(weave.turns.steps(there.id, f"The {word} of the lighthouse was bought in Oslo."))
    here = weave.windows.create("here", settings={**SMALL, "timestamps": True, "max_context_tokens": 2000})
    for _ in range(2):
        turn = list(weave.turns.steps(here.id, "What of the lighthouse was bought in Oslo?"))
    budget = weave.windows.context(here.id).budget
    counted = budget.system + budget.pinned + budget.live + budget.frames
    read = of(events.PrefillFinished, turn)[0]
    in_model = read.reused + read.restored + read.computed + len(of(events.TokenGenerated, turn))
    assert sum(turn.window == there.id for turn in weave.windows.context(here.id).turns) >= 3
    assert of(events.MessageStored, turn)[0].frames == budget.frames
    # The reply's footer is not in the model yet, its last token may not be, and footers are short. Neighbouring quotations
    # share a frame, which is counted for each of them.
    assert (
        0
        <= counted - in_model
        <= 8 + 5 * sum(one.window == there.id for one in weave.windows.context(here.id).turns)
    )


def test_the_memory_can_be_cleared_while_others_look_at_it(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, FACT))
    busy = weave.turns.steps(window.id, "Go on.")
    next(busy)
    with pytest.raises(WindowBusy):
        weave.memory.clear()
    list(busy)
    weave.memory.clear()
    assert weave.windows.list() == []
    again = weave.windows.create("two", settings=SMALL)
    assert not of(
        events.ChunksResurrected, list(weave.turns.steps(again.id, "Where does the lighthouse key hang?"))
    )


def test_another_model_reads_the_same_text_in_its_own_tokens(assembled):
    first = assembled()
    window = first.windows.create("one", settings=SMALL)
    list(first.turns.steps(window.id, FACT))
    before = [(key, text) for key, text, _, _ in lived(first, window.id)]

    class Spelling(ScriptedEngine):
        """Another tokenizer: one token a letter."""

        def __init__(self) -> None:
            super().__init__()
            object.__setattr__(self._info, "tokenizer", "letters")

        def tokenize(self, text, *, special=False):
            if special:
                return super().tokenize(text, special=True)
            pieces = [bytes([byte]) for byte in text.encode()]
            return Tokens.of([piece[0] | 1 << 24 for piece in pieces], pieces)

    second = assembled(Spelling())
    assert [(key, text) for key, text, _, _ in lived(second, window.id)] == before
    chunk = second.windows.context(window.id).turns[0].chunks[0].chunk
    assert len(chunk) == len(FACT) != chunk.span
    stored = second.runtime.store
    assert {one.tokenizer for one in stored.live(window.id)} == {"scripted"}  # looking stores nothing
    assert spoken(list(second.turns.steps(window.id, "Hello."))) == "You said: Hello."
    assert {one.tokenizer for one in stored.live(window.id)} == {"letters"}
    third = assembled()
    assert [(key, text) for key, text, _, _ in lived(third, window.id)][:2] == before


def test_a_user_can_pin_put_to_sleep_and_wake(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, FACT))
    key = weave.windows.context(window.id).turns[0].chunks[0].chunk.key
    weave.chunks.pin(window.id, key)
    chatter(weave, window.id, 20)
    assert weave.windows.context(window.id).turns[0].chunks[0].chunk.key == key
    weave.chunks.unpin(window.id, key)
    weave.chunks.prune(window.id, key)
    assert weave.chunks.why(window.id, key).history[0].detail["why"] == "by the user"
    assert not weave.chunks.why(window.id, key).live
    woken = weave.chunks.resurrect(window.id, key)
    assert woken.resurrected[0].chunk.text == FACT
    seen = weave.windows.context(window.id).turns[0].chunks[0]
    assert seen.pinned
    assert np.all(seen.brightness == 10_000)
    with pytest.raises(BadInput, match="awake already"):
        weave.chunks.resurrect(window.id, key)


def test_gaps_count_what_sleeps_between_live_chunks(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 0})
    chatter(weave, window.id, 5)
    turns = weave.windows.context(window.id).turns
    for turn in turns[2:4]:
        for one in turn.chunks:
            weave.chunks.prune(window.id, one.chunk.key)
    context = weave.windows.context(window.id)
    gap = next(turn for turn in context.turns if turn.turn_id == turns[4].turn_id).chunks[0].gap
    slept = [one.chunk for turn in turns[2:4] for one in turn.chunks]
    assert (gap.chunks, gap.tokens) == (len(slept), sum(len(chunk) for chunk in slept))
    whole, inside = weave.windows.gap(
        window.id, turns[1].chunks[-1].chunk.stop, turns[4].chunks[0].chunk.start
    )
    assert whole == gap
    assert [one.key for one in inside] == [chunk.key for chunk in slept]


def test_deleting_the_newest_answer_gives_the_text_back_and_can_be_undone(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, "First."))
    list(weave.turns.steps(window.id, FACT))
    before = lived(weave, window.id)
    answer = weave.windows.context(window.id).turns[-1].chunks[0].chunk.key
    expected = weave.chunks.preview_delete(window.id, answer)
    assert (expected.turns, expected.text) == (2, FACT)
    assert lived(weave, window.id) == before
    gone = weave.chunks.delete(window.id, answer)
    assert replace(gone, windows=()) == expected
    assert len(weave.windows.context(window.id).turns) == 2
    assert not weave.memory.search("barometer")
    assert not of(events.ChunksResurrected, list(weave.turns.steps(window.id, "Where is the barometer?")))
    weave.chunks.undelete(window.id, gone.keys)
    texts = [text for _, text, _, _ in lived(weave, window.id)]
    assert FACT in texts
    assert weave.memory.search("barometer")


def test_an_older_answer_gives_no_text_back(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, FACT))
    list(weave.turns.steps(window.id, "Second."))
    older = weave.windows.context(window.id).turns[1].chunks[0].chunk.key
    assert weave.chunks.preview_delete(window.id, older).text is None


def test_chunks_of_a_turn_merge(assembled):
    weave = assembled(ScriptedEngine(["First part of it all here.\n\nSecond part of it all here."]))
    window = weave.windows.create("one", settings={**SMALL, "min_chunk_tokens": 4})
    list(weave.turns.steps(window.id, "Tell."))
    first, second = weave.windows.context(window.id).turns[1].chunks
    into = weave.chunks.merge(window.id, second.chunk.key)
    assert into == first.chunk.key
    (merged,) = weave.windows.context(window.id).turns[1].chunks
    assert merged.chunk.text == first.chunk.text + second.chunk.text
    assert spoken(list(weave.turns.steps(window.id, "Go on."))) == "You said: Go on."


def test_a_preview_changes_nothing(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    list(weave.turns.steps(window.id, FACT))
    chatter(weave, window.id, 30)
    before = lived(weave, window.id)
    preview = weave.memory.preview(window.id, "the lighthouse")
    assert any(text == FACT for text in preview.texts.values())
    assert lived(weave, window.id) == before


def test_windows_are_made_changed_and_deleted_and_their_words_stay(assembled):
    weave = assembled()
    window = weave.windows.create("one", user_name="Ada", settings=SMALL)
    list(weave.turns.steps(window.id, FACT))
    weave.windows.change(window.id, name="two", settings={"top_k": 7}, reset=["timestamps"])
    assert weave.windows.get(window.id).name == "two"
    assert weave.windows.settings(window.id).top_k == 7
    assert weave.windows.settings(window.id).timestamps is True
    assert weave.windows.settings().top_k == 0
    weave.windows.change_settings({"top_k": 9, "min_p": 0.1})
    assert (weave.windows.settings(window.id).top_k, weave.windows.settings(window.id).min_p) == (7, 0.1)
    weave.windows.change_settings({}, reset=["min_p"])
    assert weave.windows.settings(window.id).min_p == 0.0
    with pytest.raises(BadSetting, match="no setting"):
        weave.windows.change(window.id, settings={"colour": 1})
    weave.windows.delete(window.id)
    with pytest.raises(UnknownWindow, match="deleted"):
        weave.windows.context(window.id)
    other = weave.windows.create("other", settings=SMALL)
    turn = list(weave.turns.steps(other.id, "Where is the lighthouse key?"))
    assert FACT in [one.chunk.text for one in of(events.ChunksResurrected, turn)[0].chunks]


def test_two_who_change_different_settings_at_once_both_get_theirs(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id

    def change(name: str) -> None:
        for i in range(1, 30):
            weave.windows.change_settings({name: i})
            weave.windows.change(window, settings={name: i + 1}, reset=["timestamps"])
            assert getattr(weave.windows.settings(), name) == i
            assert getattr(weave.windows.settings(window), name) == i + 1

    with ThreadPoolExecutor(2) as both:
        list(both.map(change, ["top_k", "min_chunk_tokens"]))


@pytest.mark.parametrize("name", ["", "  ", "x" * 201])
def test_a_window_needs_a_name(assembled, name):
    with pytest.raises(BadInput, match="1 to 200"):
        assembled().windows.create(name)


def test_the_system_prompt_is_the_windows_own_and_never_in_memory(assembled):
    weave = assembled()
    window = weave.windows.create("one", system_prompt="You are a pirate of the seven seas.", settings=SMALL)
    list(weave.turns.steps(window.id, "Hello."))
    assert "pirate" in spoken_prompt(weave, window.id)
    assert not weave.memory.search("pirate seven seas")
    weave.windows.change(window.id, system_prompt="")
    assert spoken(list(weave.turns.steps(window.id, "Still there?"))) == "You said: Still there?"
    assert "pirate" not in spoken_prompt(weave, window.id)


def test_unknown_chunks_and_windows_are_named(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    for act in (
        weave.chunks.pin,
        weave.chunks.unpin,
        weave.chunks.prune,
        weave.chunks.resurrect,
        weave.chunks.merge,
        weave.chunks.delete,
        weave.chunks.why,
    ):
        with pytest.raises(UnknownChunk):
            act(window.id, ChunkKey(99, 0, Role.USER))
    with pytest.raises(UnknownWindow):
        next(weave.turns.steps("nowhere", "Hello."))


def test_deleting_the_newest_exchange_gives_back_all_that_was_said_also_what_sleeps(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "min_chunk_tokens": 4, "max_context_tokens": 0})
    text = "The first thing to say here.\n\nThe second thing to say here.\n\nThe third."
    list(weave.turns.steps(window.id, text))
    first, second, *_ = [
        one.chunk.key for turn in weave.windows.context(window.id).turns for one in turn.chunks
    ]
    weave.chunks.prune(window.id, second)
    deletion = weave.chunks.delete(window.id, first)
    assert deletion.text == text
    weave.chunks.undelete(window.id, deletion.keys)
    back = {one.chunk.key: one for turn in weave.windows.context(window.id).turns for one in turn.chunks}
    assert first in back
    assert second not in back  # it slept before
    assert back[first].resurrect_reason is None  # its deletion was taken back: it never slept


def test_when_nothing_fits_the_user_is_told_what_takes_the_room(assembled):
    weave = assembled(ScriptedEngine(context=2048))
    window = weave.windows.create("one", settings={**SMALL, "max_new_tokens": 500})
    with pytest.raises(BadInput, match="Send it in parts"):
        list(weave.turns.steps(window.id, "word " * 2000))
    weave.windows.change(window.id, system_prompt="Be kind. " * 900)
    with pytest.raises(BadInput, match="Shorten the system prompt"):
        list(weave.turns.steps(window.id, "Hello."))


def test_a_window_knows_when_it_was_spoken_in(assembled):
    weave = assembled()
    older, newer = weave.windows.create("older"), weave.windows.create("newer")
    list(weave.turns.steps(older.id, "Hello."))
    said = {one.window.id: one.last_said for one in weave.windows.list()}
    assert said[newer.id] is None
    assert said[older.id] > newer.modified


@pytest.mark.parametrize("shared", [{"temperature": 99, "later": 1, "top_k": 7}, 5, None])
def test_stored_settings_never_make_a_window_unusable(assembled, shared):
    """Such as a newer version leaves behind, or an import brings."""
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL)
    newer = {**SMALL, "later": {"any": "thing"}, "temperature": -1, "top_p": 0.5}
    weave.runtime.store.change_window(window.id, now=weave.now(), settings=newer)
    with weave.runtime.store._db.writing() as db:
        db.execute(
            "INSERT INTO settings (key, value, modified) VALUES ('windows', ?, 0)", (json.dumps(shared),)
        )
    assert of(events.TurnEnded, list(weave.turns.steps(window.id, "Hello there.")))
    settings = weave.windows.settings(window.id)
    assert (settings.temperature, settings.top_p) == (weave.windows.settings().temperature, 0.5)
    weave.windows.change_settings({"min_p": 0.25})
    assert weave.windows.settings(window.id).min_p == 0.25
    weave.windows.change(window.id, settings={"temperature": 1.5})
    assert weave.windows.settings(window.id).temperature == 1.5
    assert weave.windows.get(window.id).settings["later"] == {"any": "thing"}
    with pytest.raises(BadSetting, match="no setting"):
        weave.windows.change(window.id, settings={"later": 1})


@pytest.mark.parametrize("mode", ["earned", "hybrid", "fresh"])
def test_what_wakes_up_in_an_empty_window_is_as_bright_as_what_was_just_said(assembled, mode):
    weave = assembled()
    there = weave.windows.create("there", settings=SMALL)
    list(weave.turns.steps(there.id, FACT))
    here = weave.windows.create("here", settings={**SMALL, "resurrection_brightness": mode})
    turn = list(weave.turns.steps(here.id, "Where does the lighthouse key hang?"))
    woken = {one.chunk.key for one in of(events.ChunksResurrected, turn)[0].chunks}
    before = of(events.BrightnessChanged, turn)
    peaks = {
        one.chunk.key: one.brightness.max()
        for seen in weave.windows.context(here.id).turns
        for one in seen.chunks
    }
    assert woken
    assert before
    assert min(peaks[key] for key in woken) > 9_900


def test_what_is_free_leaves_room_for_the_reply_in_the_model(assembled):
    weave = assembled(ScriptedEngine(context=1024))
    window = weave.windows.create(
        "one", settings={**SMALL, "max_context_tokens": 2000, "max_new_tokens": 100}
    )
    list(weave.turns.steps(window.id, "Hello."))
    budget = weave.windows.context(window.id).budget
    assert budget.system + budget.live + budget.frames + budget.reserve + budget.free == 1024
