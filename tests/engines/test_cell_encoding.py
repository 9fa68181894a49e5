"""Cells on disk have 8 bits: half as long, nearly the same numbers, and everything else as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_weave.engines.llama.cache_files import _read_tokens
from halo_weave.engines.llama.cell_encoding import _numbers_in, decode, encode
from tests.engines.test_borrowed_cells import FACT, ONE, home_talk, quoting, restored, sleeps, surprisal
from tests.engines.test_cache_files import engine_on, files
from tests.engines.tiny import write

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama")


@pytest.fixture(scope="module")
def state(model: Path) -> Bytes:
    """What llama.cpp saves of a conversation."""
    with engine_on(model, None) as engine:
        home_talk(engine).hear(ONE)
        return max((part.state for part in engine.caches["home"].snapshot().parts), key=len)


def test_only_the_numbers_of_an_encoded_state_are_rounded(state: Bytes) -> None:
    encoded = encode(state)
    assert encoded is not None
    assert len(encoded) < 0.6 * len(state)
    again = decode(encoded)
    assert len(again) == len(state)
    outside = np.ones(len(state), np.bool_)
    for start, stop in _numbers_in(state):
        outside[start:stop] = False
        blocks = [
            one[start:stop].view(np.float16).astype(np.float32).reshape(-1, 32) for one in (state, again)
        ]
        scale = np.abs(blocks[0]).max(axis=1, keepdims=True) / 127
        assert (np.abs(blocks[1] - blocks[0]) <= 0.51 * scale + 1e-3).all()
    assert (again[outside] == state[outside]).all()
    assert outside.sum() < len(state) / 4


@pytest.mark.parametrize("harm", ["short", "empty", "streams", "infinite", "longer"])
def test_a_state_of_another_form_is_not_encoded(harm: str, state: Bytes) -> None:
    other = state.copy()
    if harm == "streams":
        other[8] = 2
    if harm == "infinite":
        start, _ = _numbers_in(state)[0]
        other[start : start + 2] = np.array([np.inf], np.float16).view(np.uint8)
    cut = {"short": other[:-7], "empty": other[:0], "longer": np.append(other, np.uint8(0))}
    assert encode(cut.get(harm, other)) is None


def test_cells_that_were_encoded_are_read_as_what_they_were(model: Path, tmp_path: Path) -> None:
    with engine_on(model, tmp_path / "cells") as engine:
        sleeps(home_talk(engine), FACT)
        cell_bytes = engine.config.cell_bytes
    pruned = [path for path in files(tmp_path / "cells") if ".live." not in path.name]
    path = max(pruned, key=lambda path: path.stat().st_size)
    tokens = sum(len(part.tokens) for part in _read_tokens(path))
    head = int.from_bytes(path.read_bytes()[24:28], "little") + 28
    assert path.stat().st_size - head < 0.75 * tokens * cell_bytes  # each token's place is not encoded
    found = []
    for cells in (tmp_path / "cells", None):
        with engine_on(model, cells) as engine:
            home = home_talk(engine)
            if cells is None:  # lent from memory, with 16 bits
                sleeps(home, FACT)
            assert restored(quoting(home)) == len(home.turns[FACT][2])
            found.append(surprisal(quoting(home, "there")))
    np.testing.assert_allclose(*found, atol=0.2)  # of 4 to 10
