"""The events of a window: nothing lost, nothing doubled, bounded."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.chat.event_hub import EACH, EACH_TOKEN, EventHub, EventHubs
from halo_weave.chat.events import (
    BrightnessChanged,
    ChunksPruned,
    EventsLost,
    PrunedChunk,
    SearchStarted,
    TokenGenerated,
    WindowDeleted,
)
from halo_weave.core.pruning import PruneReason
from halo_weave.core.tokens import ChunkKey, Role


def token(text="x", position=0):
    return TokenGenerated(1, position, text.encode(errors="replace"), text)


def large(tokens):
    """An event that tells of so many tokens."""
    return ChunksPruned(
        (PrunedChunk(ChunkKey(1, 0, Role.USER), tokens, 1.0, PruneReason.DIMMEST),), 0, 0, False
    )


def bright():
    return BrightnessChanged(np.zeros(3, np.float32))


def seen(hub, after):
    return [(one.id, one.event) for one in hub.since(hub.place(after))[0]]


def events_seen(hub, after):
    return [event for _, event in seen(hub, after)]


def test_a_watcher_gets_what_came_after_the_event_it_saw_last():
    hub = EventHub("run")
    ids = [hub.publish(token(str(i))) for i in range(5)]
    assert seen(hub, ids[1]) == [(ids[i], token(str(i))) for i in (2, 3, 4)]
    assert seen(hub, ids[4]) == []


def test_a_new_watcher_begins_with_what_comes():
    hub = EventHub("run")
    hub.publish(token())
    assert seen(hub, None) == []
    assert seen(hub, "") == []


@pytest.mark.parametrize(
    "after", ["other-1", "run-99", "run-", "run-x", "garbage", "-", "run-" + "9" * 30, "run--1"]
)
def test_an_id_that_means_nothing_here_is_told_to_reload(after):
    hub = EventHub("run")
    last = hub.publish(token())
    assert seen(hub, after) == [(last, EventsLost())]


def test_a_watcher_that_was_away_too_long_is_told_to_reload():
    hub = EventHub("run", kept_events=3)
    ids = [hub.publish(token(position=i)) for i in range(6)]
    assert events_seen(hub, ids[1]) == [EventsLost()]
    assert [event.position for event in events_seen(hub, ids[2])] == [3, 4, 5]


def test_what_is_kept_is_bounded_in_bytes():
    hub = EventHub("run", kept_bytes=4000)
    for _ in range(100):
        hub.publish(large(10))
    assert hub.held <= 4000
    assert len(hub._kept) == 4000 // (EACH + 10 * EACH_TOKEN)


def test_who_has_not_seen_what_was_let_go_is_told_to_reload():
    hub = EventHub("run")
    ids = [hub.publish(token(position=i)) for i in range(3)]
    held = hub.held
    assert hub.forget() == held > 0
    assert hub.held == 0
    assert events_seen(hub, ids[1]) == [EventsLost()]
    assert seen(hub, ids[2]) == []


def test_the_windows_that_were_silent_longest_make_room():
    hubs = EventHubs(kept_bytes=6000)
    first = {}
    for window in "abc":
        first[window] = hubs.of(window).last
        hubs.of(window).publish(large(40))
        hubs.bound(window)
    hubs.of("a").publish(token())
    hubs.bound("a")
    for _ in range(20):
        hubs.of("d").publish(token())
        hubs.bound("d")
        assert sum(hubs.of(window).held for window in "abcd") <= 6000
        if not hubs.of("b").held:
            break
    assert hubs.of("a").held
    assert hubs.of("c").held
    assert events_seen(hubs.of("b"), first["b"]) == [EventsLost()]
    assert seen(hubs.of("b"), hubs.of("b").last) == []
    assert events_seen(hubs.of("a"), first["a"]) == [large(40), token()]
    assert all(event == token() for event in events_seen(hubs.of("d"), hubs.of("d")._id(0)))


def test_only_the_newest_brightness_is_kept_and_nothing_counts_as_lost():
    hub = EventHub("run")
    first = hub.publish(SearchStarted(1))
    for i in range(50):
        newest = bright()
        hub.publish(newest)
        hub.publish(token(position=i))
    events = events_seen(hub, first)
    assert [event.position for event in events if isinstance(event, TokenGenerated)] == list(range(50))
    assert [event for event in events if isinstance(event, BrightnessChanged)] == [newest]


@given(st.lists(st.booleans(), max_size=40), st.lists(st.integers(0, 45), max_size=6))
def test_however_a_watcher_comes_and_goes_it_sees_every_token_once(spoken, breaks):
    hub = EventHub("run")
    last, tokens = hub.last, []

    def look():
        nonlocal last
        for number, event in seen(hub, last):
            last = number
            if isinstance(event, TokenGenerated):
                tokens.append(event.position)

    for i, speaks in enumerate(spoken):
        hub.publish(token(position=i) if speaks else bright())
        if i in breaks:
            look()
    look()
    assert tokens == [i for i, speaks in enumerate(spoken) if speaks]


@given(
    st.lists(st.sampled_from(["token", "brightened", "forget"]), max_size=40),
    st.lists(st.integers(0, 45), max_size=6),
)
def test_whatever_is_let_go_a_watcher_misses_no_token_without_being_told(names, breaks):
    hub = EventHub("run")
    last, known, said = hub.last, set(), set()
    for i, name in enumerate([*names, "end"]):
        if name == "forget":
            hub.forget()
        elif name != "end":
            hub.publish(token(position=i) if name == "token" else bright())
            said |= {i} if name == "token" else set()
        if i in breaks or name == "end":
            for number, event in seen(hub, last):
                last = number
                if isinstance(event, TokenGenerated):
                    known.add(event.position)
                elif isinstance(event, EventsLost):
                    known |= said
            assert known == said


def test_threads_publish_and_every_watcher_sees_the_same():
    hubs = EventHubs()
    hub = hubs.of("w")
    after, results = hub.last, []

    def watch():
        results.append([one.event.position for one in hub.follow(after)])

    watchers = [threading.Thread(target=watch) for _ in range(4)]
    for one in watchers:
        one.start()
    lock, numbers = threading.Lock(), iter(range(600))

    def speak():
        for _ in range(150):
            with lock:
                hub.publish(token(position=next(numbers)))

    speakers = [threading.Thread(target=speak) for _ in range(4)]
    for one in speakers:
        one.start()
    for one in speakers:
        one.join()
    hubs.close()
    for one in watchers:
        one.join()
    assert results == [list(range(600))] * 4
    assert hubs.watchers == 0


def test_a_deleted_window_says_so_and_lets_its_watchers_go():
    hubs = EventHubs()
    followed = hubs.of("w").follow(hubs.of("w").last)
    hubs.drop("w")
    assert [one.event for one in followed] == [WindowDeleted()]


def test_another_run_of_the_program_has_other_ids():
    assert EventHubs().of("w").last != EventHubs().of("w").last
