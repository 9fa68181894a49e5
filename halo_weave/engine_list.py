"""Engines that windows can choose by name: those of config.toml, and those told to the program, kept in the data folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from halo_weave.errors import BadSetting

KINDS = ("kobold", "openai", "llama")
FILE = "engines.json"
NAME = re.compile(r"[\w .:@-]{1,60}")


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """`llama` runs a model in this process, the others ask a server."""

    name: str
    kind: str
    url: str = ""
    model_name: str = ""  # as the server knows it; for llama a file or a name
    reader: str = ""
    key: str = field(default="", repr=False)
    configured: bool = False  # in config.toml, so it cannot be changed here

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadSetting("The name of an engine has 1 to 60 letters, digits, spaces or any of . : @ _ -")
        if self.kind not in KINDS:
            raise BadSetting(f"The engine {self.name} is a {self.kind!r}; use one of {', '.join(KINDS)}.")
        if self.kind != "llama" and not self.url.startswith(("http://", "https://")):
            raise BadSetting(
                f"The engine {self.name} needs the address of its server, like http://127.0.0.1:5001."
            )


def named_engines(data: Path, config: Mapping[str, Any]) -> dict[str, NamedEngine]:
    """All of them, by name. What is configured comes before what was told."""
    found = {one.name: one for one in _kept(data)}
    told = config.get("engines") or {}
    if not isinstance(told, Mapping):
        raise BadSetting("engines must be tables, like [engines.cellar] with kind and url.")
    for name, about in told.items():
        if not isinstance(about, Mapping):
            raise BadSetting(f"engines.{name} must be a table with kind and url.")
        known = {"kind", "url", "model_name", "reader", "key"}
        if wrong := sorted(set(about) - known):
            raise BadSetting(f"engines.{name} has no {wrong[0]}; it takes {', '.join(sorted(known))}.")
        values = {key: str(value) for key, value in about.items()}
        found[name] = NamedEngine(name, **{"kind": "", **values}, configured=True)
    return found


def keep_engine(data: Path, one: NamedEngine) -> None:
    """For the next start. Only the user may read the file: it holds the keys."""
    _write(data, [other for other in _kept(data) if other.name != one.name] + [one])


def drop_engine(data: Path, name: str) -> None:
    _write(data, [other for other in _kept(data) if other.name != name])


def _kept(data: Path) -> list[NamedEngine]:
    found = []
    with suppress(OSError, ValueError):
        for about in json.loads((data / FILE).read_text(encoding="utf-8")):
            with suppress(TypeError, BadSetting):
                found.append(NamedEngine(**{**about, "configured": False}))
    return found


def _write(data: Path, engines: list[NamedEngine]) -> None:
    data.mkdir(parents=True, exist_ok=True)
    partial = data / f"{FILE}.partial"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump([asdict(one) for one in engines], file, indent=1)
    partial.replace(data / FILE)
