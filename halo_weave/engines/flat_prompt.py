"""A prompt as flat arrays in time order, what to observe during prefill, and attention rows over its tokens. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Capture, Floats
from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import Prompt, positions_of
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
    lendable: npt.NDArray[np.bool_]  # (n,), said in this window, so other windows may use the cells
    owner: str | None = None  # the owner of the window, if it is a window of this server's store
    temporary: bool = False  # its cells are never written to disk

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, prompt: Prompt, *, vocabulary: int, context: int) -> Self:
        """The segments of a prompt, joined. A prompt that is inconsistent or too long is refused."""
        segments = [segment for segment in prompt.segments if len(segment.labels)]
        if not segments:
            raise BadInput("The prompt has no tokens.")
        flat = cls(
            labels=np.concatenate([segment.labels for segment in segments]).astype(np.int64),
            ids=np.concatenate([segment.ids for segment in segments]).astype(np.int32),
            kinds=np.concatenate([np.full(len(s.labels), KINDS[s.kind], dtype=np.uint8) for s in segments]),
            lendable=np.concatenate([(s.labels >= 0) & s.lendable for s in segments]),
            owner=prompt.owner,
            temporary=prompt.temporary,
        )
        if len(flat.ids) != len(flat.labels):
            raise BadInput(f"The prompt has {len(flat.ids)} token ids for {len(flat.labels)} labels.")
        if len(np.unique(flat.labels)) != len(flat):
            raise BadInput("The prompt has the same label twice.")
        if flat.ids.min() < 0 or flat.ids.max() >= vocabulary:
            raise BadInput(
                f"The prompt has a token id outside the model's vocabulary of {vocabulary} tokens."
            )
        if len(flat) >= context:
            raise BadInput(
                f"The prompt has {len(flat)} tokens, and this model takes fewer than {context}. "
                "Set a smaller budget for the window, or a larger context for the engine."
            )
        return flat

    def is_consistent_with(self, tokens: CachedTokens) -> bool:
        """Whether tokens at the same position have the same id: cells on disk may be of another conversation."""
        _, here, there = np.intersect1d(self.labels, tokens.labels, assume_unique=True, return_indices=True)
        return bool(((self.ids[here] == tokens.ids[there]) | (self.labels[here] < 0)).all())

    def contains(self, labels: Positions, ids: Ids, among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of these tokens the prompt has among its tokens selected by the mask `among`."""
        order = np.argsort(self.labels[among])
        sorted_labels, sorted_ids = self.labels[among][order], self.ids[among][order]
        at = np.minimum(np.searchsorted(sorted_labels, labels), len(sorted_labels) - 1)
        same: npt.NDArray[np.bool_] = (sorted_labels[at] == labels) & (sorted_ids[at] == ids)
        return same

    def index_of(self, label: int) -> int:
        indices = np.flatnonzero(self.labels == label)
        if not len(indices):
            raise BadInput(f"The prompt has no token with the label {label}.")
        return int(indices[0])


@dataclass(slots=True, eq=False)
class Observation:
    """What to capture during the prefill of a prompt (attention rows, surprisal), and what has been captured."""

    last_row: bool = False  # capture the row of the last token, from which the first reply token is sampled
    rows_from: int = NEVER  # index of the first token whose row is captured
    surprisal_from: int = NEVER
    capture: Capture | None = None
    observed: int = 0  # everything before this index was captured already, by a prefetch
    rows: list[AttentionRow] = field(default_factory=list)
    surprisal: list[float] = field(default_factory=list)
    mapping_errors: int = 0  # rows that did not match the tokens' cells

    def reset(self) -> None:
        """Discard everything captured, since the prompt is computed again."""
        self.rows, self.surprisal, self.mapping_errors, self.observed = [], [], 0, 0

    def reuse_observations(self, before: Observation | None, same: int, kinds: Kinds) -> None:
        """Take over what was captured `before` of a prompt with the same first `same` tokens.

        The last of these tokens is computed again, since its logits give the surprisal of the next one.
        """
        self.reset()
        request = self.capture, self.rows_from, self.surprisal_from
        if before is None or request != (before.capture, before.rows_from, before.surprisal_from):
            return
        rows = int((kinds[self.rows_from : same - 1] == CHUNK).sum())
        surprisal = int((kinds[self.surprisal_from : same] == CHUNK).sum())
        complete = (
            rows <= len(before.rows) and surprisal <= len(before.surprisal) and not before.mapping_errors
        )
        if complete and same - 1 > self.compute_from:
            self.rows, self.surprisal, self.observed = (
                before.rows[:rows],
                before.surprisal[:surprisal],
                same - 1,
            )

    @classmethod
    def of(cls, prompt: FlatPrompt, read_from: int | None, capture: Capture | None) -> Self:
        if capture is None:
            return cls()
        if read_from is None or not (capture.reading or capture.reading_surprisal):
            return cls(last_row=capture.reply)
        start = prompt.index_of(read_from)
        return cls(
            last_row=capture.reply,
            rows_from=start if capture.reading else NEVER,
            surprisal_from=start if capture.reading_surprisal else NEVER,
            capture=capture,
        )

    @property
    def compute_from(self) -> int:
        """Index from which tokens must be computed. A token's surprisal comes from the logits of the one before it."""
        return max(0, min(self.rows_from, self.surprisal_from - 1), self.observed)


def latest_visible_positions(labels: Positions, kinds: Kinds, known: Positions) -> Positions:
    """For each token of a prompt, the latest position among the tokens that it attended to, itself included.

    `known`: this value for tokens that are in the cache already; -1 for those that are computed now. The value of a
    chunk without positions is `NEVER`: it could be of any time.
    """
    own = np.where((labels < 0) & (kinds == CHUNK), NEVER, positions_of(labels))
    before = np.maximum.accumulate(np.maximum(own, known))
    return np.where(known < 0, before, np.maximum(own, known))


def attention_row(
    row: Floats, columns: npt.NDArray[np.int32], kinds: Kinds, raw: Floats | None = None
) -> AttentionRow | None:
    """Convert attention over cells to attention over tokens, whose cells are `columns`.

    None if a cell that should be empty got attention: then the mapping of tokens to cells is wrong.
    """
    if int(columns.max()) >= len(row):
        return None
    shares = row.take(columns)
    total = float(shares.sum(dtype=np.float64))
    if not total > 0 or np.count_nonzero(row) != np.count_nonzero(shares):
        return None
    shares = shares / np.float32(total)
    chunks = kinds == CHUNK
    outside = shares[~chunks]
    return AttentionRow(
        tokens=shares[chunks],
        frames=float(shares[kinds == FRAME].sum(dtype=np.float64)),
        system=float(shares[kinds == SYSTEM].sum(dtype=np.float64)),
        aside=len(outside),
        aside_peak=float(outside.max()) if len(outside) else 0.0,
        first=None if chunks[0] else float(shares[0]),
        raw=None if raw is None else raw.take(columns[chunks], axis=1),
    )
