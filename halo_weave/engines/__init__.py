"""Engines that run a language model: llama.cpp in this process, a KoboldAI or OpenAI-compatible server, and a placeholder while there is no model."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from halo_weave.engines.base import Engine

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


class _OpenEngine(Protocol):
    def __call__(
        self, model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
    ) -> Engine: ...


def _open_llama(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.llama.devices import check_memory
    from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
    from halo_weave.models.inventory import chosen_weights, title_of

    path = chosen_weights(model, progress)
    if check_fits:
        check_memory(path, limits.get("context"), limits.get("kv_type") or "f16")
    progress("Loading the model", 0, 0)
    return LlamaEngine(path, limits=EngineLimits(**limits), name=title_of(path))


def _open_kobold(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.kobold import KoboldEngine

    progress("Asking the server for its model", 0, 0)
    client = f"{platform.node()} {limits.get('cells')}"
    return KoboldEngine(limits["url"], limits.get("key") or "", client=client, context=limits.get("context"))


def _open_openai(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.openai import OpenAiEngine

    shadow_model = None
    if limits.get("shadow_model") != "off":
        shadow_model = limits["open_shadow_model"](limits.get("shadow_model") or None, progress)
    try:
        progress("Asking the server for its model", 0, 0)
        return OpenAiEngine(
            limits["url"],
            limits.get("key") or "",
            model=limits.get("model_name") or "",
            shadow_model=shadow_model,
            context=limits.get("context"),
        )
    except BaseException:
        if shadow_model is not None:
            shadow_model.close()
        raise


ENGINES: dict[str, _OpenEngine] = {
    "llama": _open_llama,
    "kobold": _open_kobold,
    "openai": _open_openai,
}
REMOTE_ENGINES = ("kobold", "openai")  # engines that need the address of a server
