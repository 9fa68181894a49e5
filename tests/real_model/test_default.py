"""The default model, where it was pulled: it answers plainly, and remembers when it is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from halo_weave.app import Options, build_weave_without_model
from halo_weave.chat import Weave, events
from halo_weave.models import catalogue
from halo_weave.settings import Settings
from tests.chat.conftest import of

pytestmark = pytest.mark.model
DEFAULT = catalogue.OFFLINE_DEFAULTS[0]


@pytest.fixture(scope="module")
def weave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weave]:
    if not DEFAULT.present:  # also on a fresh machine: it is more than a gigabyte
        pytest.skip(f"{DEFAULT.title} was not pulled here: halo-weave pull {DEFAULT.name}")
    folder: Path = tmp_path_factory.mktemp("default")
    settings = replace(Settings(), temperature=0.0, max_new_tokens=64, timestamps=False)
    options = Options(folder, model=DEFAULT.name, embedder="off", settings=settings, context=2048)
    weave = build_weave_without_model(options)
    weave.models.load()
    yield weave
    weave.close()


def test_it_has_its_own_name_template_and_tools(weave: Weave) -> None:
    now = weave.models.state()
    assert (now.state, now.info.name) == ("ready", DEFAULT.title)
    assert (now.info.template, now.info.template_note) == ("model", "")
    assert now.native_tools
    assert now.info.abilities.cuts


def test_it_answers_plainly(weave: Weave) -> None:
    window = weave.windows.create("Plain").id
    turn = list(weave.turns.steps(window, "What is the capital of France?"))
    said = "".join(one.text for one in of(events.TokenGenerated, turn))
    assert "Paris" in said
    assert "{" not in said
    assert not of(events.ToolCalled, turn)


def test_it_remembers_what_it_is_asked_to(weave: Weave) -> None:
    window = weave.windows.create("Remembering").id
    turn = list(weave.turns.steps(window, "Please remember that my cat is called Mooncake."))
    assert not of(events.ToolCalled, turn)
    assert [one.change for one in of(events.MemoryChanged, turn)] == ["saved"]
    saved = [f"{entry.path} {entry.content}" for entry in weave.runtime.store.entries()]
    assert any("Mooncake" in one for one in saved), saved
