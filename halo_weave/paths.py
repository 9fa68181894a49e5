"""Where a user's files are: the data folder, the configuration file, the models."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_folder(named: Path | None = None) -> Path:
    """The data folder: `--data`, else HALO_WEAVE_DATA, else the folder of the user."""
    return Path(named or os.environ.get("HALO_WEAVE_DATA") or platformdirs.user_data_dir("halo-weave"))


def models_folder() -> Path:
    """The folder of model files, shared by all data folders, unless HALO_WEAVE_MODELS is set."""
    return Path(
        os.environ.get("HALO_WEAVE_MODELS") or Path(platformdirs.user_data_dir("halo-weave")) / "models"
    )


def memory_file(data: Path) -> Path:
    return data / "memory.sqlite"


def index_snapshot_file(data: Path) -> Path:
    """The snapshot of the search index, which makes starting faster."""
    return data / "memory.index"


def kv_cache_folder(data: Path) -> Path:
    """The KV cache on disk."""
    return data / "cells"


def calibration_folder(beside: Path) -> Path:
    """The folder of calibrations. There is one in each data folder, and one beside the models for all data folders."""
    return beside / "calibration"


def captures_folder(data: Path) -> Path:
    """The captures of the lab, a folder for each window."""
    return data / "captures"


def config_file() -> Path:
    return Path(
        os.environ.get("HALO_WEAVE_CONFIG") or platformdirs.user_config_path("halo-weave") / "config.toml"
    )
