"""The parent side of a sandboxed subprocess: sends questions as JSON, kills it on timeout, restarts it when needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from halo_weave.errors import HaloWeaveError

CHILD = Path(__file__).with_name("child.py")
START_TIMEOUT = 20.0  # seconds for the start of a process; long, because the machine may be busy


class ProcessStopped(HaloWeaveError):
    """The process took too long, or died."""


class SandboxedProcess:
    """Runs one task, a file like `engines/templates/jinja_task.py`. Methods may be called from any thread."""

    def __init__(self, task: Path, setup: Any, *, memory_bytes: int) -> None:
        """`setup`: the argument of the task's `prepared`."""
        self._first = {"task": str(task), "setup": setup, "memory": memory_bytes}
        self._lock = threading.Lock()
        self.child: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._stop()

    def ask(self, question: Any, seconds: float) -> Any:
        """The task's answer. Raises ProcessStopped, or OSError if no process can be started."""
        with self._lock:
            if self.child is None or self.child.poll() is not None:
                self._start()
            return self._talk([seconds, question], seconds)

    def _start(self) -> None:
        """Start an isolated interpreter: without environment and packages, in a session of its own."""
        self._stop()
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")} if os.name == "nt" else {},
            cwd=os.path.abspath(os.sep),
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _close, self.child)
        self._talk(self._first, START_TIMEOUT)

    def _stop(self) -> None:
        self.child = None
        self._end()

    def _talk(self, message: Any, seconds: float) -> Any:
        child, timed_out = self.child, threading.Event()
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None

        def stop() -> None:
            timed_out.set()
            _kill(child)

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            child.stdin.write(json.dumps(message).encode("ascii") + b"\n")
            child.stdin.flush()
            return json.loads(child.stdout.readline())
        except (OSError, ValueError):  # it died before it could answer
            self._stop()
            if timed_out.is_set():
                raise ProcessStopped(f"took longer than {seconds:g} seconds and was stopped.") from None
            memory = f"more than {self._first['memory'] >> 20} MB"
            raise ProcessStopped(
                f"was stopped: it needed too much time, {memory}, or too deep a stack."
            ) from None
        finally:
            timer.cancel()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group, if it still exists."""
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()


def _close(child: subprocess.Popen[bytes]) -> None:
    _kill(child)
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe:
            with suppress(OSError):
                pipe.close()
