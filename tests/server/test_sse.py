"""Streams of events: nothing lost, nothing doubled, nothing held for those who left."""

import asyncio
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.server.sse import EventStream, Stream, Streams


def parsed(lines: bytes) -> list[tuple[str, str, object]]:
    """(id, event, data) of each event in a piece of a stream."""
    found = []
    for block in lines.decode().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":")
        )
        if "event" in fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def seen(stream: Stream, after: str | None) -> list[tuple[str, str, object]]:
    return parsed(b"".join(stream.since(stream.place(after))[0]))


def test_a_client_gets_what_came_after_the_event_it_saw_last():
    stream = Stream("run")
    ids = [stream.publish("token", {"text": str(i)}) for i in range(5)]
    assert seen(stream, ids[1]) == [(ids[i], "token", {"text": str(i)}) for i in (2, 3, 4)]
    assert seen(stream, ids[4]) == []


def test_a_new_client_begins_with_what_comes():
    stream = Stream("run")
    stream.publish("token", {})
    assert seen(stream, None) == []
    assert seen(stream, "") == []


@pytest.mark.parametrize(
    "after", ["other-1", "run-99", "run-", "run-x", "garbage", "-", "run-" + "9" * 30, "run--1"]
)
def test_an_id_that_means_nothing_here_is_told_to_reload(after):
    stream = Stream("run")
    last = stream.publish("token", {})
    assert seen(stream, after) == [(last, "reset", {})]


def test_a_client_that_was_away_too_long_is_told_to_reload():
    stream = Stream("run", kept_events=3)
    ids = [stream.publish("token", {"n": i}) for i in range(6)]
    assert [event for _, event, _ in seen(stream, ids[1])] == ["reset"]
    assert [data for _, _, data in seen(stream, ids[2])] == [{"n": 3}, {"n": 4}, {"n": 5}]


def test_what_is_kept_is_bounded_in_bytes():
    stream = Stream("run", kept_bytes=1000)
    for i in range(100):
        stream.publish("token", {"text": "x" * 90, "n": i})
    assert stream._bytes <= 1000
    assert len(stream._kept) < 12


def test_who_has_not_seen_what_was_let_go_is_told_to_reload():
    stream = Stream("run")
    ids = [stream.publish("token", {"n": i}) for i in range(3)]
    held = stream.held
    assert stream.forget() == held > 0
    assert stream.held == 0
    assert [event for _, event, _ in seen(stream, ids[1])] == ["reset"]
    assert seen(stream, ids[2]) == []


def test_the_windows_that_were_silent_longest_make_room():
    streams = Streams(kept_bytes=4000)
    first = {}
    for window in "abc":
        first[window] = streams.of(window).last
        streams.of(window).publish("token", {"text": "x" * 800})
        streams.bound(window)
    streams.of("a").publish("token", {"text": "y"})
    streams.bound("a")
    for _ in range(20):
        streams.of("d").publish("token", {"text": "z" * 100})
        streams.bound("d")
        assert sum(streams.of(window).held for window in "abcd") <= 4000
        if not streams.of("b").held:
            break
    assert streams.of("a").held
    assert streams.of("c").held
    assert [event for _, event, _ in seen(streams.of("b"), first["b"])] == ["reset"]
    assert seen(streams.of("b"), streams.of("b").last) == []
    assert [event for _, event, _ in seen(streams.of("a"), first["a"])] == ["token", "token"]
    assert all(event == "token" for _, event, _ in seen(streams.of("d"), streams.of("d")._id(0)))


def test_only_the_newest_brightness_is_kept_and_nothing_counts_as_lost():
    stream = Stream("run")
    first = stream.publish("heard", {})
    for i in range(50):
        stream.publish("brightened", {"data": i}, replaces=True)
        stream.publish("token", {"n": i})
    events = seen(stream, first)
    assert [data["n"] for _, event, data in events if event == "token"] == list(range(50))
    assert [data for _, event, data in events if event == "brightened"] == [{"data": 49}]


@given(
    st.lists(st.sampled_from(["token", "brightened"]), max_size=40), st.lists(st.integers(0, 45), max_size=6)
)
def test_however_a_client_comes_and_goes_it_sees_every_token_once(names, breaks):
    stream = Stream("run")
    last, tokens = stream.last, []
    for i, name in enumerate(names):
        stream.publish(name, i, replaces=name == "brightened")
        if i in breaks:
            events = seen(stream, last)
            tokens += [data for _, event, data in events if event == "token"]
            last = events[-1][0] if events else last
    tokens += [data for _, event, data in seen(stream, last) if event == "token"]
    assert tokens == [i for i, name in enumerate(names) if name == "token"]


@given(
    st.lists(st.sampled_from(["token", "brightened", "forget"]), max_size=40),
    st.lists(st.integers(0, 45), max_size=6),
)
def test_whatever_is_let_go_a_client_misses_no_token_without_being_told(names, breaks):
    stream = Stream("run")
    last, known, said = stream.last, set(), set()
    for i, name in enumerate([*names, "end"]):
        if name == "forget":
            stream.forget()
        elif name != "end":
            stream.publish(name, i, replaces=name == "brightened")
            said |= {i} if name == "token" else set()
        if i in breaks or name == "end":
            for number, event, data in seen(stream, last):
                last = number
                known |= {data} if event == "token" else said if event == "reset" else set()
            assert known == said


def test_text_with_line_breaks_stays_one_event():
    stream = Stream("run")
    before = stream.last
    stream.publish("token", {"text": "a\n\nid: 9\r\nevent: x\u2028"})
    [(_, event, data)] = seen(stream, before)
    assert (event, data) == ("token", {"text": "a\n\nid: 9\r\nevent: x\u2028"})


def test_threads_publish_and_every_client_sees_the_same():
    streams = Streams()
    stream = streams.of("w")

    async def client():
        got = []
        async for lines in stream.follow(stream.last):
            got += [data["n"] for _, _, data in parsed(lines)]
        return got

    async def run():
        clients = [asyncio.create_task(client()) for _ in range(8)]
        while streams.watchers < 8:
            await asyncio.sleep(0.001)
        lock, numbers = threading.Lock(), iter(range(600))

        def speak():
            for _ in range(150):
                with lock:
                    stream.publish("token", {"n": next(numbers)})

        threads = [threading.Thread(target=speak) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.001)
        streams.close()
        return await asyncio.gather(*clients)

    assert asyncio.run(run()) == [list(range(600))] * 8
    assert streams.watchers == 0


def test_a_silent_stream_says_that_it_is_still_there():
    async def run():
        lines = Stream("run").follow(None, pause=0.01)
        first = [await anext(lines) for _ in range(3)]
        await lines.aclose()
        return first

    assert asyncio.run(run()) == [b"retry: 1000\n\n", b": still here\n\n", b": still here\n\n"]


def test_a_client_that_leaves_is_let_go_at_once():
    streams = Streams()
    stream = streams.of("w")
    sent = []

    async def run():
        gone = asyncio.Event()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        response = asyncio.create_task(EventStream(stream.follow(None))({"type": "http"}, receive, send))
        while not streams.watchers:
            await asyncio.sleep(0.001)
        gone.set()
        await asyncio.wait_for(response, 5)

    asyncio.run(run())
    assert streams.watchers == 0
    assert sent[0]["status"] == 200


def test_a_deleted_window_says_so_and_ends_its_streams():
    streams = Streams()
    stream = streams.of("w")

    async def run():
        lines = stream.follow(stream.last)
        got = [await anext(lines)]
        streams.drop("w")
        got += [piece async for piece in lines]
        return parsed(b"".join(got))

    assert [event for _, event, _ in asyncio.run(run())] == ["deleted"]


def test_another_run_of_the_server_has_other_ids():
    assert Streams().of("w").last != Streams().of("w").last
