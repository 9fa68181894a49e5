"""Split text into chunks of placeholder tokens where no model is loaded; a window tokenizes them before use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from halo_weave.core.chunking import cut
from halo_weave.core.tokens import Tokens

TOKENIZER = "text"  # no model's
_SMALLEST, LARGEST = 64, 200  # tokens of a chunk, if there are so many
# Parts of words, and characters of other alphabets.
_PIECE = re.compile(rb"\s?[!-~]{1,5}|\s?(?:[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...)|\s{1,4}|.", re.S)


def count_tokens(parts: Sequence[tuple[str, str]]) -> int:
    """The tokens that `chunked` makes of these parts."""
    return sum(len(pieces) for _, pieces in _pieces(parts))


def split_into_chunks(parts: Sequence[tuple[str, str]]) -> list[tuple[Tokens, str]]:
    """The tokens of each chunk and its tag, of parts that are a kind and a text."""
    found: list[tuple[Tokens, str]] = []
    for kind, pieces in _pieces(parts):
        tokens = Tokens.of(np.zeros(len(pieces), np.int32), pieces)
        # What is shorter than two chunks is one, and so is what has no line to end a chunk at, unless it is too long.
        whole = len(tokens) < 2 * _SMALLEST or (b"\n" not in tokens.raw and len(tokens) <= LARGEST)
        for chunk in [tokens] if whole else cut(tokens, _SMALLEST, LARGEST):
            found.append((chunk, "" if kind == "answer" else kind))
    return found


def _pieces(parts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[bytes]]]:
    for place, (kind, text) in enumerate(parts):
        yield kind, _PIECE.findall((text if place == len(parts) - 1 else f"{text}\n\n").encode())
