"""Who writes a draft, and whether that process still lives."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def _started(pid: int) -> str:
    """When a process began, as far as the system tells: process ids are used again. Of one that has ended and only waits
    for its parent to take note, nothing."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""


def this_process() -> str:
    """A name by which another process can tell whether this one is still there."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {_started(pid)}".strip()


def alive(owner: str) -> bool | None:
    """None if it cannot be known from here: a process of another host or container, or a system without a way to ask."""
    host, pid, *started = owner.split(" ")
    if owner == this_process():
        return True
    if host != socket.gethostname() or sys.platform == "win32":
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not started or started[0] == _started(int(pid))
