"""The engines that the contract holds for. A file that names an ability runs on those that have it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.peer_server import llama_server
from halo_weave.app import Options, build_weave
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capabilities, Engine
from halo_weave.engines.kobold import KoboldEngine
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.engines.openai import OpenAiEngine
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.contract.talks import Talk
from tests.fakes.scripted_engine import ScriptedEngine
from tests.real_model.weights import chat_model

PROTOTYPE = Capabilities(cuts=False, surprisal=False, reading=False)
HIDDEN = Capabilities(attention=False, cuts=False, token_ids=False, surprisal=False, reading=False)
ABILITIES = {
    "scripted": Capabilities(prefetch=True),
    "kobold": Capabilities(),  # another Halo Weave
    "kobold-plain": PROTOTYPE,  # as the prototype's server is asked
    "openai": HIDDEN,  # our own /v1
    "openai-llama": replace(HIDDEN, token_ids=True, late=True),  # llama.cpp's own server, and a reader
    "kobold-llama": Capabilities(),
    "kobold-plain-llama": PROTOTYPE,
    "plain": Capabilities(
        attention=False, cuts=False, surprisal=False, reading=False
    ),  # as behind somebody's API
    "llama": Capabilities(prefetch=True),
}
UNTOLD = {
    "kobold-plain",
    "kobold-plain-llama",
    "openai",
    "openai-llama",
}  # their servers do not tell what they had read before
window_names = (f"window {number}" for number in itertools.count())


def make_engine(kind: str, *, context: int = 2048) -> Engine:
    if kind == "llama":
        return LlamaEngine(chat_model(), limits=EngineLimits(context=context))
    if kind == "openai":
        return OpenAiEngine(served("scripted"), model="scripted:incognito", context=context)
    if kind == "openai-llama":
        reader = LlamaEngine(chat_model(), limits=EngineLimits(context=context))
        return OpenAiEngine(peer(), "sesame", shadow_model=reader, context=context)
    if kind.startswith("kobold"):
        address = served("llama" if kind.endswith("llama") else "scripted")
        return KoboldEngine(address, plain="plain" in kind, context=context)
    return ScriptedEngine(context=context, abilities=ABILITIES[kind])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        needed = getattr(metafunc.module, "ABILITY", None)
        kinds = [
            pytest.param(kind, marks=pytest.mark.model if "llama" in kind else ())
            for kind, abilities in ABILITIES.items()
            if all(getattr(abilities, one) for one in ([needed] if isinstance(needed, str) else needed or ()))
        ]
        metafunc.parametrize("kind", kinds, indirect=True, scope="module")


_servers = ExitStack()


@lru_cache
def served(engine: str) -> str:
    """The address of a whole server of ours, with an engine behind it, until the tests of this folder are over."""
    folder = _servers.enter_context(TemporaryDirectory(prefix="halo-weave-"))
    model = {"model": chat_model(), "context": 2048} if engine == "llama" else {}
    options = Options(data=Path(folder), engine=engine, embedder="off", **model)  # type: ignore[arg-type]
    service = Service(lambda progress: build_weave(options, progress))
    _servers.callback(service.close)
    service.begin().join()
    assert service.failure is None, service.failure
    return _servers.enter_context(serve_in_thread(service))


@lru_cache
def peer() -> str:
    return _servers.enter_context(llama_server(chat_model(), key="sesame"))


@pytest.fixture(scope="session", autouse=True)
def _end_servers() -> Iterator[None]:
    yield
    _servers.close()
    served.cache_clear()
    peer.cache_clear()


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
