"""The same day with the same model in other ways, by llama.cpp's own server, and how fast that server reads.

The server is that of xllamacpp (`peer_server`), with the model's own template, the product's system prompt and its sampling
settings. It keeps what it has read of other windows in memory, as it does by default.

- chat: each window is a chat of its own, without memory.
- sliding: one history of all windows, cut by age to the product's budget.
- full: one history of all windows, as long as it fits into the model's context; then the oldest is dropped.
- rag: the chat, with the 8 nearest earlier messages of the user's, of all windows, written before each message.
- oracle: the chat, with the messages that told what is needed, and nothing else, written before the question.

What is written before a message is not kept in the history.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from benchmarks.day_script import Day, Message
from halo_weave.search.llama_embedder import LlamaEmbedder, open_embedder

WAYS = ("chat", "sliding", "full", "rag", "oracle")
CONTEXT = 8192
NEAREST = 8
FRAME = 8  # tokens around a message, at most
LONGEST_TURN = 600.0  # seconds


@dataclass(frozen=True)
class PlainReply:
    """What the model said in another way, how long its first token took, and how many tokens it had to read."""

    text: str
    first_token: float | None
    read: int
    failed: str = ""


@dataclass
class Spoken:
    role: str
    text: str
    window: str
    tokens: int


@dataclass
class Plain:
    """llama.cpp's server, asked in one way after the other."""

    url: str
    system: str
    settings: dict[str, Any]
    _counted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # It closes connections that are not used for some seconds, so each request has its own.
        self._http = httpx.Client(base_url=self.url, timeout=LONGEST_TURN, headers={"connection": "close"})

    def close(self) -> None:
        self._http.close()

    def run(self, day: Day, way: str) -> list[PlainReply]:
        """The replies to all messages of a day."""
        history: list[Spoken] = []
        replies = []
        notes = _Nearest(day) if way == "rag" else None
        try:
            for number, message in enumerate(day.messages):
                told: list[str] = []
                if notes is not None:
                    told = notes.before(number)
                elif way == "oracle":
                    needed = {one for label in message.needs for one in day.sources(label, number)}
                    told = [day.messages[one].say for one in sorted(needed)]
                asked = "".join(f"Earlier you were told: {one}\n" for one in told)
                asked += f"\n{message.say}" if told else message.say
                reply = self._say(self._kept(history, message, way, asked), asked)
                replies.append(reply)
                history += [
                    Spoken("user", message.say, message.window, self._count(message.say)),
                    Spoken("assistant", reply.text, message.window, self._count(reply.text)),
                ]
        finally:
            if notes is not None:
                notes.close()
        return replies

    def _kept(self, history: list[Spoken], message: Message, way: str, asked: str) -> list[Spoken]:
        """The newest exchanges that fit. The history has pairs of question and reply, which leave together."""
        one = way in ("sliding", "full")
        mine = history if one else [said for said in history if said.window == message.window]
        room = CONTEXT - int(self.settings["max_new_tokens"])
        budget = int(self.settings["max_context_tokens"])
        if way == "sliding" and budget:
            room = min(room, budget)
        room -= self._count(self.system) + self._count(asked) + 2 * FRAME
        first = len(mine)
        while first:
            cost = sum(said.tokens + FRAME for said in mine[first - 2 : first])
            if cost > room:
                break
            room -= cost
            first -= 2
        return mine[first:]

    def _say(self, history: list[Spoken], asked: str) -> PlainReply:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        messages += [{"role": said.role, "content": said.text} for said in history]
        messages.append({"role": "user", "content": asked})
        request = {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.settings["max_new_tokens"],
            **{
                name: self.settings[name]
                for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")
            },
        }
        text, first, read = "", None, 0
        began = time.perf_counter()
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=request) as answer:
                if answer.status_code != 200:
                    answer.read()
                    return PlainReply("", None, 0, f"{answer.status_code}: {answer.text[:200]}")
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    found = json.loads(line.removeprefix("data: "))
                    for choice in found.get("choices", ()):
                        piece = choice["delta"].get("content") or ""
                        thought = choice["delta"].get("reasoning_content") or ""
                        if (piece or thought) and first is None:
                            first = time.perf_counter() - began
                        text += piece
                    read = found.get("timings", {}).get("prompt_n", read)
        except httpx.HTTPError as error:
            return PlainReply(text, first, read, repr(error))
        return PlainReply(text, first, read)

    def _count(self, text: str) -> int:
        if text not in self._counted:
            self._counted[text] = len(self._tokens(text))
        return self._counted[text]

    def _tokens(self, text: str) -> list[int]:
        answer = self._http.post("/tokenize", json={"content": text}).raise_for_status()
        ids: list[int] = answer.json()["tokens"]
        return ids

    def reading_seconds(self, readings: list[tuple[int, int]]) -> list[float]:
        """How long the server takes from the request to the first token, for each (cached, new) number of tokens.

        Those with the longest cached prefix come first: then each shorter prefix is in the cache already.
        """
        text = "".join(
            f"Boat number {i} is blue, has {i % 9 + 2} sails and left at {i % 24}. " for i in range(900)
        )
        filler = self._tokens(text)[:CONTEXT]
        other = self._tokens("What is new here is read after it, once for each message of the day. " * 600)[
            :CONTEXT
        ]
        order = sorted(range(len(readings)), key=lambda one: readings[one], reverse=True)
        seconds = [0.0] * len(readings)
        for one in order:
            cached = min(readings[one][0], CONTEXT - 64)
            new = max(1, min(readings[one][1], CONTEXT - 8 - cached))
            if cached:
                self._complete(filler[:cached], 0)
                start = next((i for i in range(8) if other[i] != filler[cached]), 0)
            else:  # no two of them begin alike, or the second would find the first in the cache
                other = self._tokens(f"{one}: ") + other
                start = 0
            began = time.perf_counter()
            timings = self._complete(filler[:cached] + other[start : start + new], 1)
            seconds[one] = time.perf_counter() - began
            if timings["cache_n"] < cached - 1:  # a model whose cache cannot be cut
                seconds[one] = timings["prompt_ms"] / 1e3 / timings["prompt_n"] * new
        return seconds

    def _complete(self, ids: list[int], count: int) -> dict[str, float]:
        asked = {"prompt": ids, "n_predict": count, "cache_prompt": True, "temperature": 0}
        timings: dict[str, float] = (
            self._http.post("/completion", json=asked).raise_for_status().json()["timings"]
        )
        return timings


class _Nearest:
    """The earlier messages of a day that are nearest in meaning, by the default embedder."""

    def __init__(self, day: Day) -> None:
        self._texts = [message.say for message in day.messages]
        self._embedder: LlamaEmbedder = open_embedder()
        self._vectors = self._embedder.embed(self._texts)

    def before(self, number: int) -> list[str]:
        """In the order in which they were said."""
        if not number:
            return []
        asked = self._embedder.embed([self._texts[number]], query=True)[0]
        nearness = self._vectors[:number] @ asked
        nearest = sorted(np.argsort(-nearness)[:NEAREST])
        return [self._texts[one] for one in nearest]

    def close(self) -> None:
        self._embedder.close()
