"""Split text into chunks, token by token while it streams.

A chunk may end after a blank line, after a `}` at the start of a line outside a fence, before the line that opens a
fence, and after the line that closes it, so that a code block keeps its fences. It ends there once it has `min_tokens`
tokens, and only between two tokens that are also two characters: a chunk's text is the exact concatenation of its
tokens.

A chunk longer than `max_tokens` is cut again into parts of about equal length: at a line, else after a sentence, else
between words, else between characters. So every chunk can be resurrected within a small budget.

Where no model is loaded, placeholder tokens stand for the text until the window tokenizes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from halo_weave.core.tokens import Tokens
from halo_weave.errors import BadSetting

NEWLINE, RETURN, BRACE, BACKTICK, TILDE = b"\n\r}`~"
FENCE = 3  # characters of a fence


class Chunker:
    """Feed it tokens; `ends` are the token counts at which a chunk has ended so far.

    An end may be found up to three tokens late, since a fence is recognised at its third character. Only `finish` removes an
    end, if the rest after it is too short for a chunk.
    """

    def __init__(self, min_tokens: int = 64) -> None:
        if min_tokens < 1:
            raise BadSetting(f"min_chunk_tokens is {min_tokens}; a chunk needs at least 1 token.")
        self.min_tokens = min_tokens
        self.ends: list[int] = []
        self._seen = 0  # number of tokens fed
        self._character = 0  # bytes that the last character still needs
        self._cut = False  # a boundary waits for the end of its token and character
        self._previous = 0  # the previous byte, ignoring carriage returns
        self._line = b""  # the line's first three bytes
        self._line_token = 0  # tokens before the one with the line's first byte
        self._line_starts_clean = True  # whether that token begins with a whole character
        self._fence = 0  # the character (` or ~) of the open fence, 0 outside
        self._fence_line = False  # this line opens or closes a fence

    def feed(self, piece: bytes) -> None:
        """Add a token. An empty piece (a control token) is a token like any other."""
        starts_clean = self._character == 0
        for byte in piece:
            self._step(byte, starts_clean)
        self._seen += 1
        if self._cut and self._character == 0:
            self._end_at(self._seen)
            self._cut = False

    def finish(self) -> list[int]:
        """All ends, the last one included. A rest that is too short joins the chunk before it."""
        if self._seen > self._last:
            if self.ends and self._seen - self._last < self.min_tokens:
                self.ends.pop()
            self.ends.append(self._seen)
        return self.ends

    @property
    def _last(self) -> int:
        return self.ends[-1] if self.ends else 0

    def _end_at(self, count: int) -> None:
        if count - self._last >= self.min_tokens:
            self.ends.append(count)

    def _step(self, byte: int, starts_clean: bool) -> None:
        if self._character and 0x80 <= byte < 0xC0:
            self._character -= 1
        else:  # a new character; missing bytes of a broken one are not waited for
            self._character = 3 if byte >= 0xF0 else 2 if byte >= 0xE0 else 1 if byte >= 0xC0 else 0
        if byte == RETURN:
            return
        previous, self._previous = self._previous, byte
        if byte == NEWLINE:
            self._cut |= previous == NEWLINE or (self._fence_line and not self._fence)
            self._line, self._fence_line = b"", False
            return
        if len(self._line) == FENCE:
            return
        if not self._line:
            self._line_token, self._line_starts_clean = self._seen, starts_clean
            self._cut |= byte == BRACE and previous == NEWLINE and not self._fence
        self._line += bytes([byte])
        if len(self._line) == FENCE and byte in (BACKTICK, TILDE) and self._line == bytes([byte]) * FENCE:
            self._meet_fence(byte)

    def _meet_fence(self, character: int) -> None:
        if not self._fence:
            self._fence, self._fence_line = character, True
            if self._line_starts_clean:
                self._end_at(self._line_token)
        elif character == self._fence:
            self._fence, self._fence_line = 0, True


# How good a place is for a cut, by the bytes before and after it; smaller is better.
LINE, SENTENCE_END, WORD_END, CHARACTER, NOWHERE = range(5)
_SENTENCE_STOP = re.compile(rb"(?:[.!?:;][\"')\]]?|\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f)\s*$")


def _cut_quality(before: bytes, after: bytes) -> int:
    if after[:1] and 0x80 <= after[0] < 0xC0:
        return NOWHERE  # inside a character
    if before.endswith(b"\n"):
        return LINE
    spaced = before[-1:].isspace() or after[:1].isspace()
    if _SENTENCE_STOP.search(before[-8:]) and (spaced or before[-1:] > b"\x7f"):
        return SENTENCE_END
    return WORD_END if spaced else CHARACTER


def _parts(pieces: Sequence[bytes], start: int, stop: int, max_tokens: int) -> Iterator[int]:
    """The ends of the parts into which a chunk longer than `max_tokens` is cut, the last one included."""
    while stop - start > max_tokens:
        count = stop - start
        even = count / -(-count // max_tokens)  # length of the parts if all were equally long
        places = range(start + max(1, int(even / 2)), start + max_tokens + 1)
        # Three more: a character may span four tokens, and a cut inside it would break the text.
        places = range(places.start, min(stop, max(places.stop, places.start + 4)))

        def cost(at: int, even: float = even, start: int = start) -> tuple[int, float]:
            before = b"".join(pieces[max(start, at - 3) : at])
            after = next((pieces[i] for i in range(at, stop) if pieces[i]), b"")
            return _cut_quality(before, after), abs(at - start - even)

        start = min(places, key=cost, default=stop)
        yield start
    if stop > start:
        yield stop


def cut(tokens: Tokens, min_tokens: int = 64, max_tokens: int = 256) -> list[Tokens]:
    """Cut a turn's tokens into the tokens of its chunks."""
    if max_tokens < 1:
        raise BadSetting(f"max_chunk_tokens is {max_tokens}; a chunk needs at least 1 token.")
    chunker = Chunker(min_tokens)
    pieces = list(tokens.pieces())
    for piece in pieces:
        chunker.feed(piece)
    ends = [
        end
        for start, stop in pairwise([0, *chunker.finish()])
        for end in _parts(pieces, start, stop, max_tokens)
    ]
    return [tokens.part(start, stop) for start, stop in pairwise([0, *ends])]


TOKENIZER = "text"  # name of the tokenizer of placeholder tokens
_MIN_TOKENS, MAX_TOKENS = 64, 200  # of a chunk of placeholder tokens
# Parts of words, and characters of other alphabets.
_PIECE = re.compile(rb"\s?[!-~]{1,5}|\s?(?:[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...)|\s{1,4}|.", re.S)


def count_tokens(parts: Sequence[tuple[str, str]]) -> int:
    """The number of tokens that `split_into_chunks` makes of these parts."""
    return sum(len(pieces) for _, pieces in _pieces(parts))


def split_into_chunks(parts: Sequence[tuple[str, str]]) -> list[tuple[Tokens, str]]:
    """The tokens and the tag of each chunk. A part is a kind and a text."""
    found: list[tuple[Tokens, str]] = []
    for kind, pieces in _pieces(parts):
        tokens = Tokens.of(np.zeros(len(pieces), np.int32), pieces)
        # A short part is one chunk, and so is one without line breaks unless it is too long.
        whole = len(tokens) < 2 * _MIN_TOKENS or (b"\n" not in tokens.raw and len(tokens) <= MAX_TOKENS)
        for chunk in [tokens] if whole else cut(tokens, _MIN_TOKENS, MAX_TOKENS):
            found.append((chunk, "" if kind == "answer" else kind))
    return found


def _pieces(parts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[bytes]]]:
    """The kind and the placeholder tokens of each part. A blank line separates it from the next."""
    for place, (kind, text) in enumerate(parts):
        yield kind, _PIECE.findall((text if place == len(parts) - 1 else f"{text}\n\n").encode())
