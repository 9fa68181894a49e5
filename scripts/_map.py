"""Writes docs/map.md: every file of the project and what it is for, in the first words of the file itself."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "map.md"
FIRST = {
    ".js": re.compile(r"\A(?:// @ts-check\n)?(?:/\*\*?\s*|// ?)(.+?)(?:\s*\*/)?$", re.MULTILINE),
    ".css": re.compile(r"\A/\*\s*(.+?)(?:\s*\*/)?$", re.MULTILINE),
    ".c": re.compile(r"\A/\*\s*(.+?\.)(?:\s|\*/)", re.DOTALL),
    ".sql": re.compile(r"\A-- ?(.+)$", re.MULTILINE),
    ".ts": re.compile(r"\A// ?(.+)$", re.MULTILINE),
    "": re.compile(r"\A(?:#!.*\n)?# ?(.+)$", re.MULTILINE),
}
SKIPPED = {"__pycache__", "vendor"}


def about(path: Path) -> str:
    """The first sentence that a file says of itself; empty if it says nothing."""
    text = path.read_text()
    if path.suffix == ".py":
        said = (ast.get_docstring(ast.parse(text)) or "").strip().split("\n\n")[0]
    else:
        found = FIRST[path.suffix].match(text)
        said = found.group(1) if found else ""
    return " ".join(said.replace("\n *", "\n").split())


def files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in {".py", *FIRST} and path.name != "py.typed":
            yield path


def folders(top: Path) -> Iterator[Path]:
    yield top
    for path in sorted(top.rglob("*")):
        if path.is_dir() and not SKIPPED & set(path.relative_to(ROOT).parts):
            yield path


def section(folder: Path) -> str:
    rows = []
    title = f"## `{folder.relative_to(ROOT).as_posix()}/`"
    for path in files(folder):
        said = about(path)
        if path.name == "__init__.py":
            title += f"\n\n{said}" if said else ""
        elif path.name != "__main__.py":
            rows.append(f"- `{path.name}`: {said}" if said else f"- `{path.name}`")
    return f"{title}\n\n{chr(10).join(rows)}" if rows else ""


def written() -> str:
    tops = [ROOT / name for name in ("halo_weave", "scripts", "benchmarks", "tests")]
    sections = [section(folder) for top in tops for folder in folders(top)]
    head = "# Map\n\nEvery file and what it is for. Made by `scripts/check --fix` from the files' own first words."
    return "\n\n".join([head, *filter(None, sections)]) + "\n"


def main() -> None:
    if "--check" in sys.argv:
        if not TARGET.is_file() or TARGET.read_text() != written():
            sys.exit("docs/map.md is not current. Run: scripts/check --fix")
        return
    TARGET.write_text(written())


if __name__ == "__main__":
    main()
