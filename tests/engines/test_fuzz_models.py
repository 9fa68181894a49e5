"""Model files, changed at random: each is refused in a sentence or loaded, in time, and never ends the process."""

from __future__ import annotations

import json
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.errors import ModelUnusable
from halo_weave.models.gguf_header import read_header
from halo_weave.models.inventory import human_name
from halo_weave.models.memory_estimate import estimate_memory
from tests.engines import tiny
from tests.fuzz import CORPUS, PATIENCE, examples, in_time

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHILD = """
import json, sys
from pathlib import Path
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.errors import HaloWeaveError
from halo_weave.engines.base import Prompt, Sampling, Segment
import numpy as np
for line in sys.stdin:
    try:
        with LlamaEngine(Path(json.loads(line))) as engine:
            ids = engine.tokenize("Hello there").ids
            prompt = Prompt([Segment("chunk", np.arange(len(ids)), ids)], len(ids))
            list(engine.generate("w", prompt, Sampling(max_new_tokens=2, seed=1), None))
        print("loaded", flush=True)
    except HaloWeaveError as error:
        print("refused", str(error).replace(chr(10), " "), flush=True)
"""
SCALARS = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
ODD = [0, 1, 2, 3, 7, 64, 1000, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
FLOATS = [0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf")]


class Child:
    """A process that loads models, and is started anew if one ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def load(self, path: Path) -> str:
        """What it said, or how it ended."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(str(path)) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:  # starting takes a while, too
            self.close()
            return "hangs"
        said = self.process.stdout.readline().strip()
        if not said:
            code = self.process.wait()
            self.process = None
            return f"ended with {code}"
        return said

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    loads = Child()
    yield loads
    loads.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "llama").read_bytes()


def values_of(content: bytes) -> list[tuple[int, str]]:
    """Where the numbers of a model's header lie, and their form."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        found = []
        for field in gguf.GGUFReader(file.name).fields.values():
            form = SCALARS.get(int(field.types[0])) if field.types else None
            if form and field.name.count(".") and not field.name.startswith("GGUF."):
                found.append(
                    (int(field.offset + sum(len(part.tobytes()) for part in field.parts[:-1])), form)
                )
        return found


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[int, Any]]:
    return draw(
        st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from([*ODD, *FLOATS])), min_size=1, max_size=3)
    )


def changed(good: bytes, plan: list[tuple[int, Any]]) -> bytes:
    content, numbers = bytearray(good), values_of(good)
    for which, value in plan:
        at, form = numbers[which % len(numbers)]
        kind = float if form in ("<f", "<d") else bool if form == "<?" else int
        if kind is int:
            value = 0 if value != value or abs(value) == float("inf") else int(value)
            value %= 1 << (8 * struct.calcsize(form) - (form in ("<i", "<q")))
        struct.pack_into(form, content, at, kind(value))
    return bytes(content)


def harmless(content: bytes, child: Child) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(content)
        try:
            with in_time():
                header = read_header(path)
                human_name(path, header)
                estimate_memory(header, header.size)
        except ModelUnusable:
            return
        assert child.load(path).startswith(("loaded", "refused"))


@settings(max_examples=examples(15), deadline=None)
@given(plan=changes())
def test_other_values_in_a_header_never_end_the_process(
    good: bytes, child: Child, plan: list[tuple[int, Any]]
) -> None:
    harmless(changed(good, plan), child)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 6))
def test_other_bytes_in_a_header_never_end_the_process(
    good: bytes, child: Child, seed: int, count: int
) -> None:
    content, rng = bytearray(good), random.Random(seed)
    for _ in range(count):
        content[rng.randrange(4, 9000)] = rng.choice([0, 1, 255, rng.randrange(256)])
    harmless(bytes(content), child)


@pytest.mark.parametrize("seed", sorted((CORPUS / "models").glob("*.header")), ids=lambda path: path.stem)
def test_a_file_that_once_did_harm_does_none(seed: Path, child: Child) -> None:
    harmless(seed.read_bytes(), child)
