"""What was shown of a reply is stored soon, whatever comes next; and kept when the store refuses it."""

import threading
import time
from contextlib import contextmanager

import pytest

from halo_weave.chat import drafts, events
from halo_weave.chat.drafts import DraftWriter
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.errors import StoreBusy, StoreFull, UnknownWindow, WindowBusy
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL
from tests.fakes.scripted_engine import ScriptedEngine

STORY = "Thirteen lamps burn in the old lighthouse by the sea."


class Held:
    """An engine that stops for good before a token, until it is let go."""

    def __init__(self, at):
        self.at, self.tokens, self.reached, self.free = at, 0, threading.Event(), threading.Event()

    def __call__(self):
        self.tokens += 1
        if self.tokens == self.at:
            self.reached.set()
            assert self.free.wait(60)


def eventually(check):
    end = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
    return found


def drafted(weave):
    """The text of each reply that is saved while it streams."""
    found = weave.runtime.store.drafts(now=weave.now(), abandoned=False)
    return {draft.window: draft.tokens.text for draft in found}


@contextmanager
def refusing(monkeypatch, error, *names):
    with monkeypatch.context() as patched:
        for name in names:

            def refuse(*given, **named):
                raise error

            patched.setattr(SqliteStore, name, refuse)
        patched.setattr(drafts, "RETRY", 0.01)
        patched.setattr("halo_weave.chat.reply_storage.RETRY", 0.01)
        yield


def told(weave, window, after):
    return list(weave.turns.follow(window, after))


def words(weave, window):
    return ["".join(one.chunk.text for one in turn.chunks) for turn in weave.windows.context(window).turns]


def test_what_was_shown_is_saved_while_the_model_pauses(assembled):
    held = Held(at=10)
    weave = assembled(ScriptedEngine([STORY], pause=held))
    window = weave.windows.create("one", settings=SMALL).id
    begun = weave.turns.send_message(window, "Tell me.").result(30)
    assert held.reached.wait(30)
    shown = "".join(
        one.event.text
        for one in weave.turns.hub(window).since(weave.turns.hub(window).place(begun.last_event))[0]
        if isinstance(one.event, events.TokenGenerated)
    )
    assert len(shown) > 15
    eventually(lambda: drafted(weave).get(window) == shown)
    held.free.set()
    told(weave, window, begun.last_event)
    assert drafted(weave) == {}


def test_a_tools_answer_is_saved_before_the_model_goes_on(assembled):
    call = "<tool>jq '.colour = \"green\"' notes.json > output</tool>"
    weave = assembled(ScriptedEngine([call, "Green it is."]))
    store = weave.runtime.store
    weave.runtime.toolbox = Toolbox(Notes(store), StructuredMemory(store))
    window = weave.windows.create("one", settings={**SMALL, "max_new_tokens": 200}).id
    shown, readings = [], 0
    turn = weave.turns.steps(window, "Note it.")
    while readings < 2:  # with the second one the model has read the tool's answer
        event = next(turn)
        shown += [event] if isinstance(event, events.TokenGenerated) else []
        readings += isinstance(event, events.PrefillFinished)
    assert shown[-1].tool
    eventually(lambda: drafted(weave).get(window) == b"".join(one.piece for one in shown).decode())
    list(turn)


def one_for_each_thread(held):
    pauses, own = iter(held), threading.local()

    def pause():
        if not hasattr(own, "pause"):
            own.pause = next(pauses)
        own.pause()

    return pause


def test_one_transaction_saves_the_replies_of_all_windows(assembled, monkeypatch):
    held = [Held(at=8) for _ in range(3)]
    weave = assembled(ScriptedEngine([STORY] * 3, pause=one_for_each_thread(held)))
    saves, save = [], SqliteStore.save_drafts
    writer = weave.runtime.drafts
    windows = [weave.windows.create(name, settings=SMALL).id for name in "abc"]
    try:
        for window in windows:
            weave.turns.send_message(window, "Tell me.").result(30)
        assert all(one.reached.wait(30) for one in held)
        eventually(lambda: len(drafted(weave)) == 3)
        monkeypatch.setattr(
            SqliteStore, "save_drafts", lambda store, found: saves.append(len(found)) or save(store, found)
        )
        for one in writer._open:
            one._saved = 0
        writer.due.set()
        eventually(lambda: saves)
        assert saves == [3]
    finally:
        for one in held:
            one.free.set()


@pytest.mark.parametrize("error", [StoreFull("No space is left."), StoreBusy("Another process held it.")])
def test_a_reply_that_the_store_refuses_is_kept_told_and_stored_later(assembled, monkeypatch, error):
    held = Held(at=6)
    weave = assembled(ScriptedEngine([STORY], pause=held))
    window = weave.windows.create("one", settings=SMALL).id
    begun = weave.turns.send_message(window, "How many?").result(30)
    assert held.reached.wait(30)
    with refusing(monkeypatch, error, "append", "save_drafts"):
        held.free.set()
        eventually(lambda: words(weave, window) == ["How many?", STORY])
        unstored = eventually(lambda: weave.windows.context(window).unstored)
        assert "not stored yet" in unstored
        assert str(error) in unstored
        assert weave.runtime.store.turn(2) == []
        with pytest.raises(WindowBusy, match="not stored yet"):
            weave.turns.send_message(window, "And?").result(30)
    happened = told(weave, window, begun.last_event)
    sentences = [event.sentence for event in happened if isinstance(event, events.ReplyNotStored)]
    assert str(error) in sentences[0]
    assert sentences[-1] == ""
    assert isinstance(happened[-1], events.TurnEnded)
    assert weave.windows.context(window).unstored == ""
    assert words(weave, window) == ["How many?", STORY]
    assert "".join(record.chunk.text for record in weave.runtime.store.turn(2)) == STORY


def test_a_save_that_fails_in_the_middle_of_a_reply_is_told_and_taken_back(assembled, monkeypatch):
    held = Held(at=10)
    weave = assembled(ScriptedEngine([STORY], pause=held))
    window = weave.windows.create("one", settings=SMALL).id
    with refusing(monkeypatch, StoreFull("No space is left."), "save_drafts"):
        begun = weave.turns.send_message(window, "How many?").result(30)
        assert held.reached.wait(30)
        eventually(lambda: "No space" in weave.windows.context(window).unstored)
    eventually(lambda: not weave.windows.context(window).unstored)
    assert drafted(weave)[window]
    held.free.set()
    sentences = [
        event.sentence
        for event in told(weave, window, begun.last_event)
        if isinstance(event, events.ReplyNotStored)
    ]
    assert sentences[-1] == ""


def test_a_commit_that_was_made_although_it_failed_is_not_made_twice(assembled, monkeypatch):
    weave = assembled(ScriptedEngine([STORY]))
    window = weave.windows.create("one", settings=SMALL).id
    append, failures = SqliteStore.append, [StoreFull("The disk failed.")]

    def once(store, window_id, said, **named):
        numbers = append(store, window_id, said, **named)
        if said[0].chunk.key.role == "assistant" and failures:
            raise failures.pop()
        return numbers

    monkeypatch.setattr("halo_weave.chat.reply_storage.RETRY", 0.01)
    monkeypatch.setattr(SqliteStore, "append", once)
    assert isinstance(list(weave.turns.steps(window, "How many?"))[-1], events.TurnEnded)
    assert words(weave, window) == ["How many?", STORY]


def test_a_program_that_ends_does_not_wait_for_a_full_disk_for_ever(assembled, monkeypatch, caplog):
    weave = assembled(ScriptedEngine([STORY]))
    window = weave.windows.create("one", settings=SMALL).id
    turn = weave.turns.steps(window, "How many?")
    for _ in range(4):
        next(event for event in turn if isinstance(event, events.TokenGenerated))
    eventually(lambda: drafted(weave))
    with refusing(monkeypatch, StoreFull("No space is left."), "append"):
        weave.runtime.shutdown_deadline = time.monotonic()
        with pytest.raises(StoreFull):
            list(turn)
    assert "was not stored" in caplog.text
    weave.close()
    again = assembled()
    list(again.turns.steps(window, "Well?"))
    question, answer = words(again, window)[:2]
    assert question == "How many?"
    assert STORY.startswith(answer)


def test_a_window_that_is_gone_does_not_keep_others_from_being_saved(assembled, monkeypatch):
    held = [Held(at=8), Held(at=8)]
    weave = assembled(ScriptedEngine([STORY] * 2, pause=one_for_each_thread(held)))
    gone, here = (weave.windows.create(name, settings=SMALL).id for name in ("gone", "here"))
    save = SqliteStore.save_drafts

    def after_another_process_cleared(store, found):
        if any(draft.window == gone for draft in found):
            raise UnknownWindow("There is no such window.")
        save(store, found)

    monkeypatch.setattr(SqliteStore, "save_drafts", after_another_process_cleared)
    try:
        for window in (gone, here):
            weave.turns.send_message(window, "Tell me.").result(30)
        assert all(one.reached.wait(30) for one in held)
        eventually(lambda: here in drafted(weave))
        assert gone not in drafted(weave)
    finally:
        for one in held:
            one.free.set()


def test_the_writer_ends_when_nothing_was_ever_said(tmp_path):
    with SqliteStore(tmp_path / "memory.sqlite") as store:
        DraftWriter(store, lambda: None).close()


def test_while_saving_is_slow_nothing_is_shown_before_it_is_saved(assembled, monkeypatch):
    monkeypatch.setattr(drafts, "WAIT", 60)
    weave = assembled(ScriptedEngine([STORY]))
    window = weave.windows.create("one", settings=SMALL).id
    begun_saving, free, save = threading.Event(), threading.Event(), SqliteStore.save_drafts

    def slow(store, found):
        begun_saving.set()
        assert free.wait(60)
        save(store, found)

    monkeypatch.setattr(SqliteStore, "save_drafts", slow)
    begun = weave.turns.send_message(window, "Tell me.").result(30)
    assert begun_saving.wait(30)
    hub = weave.turns.hub(window)
    shown = [one.event for one in hub.since(hub.place(begun.last_event))[0]]
    assert not [event for event in shown if isinstance(event, events.TokenGenerated)]
    free.set()
    assert isinstance(told(weave, window, begun.last_event)[-1], events.TurnEnded)
    assert words(weave, window) == ["Tell me.", STORY]


def test_a_save_of_what_was_shown_goes_before_other_writes(tmp_path):
    order = []
    with SqliteStore(tmp_path / "memory.sqlite") as store:

        def write(name, urgent):
            with store._db.writing(urgent=urgent):
                order.append(name)

        with store._db.writing():
            names = [("first", False), ("second", False), ("urgent", True)]
            threads = [threading.Thread(target=write, args=one) for one in names]
            for thread in threads:
                thread.start()
            eventually(lambda: len(store._db._turn._changed._waiters) == 3)
        for thread in threads:
            thread.join(30)
    assert order[0] == "urgent"
    assert sorted(order) == ["first", "second", "urgent"]
