"""What the user configured: the command line first, then HALO_WEAVE_*, then config.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halo_weave.errors import BadSetting
from halo_weave.places import config_file
from halo_weave.settings import FIELDS, Settings

PREFIX = "HALO_WEAVE_"


def read_config(environment: Mapping[str, str] | None = None, file: Path | None = None) -> dict[str, Any]:
    """All that is configured outside the command line, by name. A file that is not there configures nothing."""
    environment = os.environ if environment is None else environment
    path = file or config_file()
    try:
        configured = tomllib.loads(path.read_text()) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}. Mend it or move it away.") from None
    for name, value in environment.items():
        if name.startswith(PREFIX):
            configured[name.removeprefix(PREFIX).lower()] = value
    return configured


def configured_settings(config: Mapping[str, Any]) -> Settings:
    """The settings that windows begin with."""
    return Settings().changed({name: _typed(name, value) for name, value in config.items() if name in FIELDS})


def _typed(name: str, value: Any) -> Any:
    """The environment knows only text."""
    if not isinstance(value, str) or FIELDS[name].metadata["choices"]:
        return value
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not value:
        return None
    try:
        return float(value)
    except ValueError:
        raise BadSetting(f"{name} is {value!r}; use a number.") from None
