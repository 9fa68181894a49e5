"""What a client does: say something, and follow the events."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np


@dataclass(frozen=True)
class Told:
    id: str
    name: str
    data: Any

    @property
    def brightness(self) -> np.ndarray:
        return np.frombuffer(base64.b64decode(self.data["brightness"]), "<f4")


def events_in(lines: Iterator[str]) -> Iterator[Told]:
    fields: dict[str, str] = {}
    patience = time.monotonic() + 60  # a stream that only says that it is still there would last for ever
    for line in lines:
        assert time.monotonic() < patience, "what was waited for did not come"
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield Told(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}


@contextmanager
def following(client: httpx.Client, window: str, after: str = "") -> Iterator[Iterator[Told]]:
    headers = {"last-event-id": after} if after else {}
    with client.stream("GET", f"/api/windows/{window}/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events_in(response.iter_lines())


def until_done(events: Iterator[Told]) -> list[Told]:
    told = []
    for event in events:
        told.append(event)
        if event.name in {"done", "failed"}:
            return told
    raise AssertionError(f"the stream ended after {told[-3:]}")


def say(client: httpx.Client, window: str, text: str, **more: Any) -> list[Told]:
    """A whole turn, from its first event to its last."""
    answer = client.post(f"/api/windows/{window}/messages", json={"text": text, **more})
    assert answer.status_code == 202, answer.text
    with following(client, window, answer.json()["last_event"]) as events:
        return until_done(events)


def spoken(told: list[Told]) -> str:
    return "".join(event.data["text"] for event in told if event.name == "token")


def shown(context: dict[str, Any]) -> list[str]:
    """The text of each turn of a context."""
    return ["".join("".join(chunk["text_pieces"]) for chunk in turn["chunks"]) for turn in context["turns"]]


def get_context(client: httpx.Client, window: str) -> dict[str, Any]:
    return client.get(f"/api/windows/{window}/context").json()


def chunks_of(context: dict[str, Any]) -> list[dict[str, Any]]:
    return [chunk for turn in context["turns"] for chunk in turn["chunks"]]


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """The sentence of a refusal, which must have this status and code."""
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    return answer.json()["error"]["message"]
