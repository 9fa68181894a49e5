"""The engines by name, and how each is opened. What an engine needs is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from halo_weave.ports import Engine

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


class _OpenEngine(Protocol):
    def __call__(
        self, model: Path | None, progress: Progress, *, context: int | None, threads: int | None
    ) -> Engine: ...


def _open_llama(
    model: Path | None, progress: Progress, *, context: int | None, threads: int | None
) -> Engine:
    from halo_weave.engines.llama import Limits, LlamaEngine
    from halo_weave.llama import catalogue

    path = model or catalogue.ensure(catalogue.CHAT, progress)
    progress("Loading the model", 0, 0)
    limits = Limits(threads=threads)
    return LlamaEngine(path, limits=replace(limits, context=context) if context else limits)


def _open_scripted(
    model: Path | None, progress: Progress, *, context: int | None, threads: int | None
) -> Engine:
    from halo_weave.engines.scripted import ScriptedEngine

    return ScriptedEngine()


ENGINES: dict[str, _OpenEngine] = {"llama": _open_llama, "scripted": _open_scripted}
