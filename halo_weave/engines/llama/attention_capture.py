"""Captures attention while llama.cpp computes its graph: the chosen (layer, head) pairs, reduced to one row per token."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np

from halo_weave.core.brightness import Capture, Floats
from halo_weave.engines.llama import bindings

try:
    from halo_weave.engines.llama import _capture as native  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler when it was installed
    native = None

SOFTMAX_PREFIX = b"kq_soft_max-"


class _State(c.Structure):
    """Mirrors capture_t in _capture.c."""

    _fields_ = (
        ("name", c.c_void_p),
        ("elements", c.c_void_p),
        ("rows", c.c_void_p),
        ("bytes", c.c_void_p),
        ("get", c.c_void_p),
        ("layers", c.c_void_p),
        ("pairs", c.c_void_p),
        ("slots", c.c_void_p),
        ("folded", c.c_void_p),
        ("raw", c.c_void_p),
        ("line", c.c_void_p),
        ("columns", c.c_int64),
        ("n_layers", c.c_int32),
        ("n_heads", c.c_int32),
        ("n_raw", c.c_int32),
        ("tokens", c.c_int32),
        ("queries", c.c_int32),
        ("maximum", c.c_int32),
        ("n_kv", c.c_int32),
        ("folds", c.c_int32),
        ("failed", c.c_int32),
    )


def has_c_callback() -> bool:
    """Whether the callback in C was built and has the same struct as this module."""
    return native is not None and native.size == c.sizeof(_State)


class AttentionCapture:
    """The callback of one llama_context, and the attention rows of its last decode."""

    def __init__(
        self, library: Any, layers: int, heads: int, columns: int, batch: int, *, in_c: bool
    ) -> None:
        self.c = library
        self.layers = np.zeros(layers, dtype=np.uint8)  # 1 for layers with a chosen head
        self.pairs = np.zeros((layers, heads), dtype=np.uint8)  # 1 for chosen pairs
        self.slots = np.zeros((layers, heads), dtype=np.int32)  # index of each pair in `raw`, or -1
        self.folded = np.zeros((batch, columns), dtype=np.float32)
        self.line = np.zeros(columns, dtype=np.float32)
        self.raw: Floats | None = None  # (queries, pairs of Capture.raw_pairs, columns)
        self.keeps_raw = False
        self.state = _State(columns=columns, n_layers=layers, n_heads=heads)
        for field, function in (
            ("name", "ggml_get_name"),
            ("elements", "ggml_nelements"),
            ("rows", "ggml_nrows"),
            ("bytes", "ggml_nbytes"),
            ("get", "ggml_backend_tensor_get"),
        ):
            setattr(self.state, field, c.cast(getattr(library, function), c.c_void_p).value)
        for field in ("layers", "pairs", "slots", "folded", "line"):
            setattr(self.state, field, getattr(self, field).ctypes.data)
        self.callback = None if in_c else bindings.EvalCallback(self._on_tensor)
        self.choose(Capture())

    @property
    def settings(self) -> dict[str, int | None]:
        """Fields of llama_context_params that install the callback."""
        address = native.address if self.callback is None else c.cast(self.callback, c.c_void_p).value
        return {"cb_eval": address, "cb_eval_user_data": c.addressof(self.state)}

    def choose(self, capture: Capture) -> None:
        """Set which layers and heads are captured, and how they are combined to one row."""
        self.layers[:], self.pairs[:], self.slots[:] = 0, 0, -1
        for layer, head in capture.chosen(*self.slots.shape):
            self.layers[layer] = self.pairs[layer, head] = 1
        raw_pairs = capture.chosen_raw(*self.slots.shape)
        for number, (layer, head) in enumerate(raw_pairs):
            self.slots[layer, head] = number
        self.state.maximum = capture.combine == "max"
        self.state.n_raw = len(raw_pairs)
        self.keeps_raw, self.raw, self.state.raw = capture.raw, None, None

    def open(self, tokens: int, queries: int) -> None:
        """Prepare for a decode of `tokens` tokens, of which the rows of the last `queries` are captured."""
        state = self.state
        state.tokens, state.queries = tokens, queries
        state.n_kv = state.folds = state.failed = 0
        if queries:
            self.folded[:queries] = 0.0
        if self.keeps_raw and queries > (0 if self.raw is None else len(self.raw)):
            self.raw = np.zeros((queries, state.n_raw, state.columns), dtype=np.float32)
            state.raw = self.raw.ctypes.data

    def close(self) -> tuple[Floats | None, Floats | None]:
        """The combined rows, (queries, cells), and the raw rows, (queries, pairs, cells), of the decode since `open`.

        None if nothing was captured.
        """
        state = self.state
        queries, state.queries = state.queries, 0
        if not queries or not state.folds or state.failed:
            return None, None
        rows = self.folded[:queries, : state.n_kv]
        raw = None if self.raw is None else self.raw[:queries, :, : state.n_kv]
        return rows if state.maximum else rows / np.float32(state.folds), raw

    def _on_tensor(self, tensor: int, ask: bool, _: object) -> bool:
        """The callback in Python, for each tensor of the graph. `ask`: whether llama.cpp should pass this tensor's values."""
        if not self.state.queries:
            return not ask
        name = self.c.ggml_get_name(tensor)
        if not name.startswith(SOFTMAX_PREFIX):
            return not ask
        layer = int(name[len(SOFTMAX_PREFIX) :])
        wanted = layer < len(self.layers) and bool(self.layers[layer])
        if not ask and wanted:
            self._read_layer(tensor, layer)
        return wanted if ask else True

    def _read_layer(self, tensor: int, layer: int) -> None:
        state = self.state
        elements, rows = self.c.ggml_nelements(tensor), self.c.ggml_nrows(tensor)
        n_kv, heads = elements // rows, rows // state.tokens
        fits = 0 < n_kv <= state.columns and heads * state.tokens == rows and heads <= state.n_heads
        if not fits or self.c.ggml_nbytes(tensor) != elements * 4 or state.n_kv not in (0, n_kv):
            state.failed = 1
            return
        state.n_kv = n_kv
        rows_of_head = np.empty((state.queries, n_kv), dtype=np.float32)
        folded = self.folded[: state.queries, :n_kv]
        for head in np.flatnonzero(self.pairs[layer, :heads]).tolist():
            first = (head + 1) * state.tokens - state.queries
            self.c.ggml_backend_tensor_get(
                tensor, rows_of_head.ctypes.data, first * n_kv * 4, rows_of_head.nbytes
            )
            if state.maximum:
                np.maximum(folded, rows_of_head, out=folded)
            else:
                folded += rows_of_head
            if self.raw is not None and self.slots[layer, head] >= 0:
                self.raw[: state.queries, self.slots[layer, head], :n_kv] = rows_of_head
            state.folds += 1
