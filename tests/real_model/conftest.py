"""One real engine for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halo_weave.engines.llama.engine import LlamaEngine
from tests.real_model.weights import chat_model


@pytest.fixture(scope="session")
def model_file() -> Path:
    return chat_model()


@pytest.fixture(scope="session")
def engine(model_file: Path) -> Iterator[LlamaEngine]:
    with LlamaEngine(model_file) as engine:
        yield engine


@pytest.fixture
def window(request: pytest.FixtureRequest, engine: LlamaEngine) -> Iterator[str]:
    """A window of the test's own, forgotten afterwards."""
    yield request.node.name
    engine.forget(request.node.name)
