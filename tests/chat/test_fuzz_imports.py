"""Files to import, changed at random: each is refused in a sentence, or taken in and does no harm."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.chat import Weave
from halo_weave.errors import HaloWeaveError
from halo_weave.server import views
from halo_weave.store.records import ExportFilter
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, Clock, WordRecall, spoken
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fuzz import CORPUS, examples, in_time
from tests.store.imports.test_files import png
from tests.store.material import quick_folder

pytestmark = pytest.mark.slow

SEEDS = sorted((CORPUS / "imports").glob("*.json*"))
NUMBERS = [0, 1, -1, 2**31, 2**53, 2**60, 2**62 - 1, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e308]
TEXTS = [
    "",
    " ",
    "\0",
    "x" * 300,
    "é🌙",
    "<|end|>",
    "<|turn|>system\n",
    "1",
    str(2**60),
    "1.0.system",
    "AAAA",
    "system",
]
ODD = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS, None, True, [], {}, [[]], {"a": None}]),
    st.sampled_from(NUMBERS).map(str),
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values within a value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[step], (*path, step))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    seed = draw(st.sampled_from(SEEDS))
    lines = seed.suffix == ".jsonl"
    text = seed.read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    for _ in range(draw(st.integers(1, 4))):
        every = list(places(found))
        if not every:  # all of it was deleted
            break
        path = draw(st.sampled_from(every))
        within = at(found, path[:-1])
        match draw(st.sampled_from(["odd", "odd", "other", "less", "more"])):
            case "odd":
                within[path[-1]] = copy.deepcopy(draw(ODD))  # it may be changed further
            case "other":
                within[path[-1]] = copy.deepcopy(at(found, draw(st.sampled_from(every))))
            case "less":
                del within[path[-1]]
            case "more" if isinstance(within, list):
                within.append(copy.deepcopy(within[path[-1]]))
    if lines and isinstance(found, list):
        content = bytearray("\n".join(json.dumps(line) for line in found).encode())
    else:
        content = bytearray(json.dumps(found).encode())
    if seed.name.startswith("card") and draw(st.booleans()):
        written = (draw(st.sampled_from([b"chara", b"ccv3", b"Chara"])), b64encode(content))
        content = bytearray(png((b"tEXt", b"\0".join(written))))
    if draw(st.integers(0, 9)) == 0:
        content = bytearray(zipped(bytes(content)))
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(content)))
        content[cut : cut + draw(st.integers(0, 50))] = draw(st.binary(max_size=8))
    return bytes(content)


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("conversations.json"), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def sentence_of(act: Callable[..., object]) -> str:
    """With what a user is told that it did not work; empty if it did."""
    try:
        act()
    except HaloWeaveError as error:
        return str(error)
    return ""


def take_in(content: bytes) -> None:
    """Import it where people talk, then do what a user does: nothing may fail there because of it."""
    with quick_folder() as folder, in_time():
        store = SqliteStore(folder / "memory.sqlite")
        weave = Weave(ScriptedEngine(), store, WordRecall(store), None, now=Clock())
        try:
            own = weave.windows.create("mine", settings=SMALL).id
            list(weave.turns.steps(own, "The lighthouse key hangs behind the blue door."))
            before = weave.memory.stats()
            if refusal := sentence_of(lambda: weave.memory.import_file(io.BytesIO(content))):
                assert refusal.endswith(".")
                assert weave.memory.stats().turns == before.turns
                return
            assert store.verify() == []
            assert weave.memory.stats().next_turn < 2**41
            for state in weave.windows.list():
                names = weave.windows.names()
                views.Window.model_validate(state, context=names)
                views.WindowContext.of(weave.windows.context(state.window.id))
            assert spoken(list(weave.turns.steps(own, "Where does the lighthouse key hang?"))).startswith(
                "You said"
            )
            for state in weave.windows.list():
                # Pinned chunks or a long system prompt may leave no room; nothing else may stop a turn.
                told = sentence_of(
                    lambda id=state.window.id: list(weave.turns.steps(id, "Where does it hang?"))
                )
                assert not told or "room" in told or "fit" in told
            out = io.StringIO()
            weave.memory.export(out.write, subset=ExportFilter(), vectors=True)
            weave.memory.import_file(io.BytesIO(out.getvalue().encode()))
            assert store.verify() == []
        finally:
            weave.close()


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.stem)
def test_a_file_that_once_did_harm_does_none(seed: Path) -> None:
    take_in(seed.read_bytes())


@settings(max_examples=examples(40), deadline=None)
@given(content=changed())
def test_a_changed_file_is_refused_or_does_no_harm(content: bytes) -> None:
    take_in(content)
