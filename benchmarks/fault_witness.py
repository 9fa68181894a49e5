"""A client of the drill: what it was told and shown, and whether the store has it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from benchmarks.fault_servers import WORDS
from halo_weave.store.sql_store import SqlStore

GRACE = 0.15  # seconds after which what was shown must be stored
SETTINGS = {
    "max_context_tokens": 1500,
    "max_new_tokens": 100,
    "memory_scope": "window",
    "min_chunk_tokens": 16,
}


@dataclass
class Reply:
    """What a client saw of a reply, and when."""

    turn: int
    shown: list[tuple[float, str]] = field(default_factory=list)
    acknowledged: bool = False  # it was told that all of it is stored
    warned: int | None = None  # from which token on it was told that it is not stored yet

    def due(self, killed: float, grace: float) -> list[str]:
        """The tokens that must be stored when the server was killed at this moment."""
        if self.acknowledged:
            return [text for _, text in self.shown]
        return [text for at, text in self.shown[: self.warned] if at < killed - grace]


@dataclass
class Witness:
    """All that clients were told of one memory."""

    said: dict[int, str] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    due: dict[int, list[str]] = field(default_factory=dict)  # by turn: the first tokens, which must be stored
    events: list[tuple[str, Any]] = field(default_factory=list)
    grace: float = GRACE

    def talk(self, address: str, window: str, *, turns: int = 1_000_000) -> None:
        """Speak and listen until the server is gone."""
        rng = random.Random()
        with httpx.Client(base_url=address, timeout=60) as http:
            for _ in range(turns):
                try:
                    self._turn(http, window, f"Tell a long story about {' '.join(rng.choices(WORDS, k=5))}.")
                except httpx.HTTPError:
                    return

    def _turn(self, http: httpx.Client, window: str, text: str) -> None:
        answer = http.post(f"/api/windows/{window}/messages", json={"text": text})
        if answer.status_code != 202:
            time.sleep(0.1)
            return
        told = answer.json()
        self.said[int(told["turn_id"])] = text
        reply = self.replies[int(told["reply_turn_id"])] = Reply(int(told["reply_turn_id"]))
        with http.stream(
            "GET", f"/api/windows/{window}/events", params={"after": told["last_event"]}
        ) as stream:
            for name, data in events(stream.iter_lines()):
                if name == "token":
                    reply.shown.append((time.monotonic(), data["text"]))
                elif name == "reply_stored":
                    reply.acknowledged = True
                elif name == "reply_not_stored":
                    self.events.append((name, data))
                    reply.warned = len(reply.shown) if data["message"] else None
                elif name in {"done", "failed"}:
                    return

    @property
    def tokens(self) -> int:
        return sum(len(one.shown) for one in list(self.replies.values()))

    def has_seen(self, tokens: int) -> bool:
        return self.tokens >= tokens

    def settle(self, killed: float) -> None:
        """The server was killed at this moment: what of the replies must be there?"""
        for turn, reply in self.replies.items():
            if turn not in self.due:
                self.due[turn] = reply.due(killed, self.grace)

    def missing(self, store: SqlStore) -> tuple[int, int]:
        """How much of what was acknowledged, and of what was shown long enough before, is not stored."""
        drafts = {one.turn_id: one.tokens.text for one in store.drafts(now=now(), abandoned=False)}

        def stored(turn: int) -> str:
            whole = b"".join(one.chunk.tokens.raw for one in store.turn(turn)).decode(errors="replace")
            return whole or drafts.get(turn, "")

        acknowledged = sum(stored(turn) != text for turn, text in self.said.items())
        shown = 0
        for turn, due in self.due.items():
            kept = stored(turn)
            if self.replies[turn].acknowledged:
                acknowledged += kept != "".join(due)
            else:
                shown += sum(not kept.startswith("".join(due[: count + 1])) for count in range(len(due)))
        return acknowledged, shown


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield fields["event"], json.loads(fields["data"])
            fields = {}


def now() -> datetime:
    return datetime.now(UTC)


def rooms(address: str, count: int) -> list[str]:
    """Windows to talk in; those that are there are used again."""
    with httpx.Client(base_url=address, timeout=60) as http:
        found = [one["id"] for one in http.get("/api/windows").json()["windows"]]
        while len(found) < count:
            about = {"name": f"Window {len(found)}", "settings": SETTINGS}
            found.append(http.post("/api/windows", json=about).json()["id"])
    return found
