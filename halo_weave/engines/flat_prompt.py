"""A prompt as flat arrays in time order, what to observe while it is read, and attention rows over its tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Capture, Floats
from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import Prompt
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.errors import BadInput

CHUNK, FRAME, SYSTEM = 0, 1, 2
NEVER = 1 << 62
KINDS = {"chunk": CHUNK, "frame": FRAME, "system": SYSTEM}

Kinds = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class FlatPrompt:
    labels: Positions  # (n,)
    ids: Ids  # (n,)
    kinds: Kinds  # (n,)
    lendable: npt.NDArray[np.bool_]  # (n,), said in this window of the memory
    owner: str | None = None  # whose window of the memory it is for

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, prompt: Prompt, *, vocabulary: int, context: int) -> Self:
        """A prompt that makes no sense, or does not fit, is refused."""
        segments = [segment for segment in prompt.segments if len(segment.labels)]
        if not segments:
            raise BadInput("There is nothing to read: the prompt has no tokens.")
        flat = cls(
            labels=np.concatenate([segment.labels for segment in segments]).astype(np.int64),
            ids=np.concatenate([segment.ids for segment in segments]).astype(np.int32),
            kinds=np.concatenate([np.full(len(s.labels), KINDS[s.kind], dtype=np.uint8) for s in segments]),
            lendable=np.concatenate([(s.labels >= 0) & s.lendable for s in segments]),
            owner=prompt.owner,
        )
        if len(flat.ids) != len(flat.labels):
            raise BadInput(f"The prompt has {len(flat.ids)} token ids for {len(flat.labels)} labels.")
        if len(np.unique(flat.labels)) != len(flat):
            raise BadInput("A label stands twice in the prompt.")
        if flat.ids.min() < 0 or flat.ids.max() >= vocabulary:
            raise BadInput(
                f"The prompt has a token that the model does not: its vocabulary ends at {vocabulary}."
            )
        if len(flat) >= context:
            raise BadInput(
                f"The prompt has {len(flat)} tokens, and this model takes fewer than {context}. "
                "Set a smaller budget for the window, or a larger context for the engine."
            )
        return flat

    def is_consistent_with(self, tokens: CachedTokens) -> bool:
        """Whether tokens at the same position are the same: those on disk may be of another conversation."""
        _, here, there = np.intersect1d(self.labels, tokens.labels, assume_unique=True, return_indices=True)
        return bool(((self.ids[here] == tokens.ids[there]) | (self.labels[here] < 0)).all())

    def has(self, labels: Positions, ids: Ids, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of these tokens are among the wanted ones of the prompt."""
        order = np.argsort(self.labels[wanted])
        known, texts = self.labels[wanted][order], self.ids[wanted][order]
        at = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        same: npt.NDArray[np.bool_] = (known[at] == labels) & (texts[at] == ids)
        return same

    def index_of(self, label: int) -> int:
        found = np.flatnonzero(self.labels == label)
        if not len(found):
            raise BadInput(f"The prompt has no token {label} to read from.")
        return int(found[0])


@dataclass(slots=True, eq=False)
class Observation:
    """What is to be read off while a prompt goes through the model, and what was."""

    last: bool = False  # the row of the last token, from which the first reply token is chosen
    rows_from: int = NEVER  # index of the first token whose row is wanted
    surprisal_from: int = NEVER
    capture: Capture | None = None
    known: int = 0  # index of the first token of which not all was read off before
    rows: list[AttentionRow] = field(default_factory=list)
    surprisal: list[float] = field(default_factory=list)
    mapping_errors: int = 0  # rows that did not fit the map of cells

    def start_over(self) -> None:
        """What was read off does not count: the prompt is read anew."""
        self.rows, self.surprisal, self.mapping_errors, self.known = [], [], 0, 0

    def reuse_observations(self, before: Observation | None, same: int, kinds: Kinds) -> None:
        """What was read off before of a prompt that begins with the same tokens counts for this one.

        The last of them is computed again, since it tells how little the next one was expected.
        """
        self.start_over()
        wanted = self.capture, self.rows_from, self.surprisal_from
        if before is None or wanted != (before.capture, before.rows_from, before.surprisal_from):
            return
        rows = int((kinds[self.rows_from : same - 1] == CHUNK).sum())
        surprisal = int((kinds[self.surprisal_from : same] == CHUNK).sum())
        complete = (
            rows <= len(before.rows) and surprisal <= len(before.surprisal) and not before.mapping_errors
        )
        if complete and same - 1 > self.compute_from:
            self.rows, self.surprisal, self.known = before.rows[:rows], before.surprisal[:surprisal], same - 1

    @classmethod
    def of(cls, prompt: FlatPrompt, read_from: int | None, capture: Capture | None) -> Self:
        if capture is None:
            return cls()
        if read_from is None or not (capture.reading or capture.reading_surprisal):
            return cls(last=capture.reply)
        start = prompt.index_of(read_from)
        return cls(
            last=capture.reply,
            rows_from=start if capture.reading else NEVER,
            surprisal_from=start if capture.reading_surprisal else NEVER,
            capture=capture,
        )

    @property
    def compute_from(self) -> int:
        """From which token on the prompt must be computed. A token's surprisal is known from the one before it."""
        return max(0, min(self.rows_from, self.surprisal_from - 1), self.known)


def latest_in_sight(labels: Positions, kinds: Kinds, known: Positions) -> Positions:
    """For each token of a prompt the latest position that it was computed in sight of, itself included.

    `known`: of tokens that are not computed now; -1 for those that are. A chunk without positions could be of any time.
    """
    own = np.where((labels < 0) & (kinds == CHUNK), NEVER, labels)
    before = np.maximum.accumulate(np.maximum(own, known))
    return np.where(known < 0, before, np.maximum(own, known))


def attention_row(
    row: Floats, columns: npt.NDArray[np.int32], kinds: Kinds, raw: Floats | None = None
) -> AttentionRow | None:
    """A row over cells becomes a row over tokens. None if a cell that should be empty was looked at."""
    if int(columns.max()) >= len(row):
        return None
    shares = row.take(columns)
    total = float(shares.sum(dtype=np.float64))
    if not total > 0 or np.count_nonzero(row) != np.count_nonzero(shares):
        return None
    shares = shares / np.float32(total)
    chunks = kinds == CHUNK
    aside = shares[~chunks]
    return AttentionRow(
        tokens=shares[chunks],
        frames=float(shares[kinds == FRAME].sum(dtype=np.float64)),
        system=float(shares[kinds == SYSTEM].sum(dtype=np.float64)),
        aside=len(aside),
        aside_peak=float(aside.max()) if len(aside) else 0.0,
        first=None if chunks[0] else float(shares[0]),
        raw=None if raw is None else raw.take(columns[chunks], axis=1),
    )
