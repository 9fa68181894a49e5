"""Tokens by the prototype's API, which tells what a list of tokens spells, and not each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from halo_weave.core.tokens import Tokens
from halo_weave.errors import ServerFailed

# What control tokens look like, where a server does not tell which ones there are.
MARK = re.compile(r"<[|｜]?[\w▁ /.-]+[|｜]?>|\[/?[A-Z_]+\]")
AT_ONCE = 256  # tokens whose text is asked for in one request


class PlainTokens:
    """What is learned goes into `known`, by token: it is asked for once."""

    def __init__(
        self, ask: Callable[[str, str, Any], dict[str, Any]], known: dict[int, bytes], url: str
    ) -> None:
        self._ask, self._known, self._url = ask, known, url

    def tokens(self, text: str) -> Tokens:
        told = self._ask("POST", "/api/v1/tokenize", {"text": text, "add_special_tokens": False})
        try:
            ids = [int(one["token_id"]) for one in told["tokens"]]
            pieces = [str(one["text"]).encode() for one in told["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise ServerFailed(f"{self._url} tells tokens in a form that is not known here.") from None
        if b"".join(pieces) != text.encode():
            raise ServerFailed(f"The tokens that {self._url} tells do not join to the text again.")
        for id, piece in zip(ids, pieces, strict=True):
            # Only marks are learned: to another piece the server may add a character that no token spells.
            if MARK.fullmatch(piece.decode(errors="replace")):
                self._known.setdefault(id, piece)
        return Tokens.of(ids, pieces)

    def learn(self, ids: Sequence[int]) -> None:
        """What these tokens spell."""
        if len(ids) > 1 and self._between:
            ids = [id for id in ids if id not in self._known]
        for first in range(0, len(ids), AT_ONCE):
            self._known.update(self._apart(ids[first : first + AT_ONCE]))

    def _apart(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Many in one request, with a token between them, as far as they can be told apart."""
        if len(ids) == 1 or self._between is None:
            return {id: self._text([id]).encode() for id in ids}
        mark, text = self._between
        parts = self._text([mark, *(one for id in ids for one in (id, mark))]).split(text)
        if len(parts) == len(ids) + 2 and not parts[0] and not parts[-1]:
            return {id: part.encode() for id, part in zip(ids, parts[1:-1], strict=True)}
        half = len(ids) // 2
        return self._apart(ids[:half]) | self._apart(ids[half:])

    @cached_property
    def _between(self) -> tuple[int, str] | None:
        """A token that hardly any other holds, and its text; None if the server has none."""
        for text in ("¶", "§", "\n"):
            try:
                ids = self.tokens(text).ids.tolist()
            except ServerFailed:  # it may not know this one
                continue
            if len(ids) == 1 and self._text(ids * 3) == text * 3:
                self._known[ids[0]] = text.encode()
                return ids[0], text
        return None

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._ask("POST", "/api/v1/detokenize", {"token_ids": list(ids)}).get("text") or "")
