"""Tokens, chunks and turns as frozen values and arrays."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from halo_weave.errors import BadInput, UnknownChunk

ID_LIMIT = 2**63  # of turns, chunks and positions

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Brightness = npt.NDArray[np.float32]
"""Integers up to 2**24 are exact, which is more than any token can lose while it is live."""


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class ChunkKey(NamedTuple):
    """The name of a chunk, which never changes. `chunk_id` 0 is S0, the turn's anchor."""

    turn_id: int
    chunk_id: int
    role: Role

    def __str__(self) -> str:
        return f"{self.turn_id}.{self.chunk_id}.{self.role}"

    @classmethod
    def parse(cls, text: str) -> ChunkKey:
        """The inverse of `str(key)`."""
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
            raise BadInput(f"{text!r} is not a chunk key. A key looks like 12.0.user.")
        if parts[2] not in set(Role):
            raise BadInput(f"{parts[2]!r} is not a role. Use system, user or assistant.")
        # Checked by length first: Python does not parse thousands of digits.
        if any(len(part) > 40 or int(part) >= ID_LIMIT for part in parts[:2]):
            raise UnknownChunk(f"There is no chunk {text[:80]}: ids end at 2^63.")
        return cls(int(parts[0]), int(parts[1]), Role(parts[2]))


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A run of tokens: vocabulary ids and their bytes. A character may span several tokens, so pieces are bytes; only
    the whole is text."""

    ids: Ids  # (n,)
    raw: bytes  # all pieces, joined
    ends: Ids  # (n,), where each piece ends in `raw`; counts up to len(raw)

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.ends):
            raise BadInput(f"{len(self.ids)} token ids came with {len(self.ends)} boundaries.")
        last = int(self.ends[-1]) if len(self.ends) else 0
        if last != len(self.raw) or (len(self.ends) and (self.ends[0] < 0 or np.any(np.diff(self.ends) < 0))):
            raise BadInput("The boundaries of the tokens do not fit their text.")
        self.ids.flags.writeable = False
        self.ends.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tokens)
            and self.raw == other.raw
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.ends, other.ends)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        return self.raw.decode("utf-8", errors="replace")

    def pieces(self) -> list[bytes]:
        return [self.raw[start:stop] for start, stop in pairwise([0, *self.ends.tolist()])]

    def spelled(self, *, ended: bool = True) -> list[str]:
        """Each token's text; a character that spans tokens is in the last of them. `ended`: False leaves out an
        incomplete last character."""
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        words = [decoder.decode(piece) for piece in self.pieces()]
        if words and ended:
            words[-1] += decoder.decode(b"", final=True)
        return words

    def part(self, start: int, stop: int) -> Tokens:
        """Tokens `start` to `stop`, with their bytes."""
        first = int(self.ends[start - 1]) if start else 0
        ends = self.ends[start:stop] - np.int32(first)
        last = first + (int(ends[-1]) if len(ends) else 0)
        return Tokens(self.ids[start:stop].copy(), self.raw[first:last], ends)

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            np.concatenate([self.ids, other.ids]),
            self.raw + other.raw,
            np.concatenate([self.ends, other.ends + np.int32(len(self.raw))]),
        )

    @classmethod
    def of(cls, ids: npt.ArrayLike, pieces: list[bytes]) -> Tokens:
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int32)
        return cls(np.array(ids, dtype=np.int32), b"".join(pieces), ends)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one turn, which are pruned and resurrected together."""

    key: ChunkKey
    start: int  # position of its first token, which never changes
    tokens: Tokens
    answers: int | None = None  # id of the user turn that it answers; None in a user turn
    span: int = 0  # how many positions it has; differs from len(tokens) under another tokenizer

    def __post_init__(self) -> None:
        count = len(self.tokens.ids)
        if self.start < 0:
            raise BadInput(f"Chunk {self.key} starts at {self.start}; positions count up from 0.")
        if not count:
            raise BadInput(f"Chunk {self.key} has no tokens.")
        if not self.span:
            object.__setattr__(self, "span", count)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """The first position after the chunk."""
        return self.start + self.span

    @property
    def text(self) -> str:
        return self.tokens.text
