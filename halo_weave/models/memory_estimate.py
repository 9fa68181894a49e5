"""Estimates the memory that a model and its KV cache need, and finds out how much memory this machine has."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from halo_weave.models.gguf_header import GgufHeader

KvType = Literal["f16", "bf16", "f32", "q8_0", "q4_0"]
KV_TYPES: tuple[KvType, ...] = get_args(KvType)
DEFAULT_CONTEXT = 8192
MIN_KV_CACHE_BYTES = 640 << 20  # memory for KV caches: up to two full windows, at least one
BUFFER_BYTES = 80_000_000  # buffers of one window: logits and graph
WORKING_BYTES = 250_000_000  # Python, the embedder, the index
USABLE_SHARE = 0.6  # share of the machine's memory: the rest is for the system and other programs
_TYPE_BYTES: dict[KvType, float] = {"f16": 2, "bf16": 2, "f32": 4, "q8_0": 34 / 32, "q4_0": 18 / 32}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of memory."""

    weights: int
    cache: int  # KV cache of one full window

    @property
    def total(self) -> int:
        return self.weights + kv_cache_limit(self.cache + BUFFER_BYTES) + WORKING_BYTES

    def fits(self, memory: int) -> bool:
        return self.total <= memory * USABLE_SHARE


def kv_cache_limit(full_window: int) -> int:
    """Bytes for the KV caches of all windows; a cache that does not fit is moved to disk."""
    return max(full_window, min(2 * full_window, MIN_KV_CACHE_BYTES))


def estimate_memory(
    header: GgufHeader, size: int, context: int | None = None, kv_type: KvType = "f16"
) -> MemoryEstimate:
    """An upper bound of the memory: sliding windows and recurrent layers need less. `size`: bytes of all files of the
    model."""
    trained = int(header.get("context_length") or DEFAULT_CONTEXT)
    return MemoryEstimate(
        size, min(context or DEFAULT_CONTEXT, trained) * kv_bytes_per_token(header, kv_type)
    )


def kv_bytes_per_token(header: GgufHeader, kv_type: KvType = "f16") -> int:
    """Bytes of keys and values of one token, in all layers."""
    heads = header.per_layer("attention.head_count")
    width = int(header.get("embedding_length") or 0) // max(1, *heads, 1)
    key = int(header.get("attention.key_length") or width)
    value = int(header.get("attention.value_length") or width)
    pairs = sum(
        header.per_layer("attention.head_count_kv")
        if f"{header.architecture}.attention.head_count_kv" in header.values
        else heads
    )
    return int(pairs * (key * _TYPE_BYTES[kv_type] + value * _TYPE_BYTES[value_type(kv_type)]))


def value_type(kv_type: KvType) -> KvType:
    """The type of cached values. llama.cpp quantizes them only with flash attention, which hides the attention."""
    return "f16" if kv_type.startswith("q") else kv_type


def machine_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container."""
    limits = [_physical_memory()]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no container, or no limit
            continue
    return min(limits)


def _physical_memory() -> int:
    if sys.platform == "win32":

        class MemoryStatus(ctypes.Structure):
            _fields_ = (
                ("length", ctypes.c_ulong),
                ("load", ctypes.c_ulong),
                *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
            )

        status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.total)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
