"""A BERT encoder on numpy's BLAS, for large backlogs: about twice as fast as llama.cpp on the CPU."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import Vectors
from halo_weave.engines.llama import bindings
from halo_weave.models.gguf_header import GgufHeader, GgufHeaderReader

Floats = npt.NDArray[np.float32]
UNQUANTIZED = {0: "<f4", 1: "<f2"}  # GGML types
POOLINGS = {bindings.POOLING_MEAN: "mean", bindings.POOLING_CLS: "cls"}
GELU_BLOCK = 64  # rows computed at a time, so that intermediate results stay in the processor's cache


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Floats  # (inputs, outputs)
    bias: Floats  # (outputs,)

    def __call__(self, x: Floats) -> Floats:
        y = x @ self.weight
        y += self.bias
        return y


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, x: Floats) -> Floats:
        """Layer norm, in place."""
        x -= x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x) / x.shape[1]
        x /= np.sqrt(variance + self.epsilon)[:, None]
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True, slots=True)
class _Block:
    qkv: _Linear  # queries, keys and values together
    out: _Linear
    out_norm: _Norm
    up: _Linear
    down: _Linear
    down_norm: _Norm


class BertEncoder:
    """Computes one vector for each text from its token ids."""

    def __init__(
        self, tensors: Mapping[str, npt.NDArray[Any]], *, heads: int, epsilon: float, pooling: str
    ) -> None:
        """Raises KeyError if a tensor is missing."""

        def float32(name: str) -> Floats:
            return tensors[name].astype(np.float32)

        def linear(*names: str) -> _Linear:
            weights = [float32(f"{name}.weight").T for name in names]
            biases = [float32(f"{name}.bias") for name in names]
            return _Linear(np.ascontiguousarray(np.concatenate(weights, 1)), np.concatenate(biases))

        def norm(name: str) -> _Norm:
            return _Norm(float32(f"{name}.weight"), float32(f"{name}.bias"), epsilon)

        # A text is one segment, so all its tokens have the same type embedding.
        self.position_embeddings = float32("position_embd.weight") + float32("token_types.weight")[0]
        self.token_embeddings = tensors["token_embd.weight"]  # not converted: only a few rows are read
        self.embedding_norm = norm("token_embd_norm")
        layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
        self.blocks = [
            _Block(
                linear(f"blk.{i}.attn_q", f"blk.{i}.attn_k", f"blk.{i}.attn_v"),
                linear(f"blk.{i}.attn_output"),
                norm(f"blk.{i}.attn_output_norm"),
                linear(f"blk.{i}.ffn_up"),
                linear(f"blk.{i}.ffn_down"),
                norm(f"blk.{i}.layer_output_norm"),
            )
            for i in range(len(layers))
        ]
        self.heads, self.pooling = heads, pooling

    def encode(self, texts: Sequence[Ids]) -> Vectors:
        """(texts, dimension); every text has at least one token."""
        ends = np.cumsum([len(text) for text in texts])
        starts = ends - [len(text) for text in texts]
        x = self.token_embeddings[np.concatenate(texts)].astype(np.float32)
        x += self.position_embeddings[np.concatenate([np.arange(len(text)) for text in texts])]
        x = self.embedding_norm(x)
        spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
        for block in self.blocks:
            attended = self.attend(block.qkv(x), spans)
            attended = block.out(attended)
            attended += x
            x = block.out_norm(attended)
            hidden = block.up(x)
            _gelu(hidden)
            output = block.down(hidden)
            output += x
            x = block.down_norm(output)
        if self.pooling == "cls":
            return np.asarray(x[starts])
        sums = np.add.reduceat(x, starts, axis=0)
        return np.asarray(sums / (ends - starts)[:, None], np.float32)

    def attend(self, qkv: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        """Multi-head attention, each text to itself only."""
        width = qkv.shape[1] // 3
        head = width // self.heads
        qkv[:, :width] *= np.float32(head**-0.5)
        out = np.empty((len(qkv), width), np.float32)
        for start, end in spans:
            parts = qkv[start:end].reshape(end - start, 3, self.heads, head).transpose(1, 2, 0, 3)
            queries, keys, values = parts[0], parts[1], parts[2]
            weights = queries @ keys.transpose(0, 2, 1)
            weights -= weights.max(axis=2, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=2, keepdims=True)
            out[start:end] = (weights @ values).transpose(1, 0, 2).reshape(end - start, width)
        return out


def _gelu(x: Floats) -> None:
    """GELU in place, by the usual approximation with tanh, which llama.cpp uses, too."""
    for start in range(0, len(x), GELU_BLOCK):
        part = x[start : start + GELU_BLOCK]
        inner = part * part
        inner *= np.float32(0.044715 * 0.7978845608)
        inner += np.float32(0.7978845608)
        inner *= part
        np.tanh(inner, out=inner)
        inner += np.float32(1)
        part *= inner
        part *= np.float32(0.5)


def read_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The unquantized tensors of a GGUF; quantized ones are left out."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        file.seek(4)
        reader = GgufHeaderReader(content, path)
        reader.header()
    raw = np.memmap(path, np.uint8, "r")
    return {
        name: raw[at : at + math.prod(shape) * np.dtype(UNQUANTIZED[kind]).itemsize]
        .view(UNQUANTIZED[kind])
        .reshape(shape)
        for name, (shape, kind, at) in reader.tensors.items()
        if kind in UNQUANTIZED
    }


def open_bert(path: Path, header: GgufHeader) -> BertEncoder | None:
    """Open an unquantized BERT; None for any other model, which llama.cpp has to compute."""
    heads, epsilon = header.get("attention.head_count"), header.get("attention.layer_norm_epsilon")
    pooling = POOLINGS.get(header.get("pooling_type"))
    if header.architecture != "bert" or not heads or epsilon is None or pooling is None:
        return None
    try:
        return BertEncoder(read_tensors(path), heads=heads, epsilon=epsilon, pooling=pooling)
    except KeyError:
        return None
