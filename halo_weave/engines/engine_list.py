"""Engines that a window can choose by name: those of config.toml and those added at run time."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from halo_weave.errors import BadSetting
from halo_weave.settings import with_current_names

log = logging.getLogger(__name__)
FORMER_NAMES = {"reader": "shadow_model"}  # up to version 0.2
KINDS = ("kobold", "openai", "llama")
FILE = "engines.json"
NAME = re.compile(r"[\w .:@-]{1,60}")


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """`llama` runs a model in this process; the others use a server."""

    name: str
    kind: str
    url: str = ""
    model_name: str = ""  # name of the model on the server; for llama a file or a name
    shadow_model: str = ""
    key: str = field(default="", repr=False)
    configured: bool = False  # defined in config.toml, so it cannot be changed here

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadSetting("The name of an engine has 1 to 60 letters, digits, spaces or any of . : @ _ -")
        if self.kind not in KINDS:
            raise BadSetting(f"The engine {self.name} is a {self.kind!r}; use one of {', '.join(KINDS)}.")
        if self.kind != "llama" and not _is_address(self.url):
            raise BadSetting(
                f"The engine {self.name} needs the address of its server, like http://127.0.0.1:5001, without name and password."
            )


def _is_address(url: str) -> bool:
    """Whether it is the address of a server, without user name and password, which would be shown."""
    try:
        parts = urlsplit(url)
        plain = not (parts.username or parts.password) and parts.port != 0
    except ValueError:
        return False
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)


class EngineList:
    """All named engines. Configured ones come before those added at run time."""

    def __init__(self, data: Path, configured: Mapping[str, NamedEngine] | None = None) -> None:
        self._data, self._configured = data, dict(configured or {})
        self.notice = ""  # what was wrong with the file; empty: nothing
        self._read()

    def __iter__(self) -> Iterator[NamedEngine]:
        return iter(sorted(self._known.values(), key=lambda one: one.name))

    @property
    def _known(self) -> dict[str, NamedEngine]:
        return self._stored | self._configured

    def get(self, name: str) -> NamedEngine:
        known = self._known
        if name not in known:
            others = f" Known: {', '.join(sorted(known))}." if known else ""
            raise BadSetting(
                f"There is no engine named {name!r}.{others} Add it under Models, or in config.toml."
            )
        return known[name]

    def add(self, one: NamedEngine) -> None:
        """Store an engine for the next start, too. Without a key, its former key stays."""
        self._read()
        before = self._known.get(one.name)
        if before is not None and before.configured:
            raise BadSetting(f"{one.name} stands in config.toml. Change it there.")
        if before is not None and not one.key and before.url == one.url:
            one = replace(one, key=before.key)
        self._stored[one.name] = one
        self._keep()

    def remove(self, name: str) -> None:
        self._read()
        if self.get(name).configured:
            raise BadSetting(f"{name} stands in config.toml. Remove it there.")
        del self._stored[name]
        self._keep()

    def _read(self) -> None:
        """Read the file, since another process may have changed it. A damaged file is renamed and kept."""
        kept, whole = _kept(self._data / FILE)
        self._stored = {one.name: one for one in kept}
        if not whole and self._put_aside() and kept:
            self._keep()

    def _put_aside(self) -> bool:
        names = (f"engines.damaged{number or ''}.json" for number in range(1_000_000))
        aside = next(path for name in names if not (path := self._data / name).exists())
        try:
            (self._data / FILE).rename(aside)
            self.notice = f"{FILE} was damaged. It lies at {aside} now, with what is missing here."
        except OSError as error:
            self.notice = (
                f"{self._data / FILE} is damaged and cannot be put aside: {error.strerror or error}."
            )
        log.warning(self.notice)
        return aside.exists()

    def _keep(self) -> None:
        """Write the file. Only the user may read it: it contains the keys."""
        partial = self._data / f"{FILE}.partial"
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump([asdict(one) for _, one in sorted(self._stored.items())], file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._data / FILE)
        except OSError as error:
            raise BadSetting(f"{self._data / FILE} cannot be written: {error.strerror or error}.") from None


def configured_engines(config: Mapping[str, Any]) -> dict[str, NamedEngine]:
    """The engines in the tables [engines.NAME] of config.toml."""
    told, found = config.get("engines") or {}, {}
    if not isinstance(told, Mapping):
        raise BadSetting("engines must be tables, like [engines.cellar] with kind and url.")
    for name, about in told.items():
        if not isinstance(about, Mapping):
            raise BadSetting(f"engines.{name} must be a table with kind and url.")
        about = with_current_names(about, FORMER_NAMES)
        known = {"kind", "url", "model_name", "shadow_model", "key"}
        if wrong := sorted(set(about) - known):
            raise BadSetting(f"engines.{name} has no {wrong[0]}; it takes {', '.join(sorted(known))}.")
        values = {key: str(value) for key, value in about.items()}
        found[name] = NamedEngine(name, **{"kind": "", **values}, configured=True)
    return found


def _kept(file: Path) -> tuple[list[NamedEngine], bool]:
    """The engines in a stored file, and whether all of it could be read."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [], True
    except (OSError, ValueError, RecursionError):
        return [], False
    if not isinstance(told, list):
        return [], False
    found = [one for about in told if (one := _engine_in(about))]
    return found, len(found) == len(told)


def _engine_in(about: Any) -> NamedEngine | None:
    if not isinstance(about, dict) or not all(
        isinstance(v, str) for k, v in about.items() if k != "configured"
    ):
        return None
    try:
        return NamedEngine(**{**with_current_names(about, FORMER_NAMES), "configured": False})
    except (TypeError, BadSetting):
        return None
