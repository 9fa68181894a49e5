"""Models with sliding windows: what left the window stays in the cache, leaves it and returns as with any other model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, Sampling
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.models import catalogue
from halo_weave.models.inventory import local_path
from tests.contract.talks import Talk
from tests.engines.tiny import write

ONE = Sampling(temperature=0.0, max_new_tokens=1)
LINES = [
    f"Line {i}: boat number {i * 7 % 97} is blue and has {i % 9 + 2} sails, and its captain is called Marta."
    for i in range(40)
]


@pytest.fixture(scope="module", params=["tiny", pytest.param("gemma", marks=pytest.mark.model)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    if request.param == "tiny":
        path = write(tmp_path_factory.mktemp("models") / "tiny.gguf", "gemma2")
    else:
        found = local_path(catalogue.GEMMA_3_270M)
        if found is None:
            pytest.skip("Gemma 3 270M is not here; this gets it: halo-weave pull gemma-3-270m")
        path = found
    with LlamaEngine(path) as engine:
        yield engine


@pytest.fixture
def talk(request: pytest.FixtureRequest, engine: LlamaEngine) -> Iterator[Talk]:
    """Longer than a window, also without its frames."""
    talk = Talk(engine, request.node.name)
    for number in range(len(LINES)):
        talk.add((Role.USER, Role.ASSISTANT)[number % 2], LINES[number])
        if talk.chunk_tokens > 1.3 * engine.config.sliding_window:
            break
    yield talk
    engine.forget(talk.window)


def test_some_layers_see_everything_and_only_they_light_tokens(engine: LlamaEngine, talk: Talk) -> None:
    wide = engine.info.wide_layers
    assert wide == {"gemma2": (1,), "gemma3": (5, 11, 17)}[engine.info.architecture]
    talk.hear(ONE)
    by_default, chosen, narrow = (
        talk.hear(ONE, capture).steps[0].row
        for capture in (Capture(), Capture(layers=wide), Capture(layers=(0,)))
    )
    assert by_default is not None
    assert chosen is not None
    assert narrow is not None
    assert np.array_equal(by_default.tokens, chosen.tokens)
    far = len(by_default.tokens) - engine.config.sliding_window
    assert (by_default.tokens[:far] > 0).all()
    assert not narrow.tokens[:far].any()


def test_what_left_the_sliding_window_leaves_the_cache_and_returns_without_computing(
    engine: LlamaEngine, talk: Talk
) -> None:
    talk.hear(ONE, Capture())
    long_ago = 1
    talk.asleep = {long_ago}
    talk.add(Role.USER, LINES[-1])
    without = talk.hear(ONE, Capture())
    talk.asleep = set()
    back = talk.hear(ONE, Capture())
    assert without.read is not None
    assert back.read is not None
    tokens = len(talk.turns[long_ago][2])
    assert without.read.computed < 4 * tokens
    assert back.read.restored >= tokens
    assert back.read.computed < tokens
    assert (without.read.rebuilt, back.read.rebuilt, engine.mapping_errors) == ("", "", 0)


def test_cells_beyond_the_sliding_window_are_never_taken_away(engine: LlamaEngine, talk: Talk) -> None:
    """llama.cpp would give them to new tokens as soon as a hole lies before them."""
    talk.hear(ONE)
    talk.asleep = {0}
    talk.add(Role.USER, LINES[-1])
    talk.add(Role.ASSISTANT, LINES[-2])
    talk.hear(ONE)
    cache = engine.caches[talk.window]
    saved = [
        cache._copy_tokens(part).state.nbytes / len(part)
        for part in cache._contiguous_runs(np.arange(cache.count))
    ]
    assert len(saved) > 1
    assert saved == pytest.approx([engine.config.cell_bytes] * len(saved), rel=0.15)


def test_a_cache_that_grows_keeps_what_left_the_sliding_window(engine: LlamaEngine, talk: Talk) -> None:
    before = talk.hear(ONE, Capture())
    cache = engine.caches[talk.window]
    cache.resize(len(cache.cells) + 256, attention=True)
    again = talk.hear(ONE, Capture(reading=True), read_from=talk.turns[1][1])
    assert again.read is not None
    assert again.read.rebuilt == ""
    assert again.read.reused > 0
    assert again.text == before.text
    assert before.steps[0].row is not None
    assert again.steps[0].row is not None
    assert again.steps[0].surprisal == pytest.approx(before.steps[0].surprisal, abs=1e-2)


def test_reading_after_surgery_is_nearly_as_good_as_reading_anew(engine: LlamaEngine, talk: Talk) -> None:
    talk.hear(ONE)
    talk.asleep = {1}
    question = talk.add(Role.USER, LINES[0])
    talk.hear(ONE)
    talk.asleep = set()
    surprised = Capture(reply=False, reading_surprisal=True)
    mended = talk.hear(ONE, surprised, read_from=talk.turns[question][1])
    exact = talk.hear(ONE, surprised, read_from=talk.turns[question][1], mode="exact")
    assert mended.read is not None
    assert exact.read is not None
    assert mended.read.computed < exact.read.computed
    assert mended.read.surprisal is not None
    assert exact.read.surprisal is not None
    assert mended.read.surprisal.mean() == pytest.approx(exact.read.surprisal.mean(), abs=0.1)
