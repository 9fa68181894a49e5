"""Renders Jinja chat templates in a sandboxed process, because a model file may contain a hostile template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from halo_weave.errors import HaloWeaveError
from halo_weave.sandbox.process import ProcessStopped, SandboxedProcess

_TASK = Path(__file__).with_name("jinja_task.py")
_MAX_OUTPUT = 1_000_000  # longest template, in characters


class TemplateUnusable(HaloWeaveError):
    """The template cannot be rendered, or refuses this conversation."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text that a template wrote for one set of variables, or its error."""

    text: str = ""
    refusal: str = ""


class TemplateRenderer:
    """Renders templates with limits on time, memory and output. Methods may be called from any thread."""

    def __init__(
        self, *, seconds: float = 5.0, memory_bytes: int = 256 << 20, characters: int = 4 << 20
    ) -> None:
        self.seconds, self.characters = seconds, characters
        self._process = SandboxedProcess(_TASK, _folders(), memory_bytes=memory_bytes)

    def __enter__(self) -> TemplateRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.close()

    def names(self, template: str) -> list[str]:
        """The variables that a template uses. Raises TemplateUnusable."""
        names: list[str] = self._ask(template, [], datetime.min)["names"]
        return names

    def render(self, template: str, renders: Sequence[Mapping[str, Any]], now: datetime) -> list[Rendered]:
        """One result for each set of variables. Raises TemplateUnusable if the template cannot be compiled or exceeds a
        limit."""
        results = self._ask(template, renders, now)["results"]
        return [Rendered(one.get("text", ""), one.get("error", "")) for one in results]

    def _ask(self, template: str, renders: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
        if len(template) > _MAX_OUTPUT:
            raise TemplateUnusable(f"It is longer than {_MAX_OUTPUT} characters.")
        question = {
            "template": template,
            "renders": renders,
            "now": now.isoformat(),
            "limit": self.characters,
        }
        try:
            answer: dict[str, Any] = self._process.ask(question, self.seconds)
        except ProcessStopped as error:
            raise TemplateUnusable(f"It {error}") from None
        except OSError as error:
            raise TemplateUnusable(
                f"The process that renders templates could not be started: {error.strerror or error}."
            ) from error
        if "error" in answer:
            raise TemplateUnusable(f"It cannot be read: {answer['error']}.")
        return answer


def _folders() -> list[str]:
    """The folders to import jinja2 and its dependencies from."""
    folders = []
    for package in ("jinja2", "markupsafe"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise HaloWeaveError(f"Chat templates need the package {package}. Try: pip install {package}")
        folders.append(str(Path(spec.origin).parents[1]))
    return sorted(set(folders))
