"""Responses in the formats of the OpenAI API: choices, deltas, usage, log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from halo_weave.server.errors import json_bytes

FINISH_REASONS = {"eos": "stop", "stop": "stop", "abort": "stop", "length": "length", "context": "length"}
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A part of a reply."""

    text: str
    raw: bytes = b""
    thought: bool = False
    logprob: float | None = None
    likely: Sequence[tuple[bytes, float]] = ()
    call: dict[str, Any] | None = None  # a whole tool call


EMPTY_PIECE = ReplyPiece("")  # nothing new yet, in a reply that is polled


@dataclass(slots=True)
class Usage:
    """Tokens of prompt and reply."""

    prompt: int = 0
    cached: int = 0
    written: int = 0
    thought: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.written,
            "total_tokens": self.prompt + self.written,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.thought},
        }

    def as_response(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.written,
            "output_tokens_details": {"reasoning_tokens": self.thought},
            "total_tokens": self.prompt + self.written,
        }


@dataclass(slots=True)
class Choice:
    """One reply while it streams. Its pieces can be read once."""

    pieces: Generator[ReplyPiece, None, None]
    usage: Usage
    finish: str = "stop"
    text: str = ""
    thoughts: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[ReplyPiece]:
        """The pieces of the reply. A caller that stops early must call `close`, which ends the reply."""
        for piece in self.pieces:
            if piece is EMPTY_PIECE:
                pass
            elif piece.call is not None:
                self.calls.append(piece.call)
            elif piece.thought:
                self.thoughts += piece.text
            else:
                self.text += piece.text
                self.logprobs.append(logprob_of(piece))
            yield piece

    def close(self) -> None:
        self.pieces.close()

    def read(self) -> None:
        for _ in self:
            pass

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.calls else FINISH_REASONS.get(self.finish, "stop")


def logprob_of(piece: ReplyPiece) -> dict[str, Any]:
    known = piece.logprob is not None and not isnan(piece.logprob)
    return {
        "token": piece.text,
        "logprob": piece.logprob if known else 0.0,
        "bytes": list(piece.raw or piece.text.encode()),
        "top_logprobs": [
            {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
            for raw, logprob in piece.likely
        ],
    }


def text_logprobs(tokens: list[dict[str, Any]]) -> dict[str, Any]:
    """Log-probabilities in the format of `/v1/completions`."""
    lengths = [len(token["token"]) for token in tokens]
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in token["top_logprobs"]} or None for token in tokens
        ],
        "text_offset": [sum(lengths[:i]) for i in range(len(lengths))],
    }


def unix_time() -> int:
    return int(time.time())


def message_of(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thoughts:
        message["reasoning_content"] = choice.thoughts
    if choice.calls:
        message["tool_calls"] = choice.calls
        message["content"] = choice.text or None
    return message


def chat_choice(choice: Choice, index: int, *, logprobs: bool) -> dict[str, Any]:
    return {
        "index": index,
        "message": message_of(choice),
        "logprobs": {"content": choice.logprobs, "refusal": None} if logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def delta_of(piece: ReplyPiece, calls: int) -> dict[str, Any]:
    if piece.call is not None:
        return {"tool_calls": [{"index": calls - 1, **piece.call}]}
    return {"reasoning_content": piece.text} if piece.thought else {"content": piece.text}


def sum_usages(usages: list[Usage]) -> Usage:
    """The usage of several choices: the prompt counts once."""
    first = usages[0]
    return Usage(
        first.prompt,
        first.cached,
        sum(usage.written for usage in usages),
        sum(usage.thought for usage in usages),
    )


def sse_event(data: dict[str, Any], name: str = "") -> bytes:
    head = b"event: %b\n" % name.encode() if name else b""
    return head + b"data: %b\n\n" % json_bytes(data)
