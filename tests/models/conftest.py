"""A hub on loopback and an empty models folder for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.hub import FakeHub, serving

WEIGHTS = bytes(range(256)) * 12_000  # 3 MB


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {
        "README.md": b"about",
        "mmproj-Tiny-Q4_K_M.gguf": b"projector",
        "Tiny-Q8_0.gguf": b"eight" * 1000,
        "Tiny-Q4_K_M.gguf": WEIGHTS,
        "imatrix.gguf": b"matrix",
    }
    with serving(FakeHub(files)) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.api)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield made
