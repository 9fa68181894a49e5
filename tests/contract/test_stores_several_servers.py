"""Several servers on one memory: a window is written by one of them at a time, and the others hear what it did."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from halo_weave.app import Options, build_weave, open_store
from halo_weave.chat import remote_replies
from halo_weave.chat import runtime as system_module
from halo_weave.chat.events import TokenGenerated, TurnEnded, TurnFailed, WindowChanged, WindowDeleted
from halo_weave.core.tokens import Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.errors import LeaseLost, StoreUnreachable, WindowBusy
from halo_weave.store.records import ChunkMove, Draft
from tests.store.material import NOW, ask, exchange, sleep, user


@pytest.fixture
def one(address):
    with open_store(address) as store:
        yield store


@pytest.fixture
def other(address, one):
    with open_store(address) as store:
        yield store


@pytest.fixture
def window(one):
    return one.create_window("talk", now=NOW).id


@pytest.fixture
def servers(address, folder):
    """Two whole systems on one memory."""
    pair = [
        build_weave(Options(data=folder / name, store=address, engine="scripted", embedder="off"))
        for name in ("a", "b")
    ]
    yield pair
    for weave in pair:
        weave.close()


def until(check: Callable[[], object], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.01)
    return False


def test_a_window_is_written_by_one_process_and_the_others_are_told_which(one, other, window):
    with one.fleet.lease(window):
        with (
            pytest.raises(WindowBusy, match=r"written to by the server on \S+ \(process \d+\)"),
            other.fleet.lease(window),
        ):
            pass
        with pytest.raises(WindowBusy, match="free in 1"):
            ask(other, window, "meanwhile")
        ask(one, window, "hello")
    with other.fleet.lease(window):
        ask(other, window, "and now")
    assert len(one.live(window)) == 2


def test_who_was_silent_for_too_long_cannot_write_any_more(one, other, window):
    exchange(one, window, "hello", "there")
    one.fleet.term = 0.05
    one.fleet._start = lambda: None  # nothing renews it, as in a process that is stopped
    with one.fleet.lease(window):
        time.sleep(0.06)
        ask(one, window, "late, but nobody else came")
        with other.fleet.lease(window):
            ask(other, window, "taken over")
        turns = one.stats().turns
        for late in (
            lambda: ask(one, window, "too late"),
            lambda: sleep(one, window, user(1)),
            lambda: one.pin(window, user(1), now=NOW),
            lambda: one.switch(window, 1, now=NOW),
            lambda: one.delete_window(window, now=NOW),
            lambda: one.save_drafts([_draft(one, window)]),
            lambda: one.save_brightness(window, *_light(one, window)),
        ):
            with pytest.raises(LeaseLost, match="another one has taken this window over"):
                late()
        assert one.stats().turns == turns
    with other.fleet.lease(window), pytest.raises(WindowBusy):  # what was lost cannot be given back
        ask(one, window, "again")
    ask(one, window, "now it is free")
    assert one.verify() == []


STOPPED = """
import sys
from halo_weave.app import open_store
from halo_weave.errors import LeaseLost
from tests.store.material import ask

store, window = open_store(sys.argv[1]), sys.argv[2]
store.fleet.term = 0.3
with store.fleet.lease(window):
    ask(store, window, "mine")
    print("held", flush=True)
    sys.stdin.readline()
    try:
        ask(store, window, "too late")
    except LeaseLost as error:
        print(error, flush=True)
"""


def test_a_process_that_was_stopped_and_taken_over_writes_nothing_when_it_goes_on(one, address, window):
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, address, window],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout.readline() == "held\n"
            other.send_signal(signal.SIGSTOP)
            assert until(lambda: _taken(one, window))
            other.send_signal(signal.SIGCONT)
            said, _ = other.communicate("go on\n", timeout=60)
        finally:
            other.kill()
    assert "taken this window over" in said
    assert [chunk.chunk.text for chunk in one.live(window)] == ["mine", "taken over"]


def _taken(store, window) -> bool:
    try:
        with store.fleet.lease(window):
            ask(store, window, "taken over")
            return True
    except WindowBusy:
        return False


def test_what_is_shared_no_longer_ends_a_reply_that_another_server_writes_with_it(one, other, window):
    ann, bob = (one.add_person(name, f"{name}-hash", now=NOW).id for name in ("ann", "bob"))
    private = one.create_window("ann's", now=NOW, owner=ann).id
    key = user(ask(one, private, "the secret").user_turn)
    own = one.create_window("bob's", now=NOW, owner=bob).id
    one.share(ann, private, bob, writes=False, now=NOW)
    with other.fleet.lease(own):
        other.resurrect(own, [ChunkMove(key, np.ones(2, np.float32), {})], now=NOW)
        assert one.unshare(ann, private, bob)
        assert one.live(own) == []
        with pytest.raises(LeaseLost):
            other.resurrect(own, [ChunkMove(key, np.ones(2, np.float32), {})], now=NOW)
    assert one.live(own) == []


def test_sync_does_not_change_a_window_that_another_server_writes(one, other, window, folder):
    exchange(one, window, "Minka purrs", "good")
    (folder / "shared").mkdir()
    one.sync(folder / "shared", now=NOW)
    with open_store(folder / "device") as device:
        device.sync(folder / "shared", now=NOW)
        ask(device, window, "Felix hunts")
        device.sync(folder / "shared", now=NOW)
    with other.fleet.lease(window):
        with pytest.raises(WindowBusy):
            one.sync(folder / "shared", now=NOW)
        assert len(one.live(window)) == 2
    assert one.sync(folder / "shared", now=NOW).turns == 1
    assert len(one.live(window)) == 3


def test_a_write_without_a_lease_takes_the_window_from_who_lost_it(one, other, window):
    one.fleet.term = 0.05
    one.fleet._start = lambda: None
    with one.fleet.lease(window):
        time.sleep(0.06)
        ask(other, window, "nobody writes here")
        with pytest.raises(LeaseLost):
            ask(one, window, "too late")


def test_a_lease_that_is_needed_for_long_is_renewed(one, other, window):
    one.fleet.term = 3.0
    with one.fleet.lease(window):
        first = _expires(one)
        assert until(lambda: _expires(one) >= first + 2e6)
        with pytest.raises(WindowBusy), other.fleet.lease(window):
            pass
        ask(one, window, "still mine")


def test_a_draft_is_abandoned_when_its_writer_loses_the_window(one, other, window):
    ids = ask(one, window, "tell me")
    one.fleet._start = lambda: None
    with one.fleet.lease(window):
        one.save_drafts([_draft(one, window, ids)])
        assert other.drafts(now=NOW) == []
        with one._db.writing() as db:
            db.raw.execute("UPDATE leases SET expires = 0")
        (draft,) = other.drafts(now=NOW)
        assert draft.turn_id == ids.assistant_turn


def test_news_come_within_a_second_and_none_is_missed_while_the_line_is_down(one, other, window, server):
    heard = []
    other.fleet.listen(heard.append)
    with one.fleet.lease(window):
        pass
    assert until(lambda: [news.window for news in heard] == [window])
    listening = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%FROM feed WHERE number%'"
    server.run(listening)
    names = [one.create_window(f"window {i}", now=NOW).id for i in range(5)]
    one.fleet.tell(names)
    one.fleet.tell([window], "deleted")
    assert until(lambda: [news.window for news in heard] == [window, *names, window])
    assert heard[-1].event == "deleted"
    other.fleet.tell([window])
    one.fleet.tell([window])
    assert until(lambda: len(heard) == 8)  # its own it does not hear


def test_a_turn_begun_on_one_server_goes_on_with_the_next_on_another(servers):
    one, other = servers
    window = one.windows.create("talk").id
    hub = other.turns.hub(window)
    for weave in (one, other, one):
        list(weave.turns.steps(window, "Good morning."))
    page = other.windows.said(window)
    assert [turn.role for turn in page.turns] == ["user", "assistant"] * 3
    live = [[turn.turn_id for turn in weave.windows.context(window).turns] for weave in servers]
    assert live[0] == live[1]
    assert len(live[0]) == 6
    assert until(lambda: any(isinstance(told.event, WindowChanged) for told in hub.since(0)[0]))


def test_a_page_on_another_server_sees_the_words_before_the_reply_is_done(servers):
    one, other = servers
    window = one.windows.create("talk").id
    go_on = threading.Event()
    one.engine.pause = lambda: go_on.wait(20)
    hub = other.turns.hub(window)
    one.turns.send_message(window, "Are you there?").result()
    assert until(lambda: any(isinstance(told.event, WindowChanged) for told in hub.since(0)[0]))
    assert "Are you there?" in str(
        [chunk.chunk.text for turn in other.windows.context(window).turns for chunk in turn.chunks]
    )
    with pytest.raises(WindowBusy, match="written to by the server on"):
        other.turns.send_message(window, "Me too").result()
    go_on.set()
    assert until(lambda: _ended(one.turns.hub(window)))
    other.turns.send_message(window, "Me too").result()


def test_a_reply_can_be_stopped_through_any_server(servers):
    one, other = servers
    window = one.windows.create("talk").id
    one.engine.answer = lambda prompt: "word " * 400
    one.engine.pause = lambda: time.sleep(0.02)
    hub = one.turns.hub(window)
    one.turns.send_message(window, "Tell me everything.").result()
    assert other.turns.abort(window)
    assert until(lambda: _ended(hub))
    assert _ended(hub)[0].reason == "abort"
    assert not other.turns.abort(window)


def test_a_server_that_was_taken_over_ends_its_reply_with_a_sentence(servers):
    one, other = servers
    window = one.windows.create("talk").id
    fleet = one.runtime.store.fleet
    fleet.term, fleet._renew = 0.3, lambda raw: None
    one.engine.answer = lambda prompt: "word " * 400
    one.engine.pause = lambda: time.sleep(0.01)
    hub = one.turns.hub(window)
    begun = one.turns.send_message(window, "Tell me everything.").result()
    assert until(lambda: _said(other, window))
    failed = lambda: [told.event for told in hub.since(0)[0] if isinstance(told.event, TurnFailed)]  # noqa: E731
    assert until(failed)
    assert "taken this window over" in failed()[0].sentence
    page = other.windows.said(window)
    assert [turn.turn_id for turn in page.turns][:2] == [
        begun.first_event.turn_id,
        begun.first_event.reply_turn,
    ]
    assert page.turns[1].cut
    assert len(page.turns) == 4
    assert other.runtime.store.verify() == []


def _expires(store) -> int:
    with store._db.reading() as db:
        return db.raw.execute("SELECT expires FROM leases").fetchone()[0]


def _ended(hub) -> list[TurnEnded]:
    return [told.event for told in hub.since(0)[0] if isinstance(told.event, TurnEnded)]


def _said(weave, window) -> bool:
    try:
        return bool(list(weave.turns.steps(window, "Hello from elsewhere.")))
    except WindowBusy:
        return False


def test_a_window_deleted_on_one_server_is_gone_on_the_other(servers):
    one, other = servers
    window = one.windows.create("talk").id
    hub = other.turns.hub(window)
    one.windows.change_settings({"max_new_tokens": 77})
    assert other.windows.settings().max_new_tokens == 77
    one.windows.delete(window)
    assert until(lambda: hub.closed)
    assert any(isinstance(told.event, WindowDeleted) for told in hub.since(0)[0])


def test_what_was_said_on_one_server_is_recalled_on_another(servers):
    one, other = servers
    window = one.windows.create("talk").id
    assert not other.memory.search("violin")
    list(one.turns.steps(window, "Clara plays the violin."))
    assert other.memory.search("violin")


def test_a_database_that_is_gone_is_told_apart(server):
    with pytest.raises(StoreUnreachable, match="Check that the database runs"):
        open_store("postgresql://ada@127.0.0.1:1/halo")


def _draft(store, window, ids=None) -> Draft:
    ids = ids or store.reserve(100)
    tokens = Tokens.of([1, 2], [b"some", b" words"])
    return Draft(window, ids.assistant_turn, ids.start + 50, ids.user_turn, tokens, "tests", NOW, NOW)


def _light(store, window) -> tuple[list, np.ndarray]:
    live: list[LiveChunk] = store.live(window)
    return [one.chunk for one in live], np.concatenate([one.brightness for one in live])


class Paced:
    """A reply that the first server writes, held after so many tokens; and what a watcher on the second one is told."""

    def __init__(self, servers, hub, window) -> None:
        self.one, self.other = servers
        self.hub, self.window = hub, window
        self.spoken, self.allowed = 0, 20
        self.one.engine.answer = lambda prompt: " ".join(f"word{number}" for number in range(60))
        self.one.engine.pause = self._pause
        self.begun = self.one.turns.send_message(window, "Tell me everything.").result()

    def _pause(self) -> None:
        self.spoken += 1
        until(lambda: self.spoken <= self.allowed, 60)

    def told(self, kind: type) -> list:
        return [told.event for told in self.hub.since(0)[0] if isinstance(told.event, kind)]

    def shown(self) -> list[str]:
        reply = self.other.windows.context(self.window).reply
        return reply.text_pieces if reply else []

    def ended(self) -> bool:
        return bool(_ended(self.one.turns.hub(self.window)))

    def reply(self):
        turns = self.other.windows.said(self.window).turns
        (said,) = (turn for turn in turns if turn.turn_id == self.begun.first_event.reply_turn)
        return said, "".join(piece for chunk in said.chunks for piece in chunk.text_pieces)


@pytest.fixture
def paced(servers):
    window = servers[0].windows.create("talk").id
    hub = servers[1].turns.hub(window)
    with hub.watched(lambda: None):
        talk = Paced(servers, hub, window)
        yield talk
        talk.allowed = 1_000


def test_a_reply_appears_on_other_servers_while_it_is_written(paced):
    assert until(lambda: len(paced.shown()) == 20)
    paced.allowed = 40
    assert until(lambda: len(paced.told(TokenGenerated)) >= 20)
    assert "".join(paced.shown()).startswith("word0 word1")
    assert not paced.ended()
    paced.allowed = 1_000
    assert until(paced.ended)
    assert until(lambda: paced.other.windows.context(paced.window).reply is None)
    _, whole = paced.reply()
    shown = [(token.position, token.text) for token in paced.told(TokenGenerated)]
    assert len(dict(shown)) == len(shown)  # none is told twice
    assert "".join(text for _, text in sorted(shown)) in whole
    assert until(lambda: not paced.other.turns.remote_replies._followed)


def test_who_saw_a_reply_right_before_its_end_is_told_to_look_again(paced, monkeypatch):
    here = paced.other.turns.remote_replies
    assert until(lambda: len(paced.shown()) == 20)
    before = len(paced.told(WindowChanged))
    monkeypatch.setattr(here, "_look", lambda *window: True)
    assert until(lambda: not here._followed)
    assert until(lambda: len(paced.told(WindowChanged)) == before + 1)


def test_a_page_that_is_opened_in_the_middle_of_a_reply_follows_it_too(servers):
    one, other = servers
    window = one.windows.create("talk").id
    talk = Paced(servers, other.turns.hub(window), window)  # nobody watches when the news come
    store = one.runtime.store
    assert until(lambda: (draft := store.draft_in(window)) and len(draft.tokens) >= 20)
    assert until(lambda: len(talk.shown()) == 20)
    talk.allowed = 40
    assert until(lambda: len(talk.told(TokenGenerated)) >= 20)
    talk.allowed = 1_000
    assert until(talk.ended)


def test_a_reply_of_a_server_that_falls_silent_becomes_a_turn_for_those_who_watch(paced, monkeypatch):
    monkeypatch.setattr(remote_replies, "SILENCE_TIMEOUT", 0.2)
    assert until(lambda: len(paced.shown()) == 20)
    shown = "".join(paced.shown())
    paced.one.runtime.store.fleet._renew = lambda raw: None
    _expire(paced.other)
    assert until(lambda: paced.told(TurnFailed))
    assert "does not answer any more" in paced.told(TurnFailed)[0].sentence
    said, whole = paced.reply()
    assert said.cut
    assert whole.startswith(shown)


def test_a_server_that_was_late_goes_on_with_its_reply_while_somebody_watches_elsewhere(paced, monkeypatch):
    monkeypatch.setattr(remote_replies, "SILENCE_TIMEOUT", 60.0)
    assert until(lambda: len(paced.shown()) == 20)
    _expire(paced.other)
    followed = paced.other.turns.remote_replies._followed[paced.window]
    paced.one.runtime.store.fleet._renewed = 0.0  # it is heard of again a moment later
    assert until(lambda: paced.other.runtime.store.fleet.written(paced.window))
    assert until(lambda: followed.silent is None)
    paced.allowed = 1_000
    assert until(paced.ended)
    assert not paced.told(TurnFailed)
    assert not paced.reply()[0].cut


def test_nothing_of_a_reply_elsewhere_is_told_among_the_events_of_an_own_turn(paced):
    assert until(lambda: len(paced.shown()) == 20)
    followed = paced.other.turns.remote_replies._followed[paced.window]
    before = len(paced.told(TokenGenerated))
    with paced.other.runtime.try_lock(paced.window) as free:
        assert free
        paced.allowed = 40
        assert until(lambda: followed.count >= 40)
        with followed.guard:  # that look has ended
            assert len(paced.told(TokenGenerated)) == before


def test_who_speaks_while_something_is_told_is_not_refused(servers, monkeypatch):
    monkeypatch.setattr(system_module, "LOCK_WAIT", 20.0)
    system, inside = servers[0].runtime, threading.Event()
    window = servers[0].windows.create("talk").id

    def tell() -> None:
        with system.try_lock(window):
            inside.set()
            time.sleep(0.05)

    telling = threading.Thread(target=tell)
    telling.start()
    assert inside.wait(20)
    with system.exclusive(window):
        pass
    telling.join()


def test_news_are_heard_and_a_server_is_closed_while_a_look_waits_for_the_database(paced, monkeypatch):
    assert until(lambda: len(paced.shown()) == 20)
    here, store = paced.other.turns.remote_replies, paced.other.runtime.store
    asked, go_on, written = threading.Event(), threading.Event(), store.fleet.written

    def slow(window: str) -> bool:
        asked.set()
        go_on.wait(60)
        return written(window)

    monkeypatch.setattr(store.fleet, "written", slow)
    try:
        assert asked.wait(20)
        heard = threading.Thread(target=lambda: (here.on_window_changed(paced.window), here.close()))
        heard.start()
        heard.join(20)
        assert not heard.is_alive()
    finally:
        go_on.set()


def test_a_reply_of_a_model_with_another_tokenizer_is_left_alone(paced, monkeypatch):
    monkeypatch.setattr(remote_replies, "SILENCE_TIMEOUT", 0.1)
    here, engine = paced.other.turns.remote_replies, paced.other.engine
    assert until(lambda: len(paced.shown()) == 20)
    monkeypatch.setattr(engine, "_info", replace(engine.info, tokenizer="another"))
    fleet = paced.one.runtime.store.fleet
    renew, fleet._renew = fleet._renew, lambda raw: None
    _expire(paced.other)
    assert until(lambda: not here._followed)
    assert paced.other.runtime.store.draft_in(paced.window)
    assert not paced.told(TurnFailed)
    fleet._renew, fleet._renewed = renew, 0.0
    assert until(lambda: paced.other.runtime.store.fleet.written(paced.window))
    assert paced.shown() == []


def test_an_end_is_told_only_when_what_was_shown_is_stored(paced, monkeypatch):
    monkeypatch.setattr(remote_replies, "SILENCE_TIMEOUT", 0.1)
    tries, recovered = [], remote_replies.recover_drafts

    def refused_twice(system, only):
        tries.append(len(paced.told(TurnFailed)))
        return [] if len(tries) < 3 else recovered(system, only=only)

    monkeypatch.setattr(remote_replies, "recover_drafts", refused_twice)
    assert until(lambda: len(paced.shown()) == 20)
    paced.one.runtime.store.fleet._renew = lambda raw: None
    _expire(paced.other)
    assert until(lambda: paced.told(TurnFailed))
    assert tries == [0, 0, 0]
    assert paced.reply()[0].cut


def _expire(weave) -> None:
    with weave.runtime.store._db.writing() as db:
        db.raw.execute("UPDATE leases SET expires = 0")
