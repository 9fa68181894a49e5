"""Chat templates of model files run in a process of their own, so that a hostile one costs a sentence.

One process renders many times, since a turn should cost milliseconds; it is killed when a template misbehaves, and the next
render starts a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from halo_weave.errors import HaloWeaveError

_CHILD = Path(__file__).with_name("child.py")
_LONGEST = 1_000_000  # characters of a template
_STARTING = 20.0  # seconds until a new process must be there, on a machine that is busy


class TemplateUnusable(HaloWeaveError):
    """The template cannot be rendered, or refuses this conversation."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a template wrote for one set of variables, or why it did not."""

    text: str = ""
    refusal: str = ""


class TemplateRenderer:
    """Renders templates with limits on time, memory and output. May be called from any thread."""

    def __init__(
        self, *, seconds: float = 5.0, memory_bytes: int = 256 << 20, characters: int = 4 << 20
    ) -> None:
        self.seconds, self.memory_bytes, self.characters = seconds, memory_bytes, characters
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def __enter__(self) -> TemplateRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._stop()

    def names(self, template: str) -> list[str]:
        """The variables that a template asks for, its own ones among them. Raises TemplateUnusable."""
        names: list[str] = self._ask(template, [], datetime.min)["names"]
        return names

    def render(self, template: str, renders: Sequence[Mapping[str, Any]], now: datetime) -> list[Rendered]:
        """One result for each set of variables. Raises TemplateUnusable if the template harms or cannot be compiled."""
        results = self._ask(template, renders, now)["results"]
        return [Rendered(one.get("text", ""), one.get("error", "")) for one in results]

    def _ask(self, template: str, renders: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
        if len(template) > _LONGEST:
            raise TemplateUnusable(f"It is longer than {_LONGEST} characters.")
        request = {
            "template": template,
            "renders": renders,
            "now": now.isoformat(),
            "limit": self.characters,
            "seconds": self.seconds,
        }
        line = json.dumps(request).encode("ascii") + b"\n"
        with self._lock:
            answer = self._talk(line)
        if "error" in answer:
            raise TemplateUnusable(f"It cannot be read: {answer['error']}.")
        return answer

    def _talk(self, line: bytes) -> dict[str, Any]:
        seconds = self.seconds
        if self._child is None or self._child.poll() is not None:
            self._stop()
            self._start()
            seconds += _STARTING
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill(child)

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            child.stdin.write(line)
            child.stdin.flush()
            answer = child.stdout.readline()
            return dict(json.loads(answer))
        except (OSError, ValueError):  # it died before it could answer
            self._stop()
            if late.is_set():
                raise TemplateUnusable(
                    f"It took longer than {self.seconds:g} seconds and was stopped."
                ) from None
            raise TemplateUnusable(
                f"It was stopped: it needed too much time, more than {self.memory_bytes >> 20} MB, or too deep a stack."
            ) from None
        finally:
            timer.cancel()

    def _start(self) -> None:
        environment = {"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")} if os.name == "nt" else {}
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=os.path.abspath(os.sep),
                start_new_session=True,
            )
        except OSError as error:
            raise TemplateUnusable(
                f"The process that renders templates could not be started: {error.strerror or error}."
            ) from error
        self._end = weakref.finalize(self, _close, self._child)
        setup = {"folders": _folders(), "memory": self.memory_bytes}
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(setup).encode("ascii") + b"\n")

    def _stop(self) -> None:
        self._child = None
        self._end()


def _folders() -> list[str]:
    """Where jinja2 and what it needs lie."""
    folders = []
    for package in ("jinja2", "markupsafe"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise HaloWeaveError(f"Chat templates need the package {package}. Try: pip install {package}")
        folders.append(str(Path(spec.origin).parents[1]))
    return sorted(set(folders))


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()


def _close(child: subprocess.Popen[bytes]) -> None:
    _kill(child)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()
