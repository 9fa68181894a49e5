"""Text cut into chunks without a model: pieces about as long as tokens. A window reads such chunks anew before it uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from halo_weave.core.chunking import cut
from halo_weave.core.tokens import Tokens

TOKENIZER = "text"  # no model's
LARGEST = 200  # tokens of a chunk
# Parts of words, and characters of other alphabets.
_PIECE = re.compile(rb"\s?[!-~]{1,5}|\s?(?:[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...)|\s{1,4}|.", re.S)
_LINE, _SENTENCE, _SPACE = re.compile(rb"\n$"), re.compile(rb"[.!?;:]$"), re.compile(rb"[,\s]$")


def chunked(parts: Sequence[tuple[str, str]]) -> list[tuple[Tokens, str]]:
    """The tokens of each chunk and its tag, of parts that are a kind and a text."""
    found: list[tuple[Tokens, str]] = []
    for place, (kind, text) in enumerate(parts):
        raw = (text if place == len(parts) - 1 else f"{text}\n\n").encode()
        pieces = _PIECE.findall(raw)
        for tokens in cut(Tokens.of(np.zeros(len(pieces), np.int32), pieces)):
            found += ((part, "" if kind == "answer" else kind) for part in _parted(tokens))
    return found


def _parted(tokens: Tokens) -> Iterator[Tokens]:
    """A large chunk in parts that can wake up alone, cut after a line, a sentence or a word."""
    start, pieces = 0, tokens.pieces()
    while len(pieces) - start > LARGEST:
        stop = start + LARGEST
        for end in (_LINE, _SENTENCE, _SPACE):
            places = (
                place for place in range(stop, start + LARGEST // 2, -1) if end.search(pieces[place - 1])
            )
            if (last := next(places, None)) is not None:
                stop = last
                break
        yield tokens.part(start, stop)
        start = stop
    yield tokens.part(start, len(pieces))
