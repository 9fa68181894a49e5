"""Server-sent events: rendered once, kept alive, nothing held for those who left."""

import asyncio
import json

from halo_weave.chat.event_hub import EventHub, EventHubs
from halo_weave.chat.events import BrightnessChanged, TokenGenerated
from halo_weave.server.events import render_event
from halo_weave.server.sse import EventStream, follow_events
from tests.chat.test_event_hub import token


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


def test_an_event_is_rendered_once_however_many_watch(monkeypatch):
    hub = EventHub("run")
    before = hub.place(None)
    hub.publish(token("a"))
    first = render_event(hub.since(before)[0][0])
    assert render_event(hub.since(before)[0][0]) is first
    assert parsed(first) == [
        ("run-1", "token", {"id": 1, "position": "0", "text": "a", "tool": False, "thought": False})
    ]


def test_text_with_line_breaks_stays_one_event():
    hub = EventHub("run")
    text = "a\n\nid: 9\r\nevent: x\u2028"
    hub.publish(token(text))
    [(_, event, data)] = parsed(render_event(hub.since(0)[0][0]))
    assert (event, data["text"]) == ("token", text)


def test_half_a_character_breaks_nothing():
    hub = EventHub("run")
    hub.publish(TokenGenerated(1, 2**62, b"\xed", "\ud800"))
    [(_, _, data)] = parsed(render_event(hub.since(0)[0][0]))
    assert (data["text"], data["position"]) == ("?", str(2**62))


def test_every_client_sees_what_threads_publish():
    hubs = EventHubs()
    hub = hubs.of("w")

    async def client():
        got = []
        async for lines in follow_events(hub, hub.last):
            got += [int(data["position"]) for _, _, data in parsed(lines)]
        return got

    async def run():
        clients = [asyncio.create_task(client()) for _ in range(8)]
        while hubs.watchers < 8:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(lambda: [hub.publish(token("x", n)) for n in range(300)])
        hubs.close()
        return await asyncio.gather(*clients)

    assert asyncio.run(run()) == [list(range(300))] * 8
    assert hubs.watchers == 0


def test_a_silent_stream_says_that_it_is_still_there():
    async def run():
        lines = follow_events(EventHub("run"), None, pause=0.01)
        first = [await anext(lines) for _ in range(3)]
        await lines.aclose()
        return first

    assert asyncio.run(run()) == [b"retry: 1000\n\n", b": still here\n\n", b": still here\n\n"]


def test_a_client_that_leaves_is_let_go_at_once():
    hubs = EventHubs()
    hub = hubs.of("w")
    sent = []

    async def run():
        gone = asyncio.Event()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        response = asyncio.create_task(EventStream(follow_events(hub, None))({"type": "http"}, receive, send))
        while not hubs.watchers:
            await asyncio.sleep(0.001)
        gone.set()
        await asyncio.wait_for(response, 5)

    asyncio.run(run())
    assert hubs.watchers == 0
    assert sent[0]["status"] == 200


def test_a_deleted_window_says_so_and_ends_its_streams():
    hubs = EventHubs()
    hub = hubs.of("w")

    async def run():
        lines = follow_events(hub, hub.last)
        got = [await anext(lines)]
        hubs.drop("w")
        got += [piece async for piece in lines]
        return parsed(b"".join(got))

    assert [event for _, event, _ in asyncio.run(run())] == ["deleted"]


def test_what_was_let_go_is_told_as_reset():
    hub = EventHub("run", kept_events=2)
    for n in range(5):
        hub.publish(token("x", n))

    async def run():
        lines = follow_events(hub, "run-1")
        await anext(lines)
        return parsed(await anext(lines))

    assert asyncio.run(run()) == [("run-5", "reset", {})]


def test_brightness_goes_as_little_endian_floats():
    import numpy as np

    hub = EventHub("run")
    hub.publish(BrightnessChanged(np.array([1, 2], np.float32), np.array([0.5], np.float32)))
    [(_, event, data)] = parsed(render_event(hub.since(0)[0][0]))
    assert (event, data) == ("brightness", {"brightness": "AACAPwAAAEA=", "attention": "AAAAPw=="})
