"""Commands about the cache on disk: keys and values that spare a model reading a conversation again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from halo_weave.cli.app import app
from halo_weave.cli.memory import answer
from halo_weave.cli.starting import Data, Json, folder_of
from halo_weave.config import read_config
from halo_weave.engines.disk import DiskUse, clear_disk, disk_use
from halo_weave.places import cells_folder

cache = typer.Typer(help="What a model has read is kept on disk, so that it need not read it again.")
app.add_typer(cache, name="cache")


@cache.command()
def status(data: Data = None, as_json: Json = False) -> None:
    """How much lies on disk."""
    _tell(disk_use(_folder(data)), as_json, "{0} in {1} files in {2}")


@cache.command()
def clear(data: Data = None, as_json: Json = False) -> None:
    """Delete it all. Conversations stay; their models read them again once."""
    _tell(clear_disk(_folder(data)), as_json, "Deleted {0} in {1} files in {2}")


def _folder(data: Path | None) -> Path:
    return cells_folder(folder_of(read_config(), data))


def _tell(use: DiskUse, as_json: bool, sentence: str) -> None:
    told = sentence.format(f"{use.bytes / 1e6:,.1f} MB", use.files, use.folder)
    answer(as_json, {**dataclasses.asdict(use), "folder": str(use.folder)}, told)
