"""The size of the code, and which modules one message passes through. For information: there are no limits."""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import halo_weave
import tests.fakes
from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service

assert tests.fakes  # adds the engine `scripted`
PACKAGE = Path(halo_weave.__file__).parent


def measure_code() -> dict[str, Any]:
    lines = {path: len(path.read_text().splitlines()) for path in sorted(PACKAGE.rglob("*.py"))}
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in lines
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        "modules": len(lines),
        "python_lines": sum(lines.values()),
        "javascript_lines": sum(len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.js")),
        "module_median": statistics.median(lines.values()),
        "function_median": statistics.median(functions),
    }


def follow_one_message() -> Counter[str]:
    """Calls in each module of the package, in all threads, while one message is answered over HTTP.

    The engine is the scripted one, and the window has talked before, so that nothing is loaded for the first time.
    """
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls[path.relative_to(PACKAGE).as_posix()] += 1

    threading.setprofile(count)  # for the threads that start from here on
    try:
        with tempfile.TemporaryDirectory() as folder:
            service = Service(lambda progress: build_weave(Options(data=Path(folder), engine="scripted")))
            service.begin().join()
            with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
                window = client.post("/api/windows", json={"name": "One message"}).json()["id"]
                for text in ("Hello.", "My cat is called Mochi.", "What is my cat called?"):
                    calls.clear()
                    said = client.post(
                        f"/api/windows/{window}/messages", json={"text": text}
                    ).raise_for_status()
                    wait_for_the_end(client, window, said.json()["last_event"])
                    one = Counter(calls)
            service.close()
    finally:
        threading.setprofile(None)
    return one


def wait_for_the_end(client: httpx.Client, window: str, last_event: str) -> None:
    with client.stream(
        "GET", f"/api/windows/{window}/events", headers={"last-event-id": last_event}
    ) as events:
        for line in events.iter_lines():
            if line == "event: done":
                return


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench shape", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument(
        "--modules", action="store_true", help="list the modules that one message passes through"
    )
    options = parser.parse_args()
    calls = follow_one_message()
    if options.modules:
        for name, count in sorted(calls.items()):
            print(f"{count:7,} {name}", file=sys.stderr)
    result = measure_code() | {"modules_of_a_message": len(calls), "calls_of_a_message": calls.total()}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:22} {value:,}")


if __name__ == "__main__":
    main()
