"""The scripts say in one line what is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PYTHON = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
TOOLS = [
    "bash",
    "sh",
    "dirname",
    "cksum",
    "cat",
    "df",
    "awk",
    "rm",
    "tail",
    "grep",
    "printf",
    "sed",
    "env",
    "id",
]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The project's scripts in another folder, and a PATH with nothing but the ordinary tools."""
    for name in ("pyproject.toml", "constraints.txt", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    return tmp_path


def run(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    return subprocess.run(
        [str(folder / "scripts" / script)],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("script", ["serve", "test", "check", "bench"])
def test_without_python_one_line_says_what_to_install(bare: Path, script: str):
    done = run(bare, script)
    assert done.returncode == 1
    assert done.stderr == (
        "halo-weave: Python 3.11 or newer is needed and was not found. Install it, or name one with HALO_WEAVE_PYTHON.\n"
    )
    assert done.stdout == ""


def test_an_old_python_is_not_taken(bare: Path):
    old = bare / "bin" / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert "Python 3.11 or newer" in run(bare, "serve").stderr


def test_without_network_one_line_says_so(bare: Path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    done = run(
        bare, "serve", HALO_WEAVE_PYTHON=PYTHON, PIP_RETRIES="0", PIP_CONFIG_FILE="/dev/null", **nowhere
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("halo-weave: The package index could not be reached")
    assert len(done.stderr.splitlines()) == 2  # that it installs, and that it could not


def test_without_room_on_the_disk_one_line_says_so(bare: Path):
    (bare / "bin" / "df").unlink()
    (bare / "bin" / "df").write_text(
        "#!/bin/sh\necho 'Filesystem blocks used free'\necho 'disk 1 1 20480 1% /'\n"
    )
    (bare / "bin" / "df").chmod(0o755)
    done = run(bare, "serve", HALO_WEAVE_PYTHON=PYTHON)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "halo-weave: About 800 MB of free disk space is needed here, and only 20 MB are left."
    )


def test_an_unknown_benchmark_is_named_before_anything_is_installed(bare: Path):
    done = subprocess.run(
        [str(bare / "scripts" / "bench"), "nothing"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "halo-weave: There is no benchmark named nothing. Run scripts/bench to see them.\n"
    assert not (bare / ".venv").exists()
