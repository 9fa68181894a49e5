"""Runs jq programs in a process of their own, so that a harmful or endless one only ends in an error.

A new process for each call: it starts in about 30 ms, which is little beside the tokens of the call itself, and
nothing of one program can reach the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.keepsakes.literals import Json

CHILD = Path(__file__).with_name("jq_child.py")
PROGRAM_LIMIT = 20_000  # characters
LARGEST = sys.float_info.max
DIGITS = 4000  # of a whole number that Python reads without being asked twice


@dataclass(frozen=True, slots=True)
class JqOutput:
    """The program's values as JSON texts; `cut` if there were more than fit."""

    values: tuple[str, ...]
    cut: bool = False

    def parsed(self) -> list[Json]:
        """As Python values, to be shown. A number beyond a float becomes the largest float, as jq computes it."""
        return [json.loads(value, parse_float=_number, parse_int=_number) for value in self.values]


@dataclass(frozen=True, slots=True)
class JqSandbox:
    """What one program may use."""

    seconds: float = 2.0
    memory_bytes: int = 256 << 20
    result_characters: int = 1 << 20

    def run(self, program: str, document: str) -> JqOutput:
        """Run a jq program on a JSON text. It sees no file, no environment and no other input. Raises BadInput."""
        if len(program) > PROGRAM_LIMIT:
            raise BadInput(
                f"This jq program is longer than {PROGRAM_LIMIT} characters. Use several shorter ones."
            )
        if "\0" in program:
            raise BadInput("A jq program cannot hold a NUL character.")
        question = [
            _extension_file(),
            program,
            document,
            self.memory_bytes,
            int(self.seconds) + 1,
            self.result_characters,
        ]
        return self._answer(self._talk(json.dumps(question).encode("ascii") + b"\n"))

    def _talk(self, question: bytes) -> bytes:
        with _start_child() as child:
            try:
                return child.communicate(question, timeout=self.seconds)[0]
            except subprocess.TimeoutExpired:
                raise BadInput(
                    f"jq took longer than {self.seconds:g} seconds and was stopped. Use a simpler program."
                ) from None
            finally:
                _end(child)

    def _answer(self, answer: bytes) -> JqOutput:
        try:
            parsed = json.loads(answer)
        except ValueError:  # it died before it could answer
            raise BadInput(
                f"jq was stopped: it needed too much time, more than {self.memory_bytes >> 20} MB, or too deep a stack."
            ) from None
        if "error" in parsed:
            raise BadInput(f"jq cannot do this: {_first_line(parsed['error'])}.")
        return JqOutput(tuple(parsed["values"]), parsed["cut"])


def _number(digits: str) -> int | float:
    """JSON has no infinity, and Python reads no endless row of digits."""
    if digits.lstrip("-").isdigit() and len(digits) <= DIGITS:
        return int(digits)
    return max(-LARGEST, min(LARGEST, float(digits)))


def _start_child() -> subprocess.Popen[bytes]:
    """An interpreter with nothing of ours in it: no environment, no packages, its own session."""
    environment = {"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")} if os.name == "nt" else {}
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=os.path.abspath(os.sep),
            start_new_session=True,
        )
    except OSError as error:
        raise BadInput(f"jq could not be started: {error.strerror or error}.") from error


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child with its group, if it is still there."""
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        child.wait()


def _extension_file() -> str:
    """Where the `jq` package's compiled module lies; the child loads it from there, and nothing else."""
    spec = find_spec("jq")
    if spec is None or spec.origin is None:
        raise HaloWeaveError("Notes need the package jq. Try: pip install jq")
    return spec.origin


def _first_line(message: str) -> str:
    """jq's message without its prefixes and the picture of the place."""
    line = message.strip().splitlines()[0] if message.strip() else "no reason given"
    line = line.removeprefix("jq: error: ").removeprefix("jq: ")
    return line.split(" at <top-level>")[0].rstrip(".:")
