"""Runs jq programs in a process of their own, so that a harmful or endless one only ends in an error.

A new process for each call: it starts in about 30 ms, which is little beside the tokens of the call itself, and
nothing of one program can reach the next.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from halo_weave.confined.process import ConfinedProcess, ProcessStopped
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.keepsakes.literals import Json

TASK = Path(__file__).with_name("jq_task.py")
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
        question = {"program": program, "document": document, "limit": self.result_characters}
        try:
            with ConfinedProcess(TASK, _extension_file(), memory_bytes=self.memory_bytes) as process:
                answer = process.ask(question, self.seconds)
        except ProcessStopped as error:
            raise BadInput(f"jq {error} Use a simpler program.") from None
        except OSError as error:
            raise BadInput(f"jq could not be started: {error.strerror or error}.") from error
        if "error" in answer:
            raise BadInput(f"jq cannot do this: {_first_line(answer['error'])}.")
        return JqOutput(tuple(answer["values"]), answer["cut"])


def _number(digits: str) -> int | float:
    """JSON has no infinity, and Python reads no endless row of digits."""
    if digits.lstrip("-").isdigit() and len(digits) <= DIGITS:
        return int(digits)
    return max(-LARGEST, min(LARGEST, float(digits)))


def _extension_file() -> str:
    """Where the `jq` package's compiled module lies; the confined process loads it from there, and nothing else."""
    spec = find_spec("jq")
    if spec is None or spec.origin is None:
        raise HaloWeaveError("Notes need the package jq. Try: pip install jq")
    return spec.origin


def _first_line(message: str) -> str:
    """jq's message without its prefixes and the picture of the place."""
    line = message.strip().splitlines()[0] if message.strip() else "no reason given"
    line = line.removeprefix("jq: error: ").removeprefix("jq: ")
    return line.split(" at <top-level>")[0].rstrip(".:")
