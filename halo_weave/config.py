"""The configuration from HALO_WEAVE_* variables and config.toml. Options of the command line come before both."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from halo_weave.errors import BadSetting
from halo_weave.paths import config_file
from halo_weave.settings import FIELDS, FORMER_NAMES, Settings, with_current_names

PREFIX = "HALO_WEAVE_"
OPTIONS = {
    "model",
    "embedder",
    "data",
    "store",
    "engine",
    "context",
    "threads",
    "gpu_layers",
    "kv_type",
    "batch",
    "disk_cache",
    "ram_cache",
}
OPTIONS |= {"engines", "url", "model_name", "engine_key", "shadow_model"}
_FORMER_NAMES = {**FORMER_NAMES, "reader": "shadow_model"}
OPTIONS |= {"host", "port", "key", "origin", "allow_host"}


def read_config(environment: Mapping[str, str] | None = None, file: Path | None = None) -> dict[str, Any]:
    """All configured values by name. Variables of the environment come before the file, which may be missing."""
    environment = os.environ if environment is None else environment
    path = file or config_file()
    if environment.get("HALO_WEAVE_CONFIG") and not path.exists():
        raise BadSetting(f"HALO_WEAVE_CONFIG names {path}, which does not exist.")
    try:
        configured = tomllib.loads(path.read_text()) if path.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}. Mend it or move it away.") from None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}. Mend it or move it away.") from None
    configured = with_current_names(configured, _FORMER_NAMES)
    for name in configured:
        if name not in FIELDS and name not in OPTIONS:
            raise BadSetting(f"{path} names {name!r}, which is no setting.{_suggestion(name)}")
    variables = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    return configured | with_current_names(variables, _FORMER_NAMES)


def configured_settings(config: Mapping[str, Any]) -> Settings:
    """The settings that windows begin with."""
    return Settings().changed({name: _typed(name, value) for name, value in config.items() if name in FIELDS})


def text_of(config: Mapping[str, Any], name: str) -> str:
    """An option that is text; empty if it is not set."""
    value = config.get(name) or ""
    if not isinstance(value, str):
        raise BadSetting(f"{name} is {value}; write it as text, between quotation marks.")
    return value


def texts_of(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """An option with several texts: a list in the file, words in the environment."""
    value = config.get(name) or ()
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise BadSetting(f'{name} is {value}; write it as a list of texts, like ["example.org"].')
    return tuple(value)


def whole_of(config: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """An option that is an integer, or None if it is not set."""
    value = config.get(name)
    if value in (None, ""):
        return None
    try:
        number = None if isinstance(value, bool) else int(str(value))
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise BadSetting(f"{name} is {value!r}; use a whole number from {low:,} to {high:,}.")
    return number


def _suggestion(name: str) -> str:
    near = get_close_matches(name, [*FIELDS, *OPTIONS], 1)
    return f" Did you mean {near[0]}?" if near else " docs/settings.md lists them all."


def _typed(name: str, value: Any) -> Any:
    """Convert a value of the environment, which is text, to the option's type."""
    if not isinstance(value, str) or FIELDS[name].metadata["choices"] or FIELDS[name].type == "str":
        return value
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not value:
        return None
    try:
        return float(value)
    except ValueError:
        return value  # the setting's own check refuses it
