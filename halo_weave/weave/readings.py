"""A chunk in the tokens of the model that reads it, and where it was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from halo_weave.core.brightness import Floats
from halo_weave.core.tokens import Brightness, Chunk
from halo_weave.ports import Engine
from halo_weave.records import ChunkRecord


@dataclass(frozen=True, slots=True)
class Reading:
    """A chunk that is not live, in the tokens of this window's model, with the brightness it had here."""

    record: ChunkRecord
    chunk: Chunk
    earned: Brightness | None  # None: it was never live in this window
    foreign: bool  # said with another tokenizer
    traces: Floats | None  # as the window's strategy keeps them; None: not known


@dataclass(frozen=True, slots=True)
class About:
    """Where and when a live chunk was said, and why it woke up if it slept."""

    window: str
    speaker: str
    said: datetime
    woken: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()


def retokenized(chunk: Chunk, engine: Engine) -> Chunk:
    """The chunk's text in another model's tokens, at the same place in time."""
    return replace(chunk, tokens=engine.tokenize(chunk.text), span=chunk.span)
