"""The embedder that is used when none is named: MiniLM out of the catalogue, converted once."""

from __future__ import annotations

from pathlib import Path

from halo_weave.embedders.llama import LlamaEmbedder
from halo_weave.errors import ModelNotFound
from halo_weave.llama import catalogue

NAME = "all-MiniLM-L6-v2"


def standard_file() -> Path:
    """Where the GGUF lies; it is made if only the published weights are there."""
    entry = catalogue.EMBEDDER
    folder = entry.path.parent
    target = folder / f"{NAME}.F16.gguf"
    if not target.is_file():
        if not entry.present:
            raise ModelNotFound(f"There is no embedder at {target}. Try: halo-weave pull")
        # Here, since it is needed once.
        from halo_weave.embedders.convert import convert

        convert(folder, target, name=NAME)
    return target


def open_embedder(path: Path | None = None) -> LlamaEmbedder:
    """An embedding GGUF, or the standard one."""
    return LlamaEmbedder(path or standard_file())
