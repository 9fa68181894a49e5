"""Where a user's files are: the data folder, the configuration file, the models."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_folder(named: Path | None = None) -> Path:
    """`--data`, then HALO_WEAVE_DATA, then the user's data folder."""
    return Path(named or os.environ.get("HALO_WEAVE_DATA") or platformdirs.user_data_dir("halo-weave"))


def models_folder() -> Path:
    """Weights are shared by all data folders, unless HALO_WEAVE_MODELS says otherwise."""
    return Path(
        os.environ.get("HALO_WEAVE_MODELS") or Path(platformdirs.user_data_dir("halo-weave")) / "models"
    )


def memory_file(data: Path) -> Path:
    return data / "memory.sqlite"


def index_snapshot_file(data: Path) -> Path:
    """What recall has loaded of the memory, to open it sooner."""
    return data / "memory.index"


def kv_cache_folder(data: Path) -> Path:
    """Where keys and values of conversations lie."""
    return data / "cells"


def calibration_folder(beside: Path) -> Path:
    """In a data folder, and beside the models for all data folders."""
    return beside / "calibration"


def captures_folder(data: Path) -> Path:
    """What the lab takes down, a folder for each window."""
    return data / "captures"


def config_file() -> Path:
    return Path(
        os.environ.get("HALO_WEAVE_CONFIG") or platformdirs.user_config_path("halo-weave") / "config.toml"
    )
