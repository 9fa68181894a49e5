"""The program of the sandboxed process, started by `process`. It does not import this package.

It reads one JSON request per line from stdin and writes one JSON response per line. The first line, `{"task": file, "setup":
value, "memory": bytes}`, names a Python file. Its function `prepared` takes the setup and returns the function that answers
requests. Each further line is `[seconds, request]`.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys


def confine(memory: int) -> None:
    """Limit memory, and forbid new files, processes and core dumps, as far as the system supports it."""
    try:
        import resource
    except ImportError:  # not a POSIX system: only the parent's timeout applies
        return
    limits = {
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,  # stdin, stdout and stderr are open, so no other file can be opened
    }
    for name, limit in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, OSError, ValueError):  # not supported on this system
            continue


def alarm(seconds: float) -> None:
    """End this process after this time, even if the parent is gone; 0 cancels the alarm."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def write_answer(value: object) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    os.environ.clear()
    first = json.loads(sys.stdin.buffer.readline())
    answer = runpy.run_path(first["task"])["prepared"](first["setup"])
    confine(first["memory"])
    write_answer("ready")
    for line in sys.stdin.buffer:
        seconds, question = json.loads(line)
        alarm(seconds + 1)
        write_answer(answer(question))
        alarm(0)


if __name__ == "__main__":
    main()
