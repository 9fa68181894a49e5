"""The engines that the contract holds for. A file that names an ability runs on those that have it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.llama import Limits, LlamaEngine
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.ports import Abilities, Engine
from tests.contract.talks import Talk
from tests.model.weights import chat_model

ABILITIES = {
    "scripted": Abilities(ahead=True),
    "plain": Abilities(attention=False, cuts=False, surprisal=False),  # as behind somebody's API
    "llama": Abilities(ahead=True),
}
window_names = (f"window {number}" for number in itertools.count())


def make_engine(kind: str, *, context: int = 2048) -> Engine:
    if kind == "llama":
        return LlamaEngine(chat_model(), limits=Limits(context=context))
    return ScriptedEngine(context=context, abilities=ABILITIES[kind])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        needed = getattr(metafunc.module, "ABILITY", None)
        kinds = [
            pytest.param(kind, marks=pytest.mark.model if kind == "llama" else ())
            for kind, abilities in ABILITIES.items()
            if needed is None or getattr(abilities, needed)
        ]
        metafunc.parametrize("kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[Engine]:
    engine = make_engine(kind)
    yield engine
    engine.close()


@pytest.fixture
def talk(engine: Engine) -> Iterator[Talk]:
    window = next(window_names)
    talk = Talk(engine, window)
    talk.add(Role.USER, "My dog Bruno swims in the lake. What is his name?")
    yield talk
    engine.forget(window)
