"""Attention as servers send it: base64 in three formats becomes rows over the tokens of the chunks."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.engines.prompts import CHUNK, Kinds, attention_row
from halo_weave.ports import Capture, ModelInfo, Read


class RowReader:
    """What the server shows of attention becomes rows over the tokens of the chunks; what cannot be used, None."""

    def __init__(
        self,
        info: ModelInfo,
        capture: Capture | None,
        kinds: Kinds,
        first: int | None,
        faulty: Callable[[], None],
    ) -> None:
        self.info, self.capture, self.kinds, self.first, self.faulty = info, capture, kinds, first, faulty
        self.reply = capture is not None and capture.reply
        looks = capture is not None and (capture.reply or capture.reading)
        self.pairs = capture.chosen_raw(info.layers, info.heads) if capture and looks and capture.raw else []
        # The mean of exactly these pairs is made here; that of others is asked for.
        chosen = capture.chosen(info.layers, info.heads) if capture and looks else []
        self.per_layer = bool(self.pairs) or 0 < len(chosen) < info.layers * info.heads
        self.chosen = chosen

    @property
    def wanted(self) -> dict[str, Any]:
        """What a Halo Weave is asked to show."""
        capture = self.capture or Capture(reply=False)
        pairs = self.pairs or (self.chosen if self.per_layer else [])
        return {
            "heads": [list(pair) for pair in pairs] or None,
            "mean": bool(pairs) and set(pairs) != set(self.chosen),
            "reply": capture.reply,
            "reading": capture.reading and self.first is not None,
            "surprisal": capture.reading_surprisal and self.first is not None,
        }

    def read(self, event: Mapping[str, Any], seconds: float) -> Read:
        rows = event.get("attention") or ()
        said = [i for i in range(self.first or 0, len(self.kinds)) if self.kinds[i] == CHUNK]
        every = range(self.first or 0, len(self.kinds))
        seen: list[AttentionRow] = []
        if isinstance(rows, list) and len(rows) == len(every):
            found = (self.row(rows[i - every.start], i + 1 - len(self.kinds), wanted=True) for i in said)
            seen = [row for row in found if row is not None]
        elif rows:
            self.faulty()
        surprisal = _array(event.get("surprisal"), np.float32, len(every))
        if surprisal is not None and self.first is not None:
            surprisal = surprisal[np.array(said, np.int64) - every.start]
        reused, restored, computed = (whole(event.get(n)) or 0 for n in ("reused", "restored", "computed"))
        rebuilt = str(event.get("rebuilt") or "")[:200]
        return Read(
            reused, restored, computed, bool(event.get("shifted")), rebuilt, seconds, tuple(seen), surprisal
        )

    def row(self, told: Any, made: int, *, wanted: bool = False) -> AttentionRow | None:
        """The row of a token that is `made` tokens after the prompt."""
        if not (wanted or self.reply):
            return None
        count = len(self.kinds) + made
        kinds = self.kinds[:count] if made <= 0 else np.append(self.kinds, np.zeros(made, np.uint8))
        mean, raw = self._decoded(told, count) if isinstance(told, dict) else (None, None)
        if mean is None or not np.isfinite(mean).all() or mean.min() < 0:
            self.faulty()
            return None
        row = attention_row(mean, np.arange(count, dtype=np.int32), kinds, raw)
        if row is None:
            self.faulty()
        return row

    def _decoded(self, told: Mapping[str, Any], count: int) -> tuple[Floats | None, Floats | None]:
        """(count,) over the whole context, and (pairs, count) if rows of single heads are wanted."""
        match told.get("format"):
            case "heads":
                raw = self._heads(told, count)
                mean = _array(told.get("mean"), np.float16, count) if "mean" in told else None
                mean = self._folded(raw) if mean is None and raw is not None else mean
                return mean, raw if self.pairs else None
            case "per_layer":
                shape = self.info.layers, self.info.heads, count
                values = _array(told.get("data"), np.float32, math.prod(shape))
                if values is None:
                    return None, None
                values = values.reshape(shape)
                picked = np.array(self.chosen)
                raw = np.array(self.pairs)
                mean = (
                    self._folded(values[picked[:, 0], picked[:, 1]]) if len(picked) else values.mean((0, 1))
                )
                return mean, values[raw[:, 0], raw[:, 1]] if len(raw) else None
            case _:
                return _array(told.get("data"), np.float32, count), None

    def _heads(self, told: Mapping[str, Any], count: int) -> Floats | None:
        """Whole rows: what of a head was not sent is spread evenly."""
        pairs = len(self.pairs or self.chosen)
        shape = told.get("shape")
        if not (isinstance(shape, list) and len(shape) == 2 and shape[0] == pairs and 0 < shape[1] <= count):
            return None
        places = _array(told.get("indices"), np.int32, pairs * shape[1])
        shares = _array(told.get("data"), np.float16, pairs * shape[1])
        if places is None or shares is None or places.min() < 0 or places.max() >= count:
            return None
        at, shares = places.astype(np.int64).reshape(shape), shares.reshape(shape)
        left = np.maximum(0, 1 - shares.sum(axis=1)) / max(1, count - shape[1])
        raw = np.repeat(left[:, None], count, axis=1).astype(np.float32)
        np.put_along_axis(raw, at, shares, axis=1)
        return raw

    def _folded(self, raw: Floats) -> Floats:
        folded = raw.max(axis=0) if self.capture and self.capture.combine == "max" else raw.mean(axis=0)
        return np.asarray(folded, np.float32)


def whole(value: Any) -> int | None:
    """A whole number that cannot be negative; None: it is none."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if fits else None


def _array(coded: Any, kind: Any, count: int) -> Floats | None:
    """So many numbers, as float32; None: they are not there."""
    if not isinstance(coded, str):
        return None
    try:
        raw = base64.b64decode(coded, validate=True)
    except ValueError:
        return None
    size = np.dtype(kind).newbyteorder("<")
    if len(raw) != count * size.itemsize:
        return None
    values = np.frombuffer(raw, size)
    return np.asarray(values, np.int32 if size.kind == "i" else np.float32)
