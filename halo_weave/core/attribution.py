"""Attribution: how much of a reply came from each live chunk, and from which tokens each token of the reply came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture, Floats, Offsets
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Chunk, ChunkKey

MAX_SOURCES = 16  # sources kept for each token of a reply
MIN_SHARE = 0.01  # lowest share of a source that is kept
TINY = 1e-6


class ChunkShare(NamedTuple):
    """How much of a reply came from one chunk."""

    key: ChunkKey
    start: int  # position of the chunk; `TokenSource.offset` counts from here
    share: float


class TokenSource(NamedTuple):
    """A token that one token of a reply came from."""

    place: int  # index of the chunk in `Attribution.chunks`
    offset: int  # index of the token in the chunk
    share: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """How much of a reply came from each earlier chunk. These shares and `nothing` add up to 1."""

    chunks: tuple[ChunkShare, ...]  # largest share first
    nothing: float  # share that came from no chunk in particular or from the reply itself
    tokens: tuple[tuple[TokenSource, ...], ...]  # sources of each token of the reply, strongest first
    start: int | None = None  # position of the reply's first token


def capture_for_attribution(capture: Capture, calibration: Calibration) -> Capture:
    """The attention that attribution needs in addition to the strategy: rows of the retrieval heads.

    Without retrieval heads, the rows of the question are read, too: they show how much attention each token gets
    whatever is generated.
    """
    if not capture.reply:
        capture = replace(capture, reply=True, layers=None, heads=None, pairs=calibration.pairs or None)
    if not calibration.heads:
        return replace(capture, reading=True)
    if capture.raw or not (capture.pairs is None and capture.layers is None and capture.heads is None):
        return capture if capture.pairs != calibration.pairs else replace(capture, raw=True)
    return replace(capture, raw=True, raw_pairs=calibration.pairs)


def shares_before(
    row: AttentionRow, before: int, calibration: Calibration, usual: Floats | None = None
) -> tuple[Floats, float]:
    """(before,) the shares of the first `before` tokens in a row's attention, normalized to a sum of 1; and the sum before that.

    With retrieval heads, each head is normalized on its own. Without them, the shares are those of the row minus the
    attention that each token gets whatever is generated (`usual`).
    """
    if _has_heads(row, calibration):
        return _shares_by_heads(row, 0, before, calibration)
    attention = row.tokens[:before]
    if usual is not None:
        attention = np.maximum(attention - usual[:before], 0)
    total = float(attention.sum())
    return attention / np.float32(max(total, TINY)), total


def _has_heads(row: AttentionRow, calibration: Calibration) -> bool:
    return bool(calibration.heads) and row.raw is not None and len(row.raw) >= len(calibration.heads)


def _shares_by_heads(
    row: AttentionRow, start: int, stop: int, calibration: Calibration
) -> tuple[Floats, float]:
    """The shares of the tokens from `start` to `stop`, normalized to a sum of 1; and the sum before that."""
    assert row.raw is not None
    weights = np.array(calibration.weights, np.float32)
    # A copy, so that the sums do not depend on where the row lies in memory.
    attention = np.ascontiguousarray(row.raw[: len(weights), start:stop])
    sums = attention.sum(axis=1)
    return (weights / np.maximum(sums, TINY)) @ attention, float(weights @ sums)


class AttributionTracker:
    """Computes the attribution of one reply, token by token.

    Only attention rows of the reply's own tokens count. The row from which the first token was sampled belongs to the last
    token of the template, which attends to the beginnings of other replies. So that row counts only if there is no other,
    and the first token gets the sources of the second.

    `include_question`: chunks of the question are sources, too, if the model has retrieval heads.
    """

    def __init__(self, calibration: Calibration, *, include_question: bool = False) -> None:
        self.calibration = calibration
        self._include_question = include_question and bool(calibration.heads)
        self._question_shares = np.zeros(0)  # by chunk of the question; not yet added to `_question_sums`
        self._question_sums: defaultdict[ChunkKey, float] = defaultdict(float)
        self._question_mass = 0.0
        self._usual: Floats | None = None
        self._sums: defaultdict[ChunkKey, float] = defaultdict(float)
        self._starts: dict[ChunkKey, int] = {}
        self._chunks: Sequence[Chunk] = ()  # the live chunks that `_sums` belongs to
        self._offsets = np.zeros(1, np.int64)  # where the tokens of each begin
        self._shares = np.zeros(0)  # by chunk before the exchange; not yet added to `_sums`
        self._rows = 0  # rows counted so far
        self._mass = 0.0
        self._first_row: AttentionRow | None = None  # the row from which the first token was sampled
        self._tokens: list[tuple[tuple[ChunkKey, int, float], ...]] = []
        self.token_use: Floats = np.zeros(0, np.float32)  # share of each earlier token in the reply so far

    def observe_prefill(self, rows: Sequence[AttentionRow], before: int) -> None:
        """Use the rows of the question. Without retrieval heads, they show how much attention each earlier token gets whatever
        is generated."""
        if rows and not self.calibration.heads:
            self._usual = np.mean([row.tokens[:before] for row in rows], axis=0)

    def add_token(
        self, row: AttentionRow | None, chunks: Sequence[Chunk], offsets: Offsets, exchange: int
    ) -> None:
        """Add the reply's next token, and the row from which it was sampled if there is one.

        `exchange`: id of the turn that is answered; earlier turns can be sources.
        """
        self._tokens.append(())
        self.add_late_row(len(self._tokens) - 1, row, chunks, offsets, exchange)

    def add_late_row(
        self, place: int, row: AttentionRow | None, chunks: Sequence[Chunk], offsets: Offsets, exchange: int
    ) -> None:
        """Use the row of an earlier token of the reply, which arrived late."""
        if chunks is not self._chunks:
            self._add_up()
            self._chunks = chunks
            self._shares = np.zeros(sum(chunk.key.turn_id < exchange for chunk in chunks))
            from_question = (
                sum(chunk.key.turn_id == exchange for chunk in chunks) if self._include_question else 0
            )
            self._question_shares = np.zeros(from_question)
        self._offsets = offsets  # also for a token without a row: the last row may come next
        if row is None or row.tokens.size < int(offsets[len(self._shares)]):
            return
        if place == 0:
            self._first_row = row
            return
        self._tokens[place] = self._count_row(row)
        if self._first_row is not None and place == 1:
            self._tokens[0], self._first_row = self._tokens[1], None

    def end_reply(self, row: AttentionRow) -> None:
        """Use the row of the reply's last token, which arrives when generation ends."""
        if not self._tokens or row.tokens.size < int(self._offsets[len(self._shares)]):
            return
        sources = self._count_row(row)
        if self._first_row is not None:
            self._tokens[0], self._first_row = sources, None

    def whole(self, start: int | None = None) -> Attribution:
        """The attribution of the whole reply. Chunks below `MIN_SHARE` are listed only if they are a source of a token."""
        first_row, self._first_row = self._first_row, None
        if first_row is not None and first_row.tokens.size >= int(self._offsets[len(self._shares)]):
            self._tokens[0] = self._count_row(first_row)
        self._add_up()
        shares: dict[ChunkKey, float] = {}
        for sums, mass in ((self._sums, self._mass), (self._question_sums, self._question_mass)):
            total, mean = sum(sums.values()) or 1.0, mass / max(1, self._rows)
            shares |= {key: mean * share / total for key, share in sums.items()}
        token_sources = {key for sources in self._tokens for key, _, _ in sources}
        kept = sorted(
            (key for key in shares if key in token_sources or shares[key] >= MIN_SHARE),
            key=lambda key: -shares[key],
        )
        places = {key: place for place, key in enumerate(kept)}
        return Attribution(
            tuple(ChunkShare(key, self._starts[key], shares[key]) for key in kept),
            max(0.0, 1.0 - sum(shares[key] for key in kept)),
            tuple(
                tuple(TokenSource(places[key], offset, share) for key, offset, share in sources)
                for sources in self._tokens
            ),
            start,
        )

    def _count_row(self, row: AttentionRow) -> tuple[tuple[ChunkKey, int, float], ...]:
        """Add a row to the sums. Returns the tokens with the most attention."""
        self._rows += 1
        count = len(self._shares)
        before = int(self._offsets[count])
        from_question = self._count_question_row(row, count)
        if not before:
            return tuple(_strongest(from_question, self._chunks, self._offsets))
        usual = self._usual if self._usual is not None and len(self._usual) == before else None
        shares, mass = shares_before(row, before, self.calibration, usual)
        self._mass += mass
        self._shares += np.add.reduceat(shares, self._offsets[:count])
        weighted = shares * np.float32(mass)
        # After a resurrection there are other tokens, and their sums start again.
        self.token_use = self.token_use + weighted if len(self.token_use) == before else weighted
        return tuple(_strongest(np.concatenate([weighted, from_question]), self._chunks, self._offsets))

    def _count_question_row(self, row: AttentionRow, first: int) -> Floats:
        """Add a row's attention to the question's tokens to the sums, and return it by token."""
        count = len(self._question_shares)
        if not count or not _has_heads(row, self.calibration):
            return np.zeros(0, np.float32)
        offsets = self._offsets[first : first + count + 1]
        if row.tokens.size < int(offsets[-1]):
            return np.zeros(0, np.float32)
        shares, mass = _shares_by_heads(row, int(offsets[0]), int(offsets[-1]), self.calibration)
        self._question_mass += mass
        self._question_shares += np.add.reduceat(shares, offsets[:-1] - offsets[0])
        return shares * np.float32(mass)

    def _add_up(self) -> None:
        """Move the sums by index to the sums by chunk."""
        for chunk, share in zip(self._chunks, self._shares.tolist(), strict=False):
            self._sums[chunk.key] += share
            self._starts[chunk.key] = chunk.start
        for chunk, share in zip(
            self._chunks[len(self._shares) :], self._question_shares.tolist(), strict=False
        ):
            self._question_sums[chunk.key] += share
            self._starts[chunk.key] = chunk.start
        self._shares[:] = 0
        self._question_shares[:] = 0


def _strongest(
    shares: Floats, chunks: Sequence[Chunk], offsets: Offsets
) -> list[tuple[ChunkKey, int, float]]:
    """Chunk, offset and share of the tokens with the most attention."""
    (strong,) = (shares >= MIN_SHARE).nonzero()
    strong = strong[np.argsort(-shares[strong], kind="stable")[:MAX_SOURCES]]
    found = []
    for token, place in zip(
        strong.tolist(), (np.searchsorted(offsets, strong, side="right") - 1).tolist(), strict=True
    ):
        chunk = chunks[place]
        # Offsets count in the tokens of the chunk's own tokenizer; this window may use another.
        offset = (token - int(offsets[place])) * chunk.span // len(chunk)
        found.append((chunk.key, offset, float(shares[token])))
    return found
