"""A prompt flat and in time order, and an attention row over its tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.tokens import Ids, Positions
from halo_weave.errors import BadInput
from halo_weave.ports import Prompt

CHUNK, FRAME, SYSTEM = 0, 1, 2
KINDS = {"chunk": CHUNK, "frame": FRAME, "system": SYSTEM}

Kinds = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A prompt, flat and in time order."""

    labels: Positions  # (n,)
    ids: Ids  # (n,)
    kinds: Kinds  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


def write(prompt: Prompt, vocabulary: int) -> Written:
    segments = [segment for segment in prompt.segments if len(segment.labels)]
    if not segments:
        raise BadInput("There is nothing to read: the prompt has no tokens.")
    written = Written(
        labels=np.concatenate([segment.labels for segment in segments]).astype(np.int64),
        ids=np.concatenate([segment.ids for segment in segments]).astype(np.int32),
        kinds=np.concatenate([np.full(len(s.labels), KINDS[s.kind], dtype=np.uint8) for s in segments]),
    )
    if len(written.ids) != len(written.labels):
        raise BadInput(f"The prompt has {len(written.ids)} token ids for {len(written.labels)} labels.")
    if len(np.unique(written.labels)) != len(written):
        raise BadInput("A label stands twice in the prompt.")
    if written.ids.min() < 0 or written.ids.max() >= vocabulary:
        raise BadInput(
            f"The prompt has a token that the model does not: its vocabulary ends at {vocabulary}."
        )
    return written


def attention_row(
    row: Floats, columns: npt.NDArray[np.int32], kinds: Kinds, raw: Floats | None = None
) -> AttentionRow | None:
    """A row over cells becomes a row over tokens. None if a cell that should be empty was looked at."""
    if int(columns.max()) >= len(row):
        return None
    shares = row[columns]
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
        raw=None if raw is None else np.ascontiguousarray(raw[:, :, columns]),
    )
