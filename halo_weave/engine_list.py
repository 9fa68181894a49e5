"""Engines that windows can choose by name: those of config.toml, and those told to the program, kept in the data folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
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


class EngineList:
    """All of them, by name. What is configured comes before what was told."""

    def __init__(self, data: Path, configured: Mapping[str, NamedEngine] | None = None) -> None:
        self._data = data
        self._known = {one.name: one for one in _kept(data)} | dict(configured or {})

    def __iter__(self) -> Iterator[NamedEngine]:
        return iter(sorted(self._known.values(), key=lambda one: one.name))

    def get(self, name: str) -> NamedEngine:
        if name not in self._known:
            known = f" Known: {', '.join(sorted(self._known))}." if self._known else ""
            raise BadSetting(
                f"There is no engine named {name!r}.{known} Add it under Models, or in config.toml."
            )
        return self._known[name]

    def add(self, one: NamedEngine) -> None:
        """Keep it for the next start too. Without a key the one that was told before stays."""
        before = self._known.get(one.name)
        if before is not None and before.configured:
            raise BadSetting(f"{one.name} stands in config.toml. Change it there.")
        if before is not None and not one.key and before.url == one.url:
            one = replace(one, key=before.key)
        self._known[one.name] = one
        self._keep()

    def remove(self, name: str) -> None:
        if self.get(name).configured:
            raise BadSetting(f"{name} stands in config.toml. Remove it there.")
        del self._known[name]
        self._keep()

    def _keep(self) -> None:
        """Only the user may read the file: it holds the keys."""
        self._data.mkdir(parents=True, exist_ok=True)
        partial = self._data / f"{FILE}.partial"
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump([asdict(one) for one in self if not one.configured], file, indent=1)
        partial.replace(self._data / FILE)


def configured_engines(config: Mapping[str, Any]) -> dict[str, NamedEngine]:
    """The tables [engines.NAME] of config.toml."""
    told, found = config.get("engines") or {}, {}
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


def _kept(data: Path) -> list[NamedEngine]:
    found = []
    with suppress(OSError, ValueError):
        for about in json.loads((data / FILE).read_text(encoding="utf-8")):
            with suppress(TypeError, BadSetting):
                found.append(NamedEngine(**{**about, "configured": False}))
    return found
