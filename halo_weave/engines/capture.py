"""Reads attention while the graph is computed: which tensors, which rows, folded into one row per token.

The callback is C if the extension was built, else Python. Both do the same additions in the same order.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import numpy.typing as npt

from halo_weave.errors import BadInput
from halo_weave.llama import abi
from halo_weave.ports import Capture

try:
    from halo_weave.engines import _capture as native  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler when it was installed
    native = None

PREFIX = b"kq_soft_max-"
Floats = npt.NDArray[np.float32]


class State(c.Structure):
    """Mirrors capture_t in _capture.c."""

    _fields_ = (
        ("name", c.c_void_p),
        ("elements", c.c_void_p),
        ("rows", c.c_void_p),
        ("bytes", c.c_void_p),
        ("get", c.c_void_p),
        ("layers", c.c_void_p),
        ("heads", c.c_void_p),
        ("folded", c.c_void_p),
        ("raw", c.c_void_p),
        ("line", c.c_void_p),
        ("columns", c.c_int64),
        ("n_layers", c.c_int32),
        ("n_heads", c.c_int32),
        ("tokens", c.c_int32),
        ("queries", c.c_int32),
        ("maximum", c.c_int32),
        ("n_kv", c.c_int32),
        ("folds", c.c_int32),
        ("failed", c.c_int32),
    )


def is_native() -> bool:
    return native is not None and native.size == c.sizeof(State)


class Eye:
    """The callback of one llama_context, and the rows it saw during the last decode."""

    def __init__(
        self, library: Any, layers: int, heads: int, columns: int, batch: int, *, in_c: bool
    ) -> None:
        self.c = library
        self.shape = (layers, heads)
        self.columns = columns
        self.layers = np.ones(layers, dtype=np.uint8)
        self.heads = np.ones(heads, dtype=np.uint8)
        self.folded = np.zeros((batch, columns), dtype=np.float32)
        self.line = np.zeros(columns, dtype=np.float32)
        self.raw: Floats | None = None
        self.state = State(columns=columns, n_layers=layers, n_heads=heads)
        for field, function in (
            ("name", "ggml_get_name"),
            ("elements", "ggml_nelements"),
            ("rows", "ggml_nrows"),
            ("bytes", "ggml_nbytes"),
            ("get", "ggml_backend_tensor_get"),
        ):
            setattr(self.state, field, c.cast(getattr(library, function), c.c_void_p).value)
        for field, array in (("layers", self.layers), ("heads", self.heads), ("folded", self.folded)):
            setattr(self.state, field, array.ctypes.data)
        self.state.line = self.line.ctypes.data
        self.callback = None if in_c else abi.EvalCallback(self.seen)

    @property
    def settings(self) -> dict[str, int | None]:
        """What llama_context_params needs to know."""
        address = native.address if self.callback is None else c.cast(self.callback, c.c_void_p).value
        return {"cb_eval": address, "cb_eval_user_data": c.addressof(self.state)}

    def choose(self, capture: Capture | None) -> None:
        """Which layers and heads count from now on, and how they are folded."""
        if capture is None:
            return
        for wanted, mask, what in (
            (capture.layers, self.layers, "layer"),
            (capture.heads, self.heads, "head"),
        ):
            mask[:] = wanted is None
            for index in wanted or ():
                if not 0 <= index < len(mask):
                    raise BadInput(f"The model has {len(mask)} {what}s, so there is no {what} {index}.")
                mask[index] = 1
            if not mask.any():
                raise BadInput(f"No {what} was chosen to read attention from.")
        self.state.maximum = capture.combine == "max"
        self.raw = np.zeros((*self.shape, self.columns), dtype=np.float32) if capture.raw else None
        self.state.raw = self.raw.ctypes.data if self.raw is not None else None

    def open(self, tokens: int, queries: int) -> None:
        """The next decode has `tokens` tokens; rows are wanted for its last `queries`."""
        state = self.state
        state.tokens, state.queries = tokens, queries
        state.n_kv = state.folds = state.failed = 0
        if queries:
            self.folded[:queries] = 0.0

    def close(self) -> Floats | None:
        """(queries, columns of the cache) of the decode since `open`, or None if nothing could be read."""
        state = self.state
        queries, state.queries = state.queries, 0
        if not queries or not state.folds or state.failed:
            return None
        rows = self.folded[:queries, : state.n_kv]
        return rows if state.maximum else rows / np.float32(state.folds)

    def raw_rows(self) -> Floats | None:
        """(chosen layers, chosen heads, columns of the cache) of the last query."""
        if self.raw is None:
            return None
        chosen = self.raw[self.layers.astype(bool)][:, self.heads.astype(bool), : self.state.n_kv]
        return np.ascontiguousarray(chosen)

    def seen(self, tensor: int, ask: bool, _: object) -> bool:
        """The callback in Python."""
        state = self.state
        if not state.queries:
            return not ask
        name = self.c.ggml_get_name(tensor)
        if not name.startswith(PREFIX):
            return not ask
        layer = int(name[len(PREFIX) :])
        wanted = layer < len(self.layers) and bool(self.layers[layer])
        if not ask and wanted:
            self.read_layer(tensor, layer)
        return wanted if ask else True

    def read_layer(self, tensor: int, layer: int) -> None:
        state = self.state
        elements, rows = self.c.ggml_nelements(tensor), self.c.ggml_nrows(tensor)
        n_kv, heads = elements // rows, rows // state.tokens
        fits = 0 < n_kv <= self.columns and heads * state.tokens == rows and heads <= len(self.heads)
        if not fits or self.c.ggml_nbytes(tensor) != elements * 4 or state.n_kv not in (0, n_kv):
            state.failed = 1
            return
        state.n_kv = n_kv
        seen = np.empty((heads, state.tokens, n_kv), dtype=np.float32)
        self.c.ggml_backend_tensor_get(tensor, seen.ctypes.data, 0, seen.nbytes)
        seen = seen[:, -state.queries :]
        for head in np.flatnonzero(self.heads[:heads]).tolist():
            folded = self.folded[: state.queries, :n_kv]
            if state.maximum:
                np.maximum(folded, seen[head], out=folded)
            else:
                folded += seen[head]
            if self.raw is not None:
                self.raw[layer, head, :n_kv] = seen[head, -1]
            state.folds += 1
