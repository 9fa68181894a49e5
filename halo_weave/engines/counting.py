"""A tokenizer for models that hide theirs: words in pieces of about the usual size, so that they can be counted."""

from __future__ import annotations

import re
from threading import Lock

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Tokens
from halo_weave.errors import BadInput

NAME = "counted"
VOCABULARY = 1 << 24
_PIECE = re.compile(r"\s?\w{1,6}|\s+|[^\w\s]{1,3}", re.UNICODE)


class CountingTokenizer:
    """Gives every piece a number when it first sees it. The numbers mean nothing to any model."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._pieces: list[bytes] = []
        self._lock = Lock()

    def tokenize(self, text: str) -> Tokens:
        try:
            pieces = [match.group().encode() for match in _PIECE.finditer(text)]
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        return Tokens.of([self._id(piece) for piece in pieces], pieces)

    def pieces(self, ids: Ids) -> Tokens:
        known = len(self._pieces)
        if len(ids) and not 0 <= ids.min() <= ids.max() < known:
            raise BadInput("There are tokens that nobody has counted here.")
        return Tokens.of(ids, [self._pieces[id] for id in ids.tolist()])

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return (ids < 0) | (ids >= VOCABULARY)

    def _id(self, piece: bytes) -> int:
        found = self._ids.get(piece)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(piece, len(self._pieces) % VOCABULARY)
                if found == len(self._pieces):
                    self._pieces.append(piece)
        return found
