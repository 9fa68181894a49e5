"""Import of another program's export, in a process of its own, so that its memory is its own."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from halo_weave.assemble import open_store

MESSAGES, IN_ONE = 10_000, 100  # messages of the file, and of one conversation
WORDS = "harbour lantern river gate ladder mirror copper willow thunder velvet meadow anchor basket candle".split()


def import_figures(messages: int = MESSAGES) -> dict[str, float]:
    """`import_messages_per_second`, and `import_memory_mb`: what the process grows by over one that imports ten messages."""
    many, few = _measured(messages), _measured(10)
    return {
        "import_messages_per_second": round(messages / many["seconds"], 1),
        "import_memory_mb": round(many["peak_mb"] - few["peak_mb"], 1),
        "import_file_mb": round(many["file_mb"], 1),
        "import_again_messages_per_second": round(messages / many["again_seconds"], 1),
    }


def _measured(messages: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.imports", "--messages", str(messages)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _conversation(number: int, count: int) -> dict[str, Any]:
    """One of ChatGPT's, with an answer in eight given twice."""
    nodes: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    last, begun = "root", 1_700_000_000 + 86_400 * number
    for place in range(count):
        words = " ".join(WORDS[(number * 7 + place * 3 + word) % len(WORDS)] for word in range(60))
        id, role = f"{number}-{place}", "assistant" if place % 2 else "user"
        content = {"content_type": "text", "parts": [f"Message {number}.{place}: {words}."]}
        message = {"author": {"role": role}, "create_time": begun + 60 * place, "content": content}
        nodes[id] = {"id": id, "message": message, "parent": last, "children": []}
        if place % 16:
            last = id
    return {
        "title": f"Talk {number}",
        "conversation_id": f"c{number}",
        "mapping": nodes,
        "current_node": last,
    }


def _write(path: Path, messages: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, first in enumerate(range(0, messages, IN_ONE)):
            file.write(",\n" if number else "")
            json.dump(_conversation(number, min(IN_ONE, messages - first)), file)
        file.write("]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversations.json"
        _write(path, asked.messages)
        seconds = []
        with open_store(Path(folder) / "data") as store:
            for _ in range(2):
                begun = time.perf_counter()
                brought = store.import_file(path, now=datetime.now(UTC))
                seconds.append(time.perf_counter() - begun)
            assert brought.known_turns == asked.messages, brought
        found = {
            "seconds": seconds[0],
            "again_seconds": seconds[1],
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "file_mb": path.stat().st_size / 1e6,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
