"""Reports llama.cpp's version, backends and devices, and processor features that this build does not use."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halo_weave.engines.llama import library
from halo_weave.engines.llama.library import Library
from halo_weave.errors import ModelUnusable
from halo_weave.models.gguf_header import read_header
from halo_weave.models.inventory import LocalModel, human_name
from halo_weave.models.memory_estimate import KvType, estimate_memory, machine_memory

KINDS = ("processor", "GPU", "integrated GPU", "accelerator")
# Processor features that llama.cpp can use, and their flags in /proc/cpuinfo.
FEATURES = {
    "AVX": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
}
REINSTALL = "pip install --force-reinstall --no-deps xllamacpp==2026.10.11549"
NATIVE_BUILD = (
    'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36'
)
# Measured with Qwen2.5-Coder (Q4_K_M) and SmolLM2 135M (Q4_1), one core.
AVX512_NOTE = "With AVX-512, prefill was 1.4 to 1.6 times as fast for models in Q4_K and hardly faster in Q4_1; generation was as fast as before."
INDEX_URL_HINT = "--index-url with the address that the README of xllamacpp gives for"
ADVICE = {
    "CUDA": f"NVIDIA (CUDA): {REINSTALL} {INDEX_URL_HINT} your version of CUDA",
    "Vulkan": f"AMD, Intel and others (Vulkan): {REINSTALL} {INDEX_URL_HINT} Vulkan",
    "Metal": "Mac (Metal): nothing to do, the package for macOS includes it",
    "own": "A build of your own: name its libllama with HALO_WEAVE_LIBLLAMA, or install llama-cpp-python",
}


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    description: str
    kind: str
    free: int  # bytes of memory
    total: int


@dataclass(frozen=True, slots=True)
class LlamaBuild:
    file: Path
    version: str
    backends: tuple[str, ...]
    devices: tuple[Device, ...]
    used: tuple[str, ...]  # processor features that this build uses
    unused: tuple[str, ...]  # processor features that this build does not use
    advice: tuple[str, ...]  # how to make it faster


def inspect_build(library: Library) -> LlamaBuild:
    backends, devices = _backends(library.c), _devices(library.c)
    used = _used_features(library.c)
    flags = _processor_flags()
    unused = tuple(name for name, flag in FEATURES.items() if flag in flags and name not in used)
    return LlamaBuild(
        library.path, _version(library), backends, devices, used, unused, _advice(devices, unused)
    )


def _version(library: Library) -> str:
    """The version of the package that contains the library, or else of ggml."""
    for package in ("xllamacpp", "llama_cpp_python"):
        folder = package.removesuffix("_python")
        if folder in library.path.parts:
            return f"{package.replace('_', '-')} {importlib.metadata.version(package)}"
    return f"ggml {_text(library.c, 'ggml_version') or 'of an unknown version'}"


def _text(c: Any, function: str, *arguments: Any) -> str:
    try:
        pointer = getattr(c, function)
    except AttributeError:
        return ""
    pointer.restype, pointer.argtypes = ctypes.c_char_p, tuple(ctypes.c_void_p for _ in arguments)
    return (pointer(*arguments) or b"").decode("utf-8", errors="replace")


def _handles(c: Any, kind: str) -> list[int]:
    """The handles of all devices (kind `dev`) or backends (kind `reg`)."""
    try:
        count, get = getattr(c, f"ggml_backend_{kind}_count"), getattr(c, f"ggml_backend_{kind}_get")
    except AttributeError:
        return []
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, (ctypes.c_size_t,)
    return [get(i) for i in range(count())]


def _backends(c: Any) -> tuple[str, ...]:
    return tuple(_text(c, "ggml_backend_reg_name", handle) for handle in _handles(c, "reg"))


def _devices(c: Any) -> tuple[Device, ...]:
    found = []
    for handle in _handles(c, "dev"):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory, kind = c.ggml_backend_dev_memory, c.ggml_backend_dev_type
        memory.restype, memory.argtypes = None, (ctypes.c_void_p, *(ctypes.POINTER(ctypes.c_size_t),) * 2)
        kind.restype, kind.argtypes = ctypes.c_int, (ctypes.c_void_p,)
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        number = kind(handle)
        found.append(
            Device(
                _text(c, "ggml_backend_dev_name", handle),
                _text(c, "ggml_backend_dev_description", handle),
                KINDS[number] if 0 <= number < len(KINDS) else "device",
                free.value,
                total.value,
            )
        )
    return tuple(found)


def _used_features(c: Any) -> tuple[str, ...]:
    entries = _text(c, "llama_print_system_info").replace(":", "|").split("|")
    return tuple(
        name.strip() for name, _, value in (entry.partition("=") for entry in entries) if value.strip() == "1"
    )


def _processor_flags() -> set[str]:
    """The processor's flags; empty on systems other than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.startswith(("flags", "Features"))
        for flag in line.partition(":")[2].split()
    }


def _advice(devices: tuple[Device, ...], unused: tuple[str, ...]) -> tuple[str, ...]:
    if any("GPU" in device.kind for device in devices):
        return ()
    advice = []
    if sys.platform == "darwin" and platform.machine() == "arm64":
        advice.append(ADVICE["Metal"])
    elif shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        advice.append(f"There is an NVIDIA GPU that is not used. {ADVICE['CUDA']}")
    elif any(Path("/dev/dri").glob("renderD*")):
        advice.append(f"There is a GPU that is not used. {ADVICE['Vulkan']}")
    if {"AVX512", "AMX_INT8", "AVX_VNNI", "SVE", "MATMUL_INT8"} & set(unused):
        effect = f" {AVX512_NOTE}" if "AVX512" in unused else ""
        advice.append(
            f"This build does not use all features of the processor ({', '.join(unused)}).{effect} With a C++ compiler and "
            f"CMake, this command makes a build that does: {NATIVE_BUILD}; then start with HALO_WEAVE_LIBLLAMA=llama-cpp-python"
        )
    return tuple(advice)


def check_memory(path: Path, context: int | None = None, kv_type: KvType = "f16") -> None:
    """Refuse a model that would need more memory than this machine and its GPUs have."""
    needs = estimate_memory(read_header(path), LocalModel("", path, "").size, context, kv_type)
    gpus = [device.total for device in inspect_build(library.load()).devices if "GPU" in device.kind]
    memory = machine_memory() + sum(gpus)
    if needs.total > memory:
        raise ModelUnusable(
            f"{human_name(path)} needs {needs.total / 1e9:.1f} GB of memory, and this machine has "
            f"{memory / 1e9:.1f} GB. Choose a smaller model, or one in fewer bits."
        )
