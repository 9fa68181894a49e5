"""The shape of the code: lines, public names, class names used twice, function lengths, frames from a request to the engine."""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, extract_stack
from typing import Any
from unittest.mock import patch

import httpx

import halo_weave
from halo_weave.assemble import Options, assemble
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.server.listening import serving
from halo_weave.server.service import Service

PACKAGE = Path(halo_weave.__file__).parent


def lines_of(ending: str) -> dict[Path, int]:
    return {path: len(path.read_text().splitlines()) for path in sorted(PACKAGE.rglob(f"*.{ending}"))}


def definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def measure_code() -> dict[str, Any]:
    python, javascript = lines_of("py"), lines_of("js")
    trees = [ast.parse(path.read_text()) for path in python]
    top = [node for tree in trees for node in definitions(tree.body)]
    classes = Counter(node.name for node in top if isinstance(node, ast.ClassDef))
    functions = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    total = sum(python.values())
    public = sum(not node.name.startswith("_") for node in top)
    return {
        "python_lines": total,
        "javascript_lines": sum(javascript.values()),
        "names_per_1000": round(public / total * 1000, 1),
        "duplicate_class_names": sum(count > 1 for count in classes.values()),
        "function_median": statistics.median(functions),
        "function_p90": functions[int(len(functions) * 0.9)],
        "largest_module": max(python.values()),
    }


def frames_to_engine() -> int:
    """Frames of this package from the HTTP handler of `say` to `Engine.generate`, those of all threads added up."""
    started: dict[threading.Thread, list[FrameSummary]] = {}
    seen: list[list[FrameSummary]] = []
    start, generate = threading.Thread.start, ScriptedEngine.generate

    def start_and_note(thread: threading.Thread) -> None:
        started[thread] = _chain(started)
        start(thread)

    def generate_and_note(engine: ScriptedEngine, *asked: Any, **named: Any) -> Any:
        seen.append(_chain(started))
        return generate(engine, *asked, **named)

    with (
        patch.object(threading.Thread, "start", start_and_note),
        patch.object(ScriptedEngine, "generate", generate_and_note),
        tempfile.TemporaryDirectory() as folder,
    ):
        service = Service(lambda progress: assemble(Options(data=Path(folder), engine="scripted")))
        service.begin().join()
        with serving(service) as address, httpx.Client(base_url=address, timeout=30) as client:
            window = client.post("/api/windows", json={"name": "Frames"}).json()["id"]
            client.post(f"/api/windows/{window}/say", json={"text": "Hello."}).raise_for_status()
            end = time.monotonic() + 30
            while not seen and time.monotonic() < end:
                time.sleep(0.01)
        service.close()
    frames = [frame for frame in seen[0] if Path(frame.filename).is_relative_to(PACKAGE)]
    handler = next(
        i for i, frame in enumerate(frames) if Path(frame.filename).is_relative_to(PACKAGE / "server/routes")
    )
    return len(frames) - handler + 1  # and the engine's own


def _chain(started: dict[threading.Thread, list[FrameSummary]]) -> list[FrameSummary]:
    """The stack of this thread below that of whoever started it. The two frames that only measure are left out."""
    return [*started.get(threading.current_thread(), []), *list(extract_stack())[:-2]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench shape", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    result = measure_code() | {"frames_to_engine": frames_to_engine()}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value:,}")


if __name__ == "__main__":
    main()
