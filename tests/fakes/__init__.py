"""Fakes that behave like the real thing: a scripted engine and a hashing embedder. Importing this adds the engine `scripted`.

`python -m tests.fakes serve --engine scripted` is the program with both.
"""

from __future__ import annotations

from typing import Any

from halo_weave.app import EMBEDDERS, ENGINES
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.fakes.scripted_engine import ScriptedEngine

__all__ = ["HashingEmbedder", "ScriptedEngine"]


def _open_scripted(*_: Any, **limits: Any) -> ScriptedEngine:
    return ScriptedEngine()


ENGINES["scripted"] = _open_scripted
EMBEDDERS["scripted"] = HashingEmbedder
