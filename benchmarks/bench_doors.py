"""Other programs: time to first token over /v1 against the page's way, histories sent again and again, and imports."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave
from halo_weave.core.tokens import Role
from halo_weave.models import catalogue
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service

TRIES = 12
MESSAGES = 200
IMPORTED = 10_000
WORDS = "harbour lantern violin mountain copper basil orchard window river compass saddle thunder".split()


def _events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and line != "data: [DONE]":
            yield name, json.loads(line[6:])


def over_the_page(client: httpx.Client, listener: httpx.Client, window: str, text: str) -> float:
    """Milliseconds from saying something to the first token, as the page does it: events have a connection of their own.

    That one is closed after each turn; the other stays open, so that neither way has to connect anew.
    """
    began = time.perf_counter()
    said = client.post(f"/api/windows/{window}/messages", json={"text": text}).json()
    first = 0.0
    with listener.stream("GET", said["stream"]) as response:
        for name, _ in _events(response):
            if name == "token" and not first:
                first = time.perf_counter()
            if name in ("done", "failed"):
                break
    return (first - began) * 1e3


def over_v1(
    client: httpx.Client, history: list[dict[str, str]], **more: Any
) -> tuple[float, str, dict[str, Any], str]:
    """The same over /v1: milliseconds, the reply, its usage, the window."""
    asked = {"model": "any", "messages": history, "stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, Any] = {}
    began, first, text = time.perf_counter(), 0.0, ""
    with client.stream("POST", "/v1/chat/completions", json={**asked, **more}) as response:
        window = response.headers["x-halo-window"]
        for _, data in _events(response):
            usage = data.get("usage") or usage
            for choice in data["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and not first:
                    first = time.perf_counter()
                text += piece
    return (first - began) * 1e3, text, usage, window


def sentence(number: int) -> str:
    words = [WORDS[(number * step + step) % len(WORDS)] for step in (1, 3, 5, 7)]
    return f"Note {number}: the {words[0]} and the {words[1]} are near the {words[2]}, beside a {words[3]}."


def measure_overhead(client: httpx.Client) -> dict[str, float]:
    """Both ways in turn, each in a window of its own with the same settings and the same words."""
    settings = {"max_new_tokens": 8, "timestamps": False, "temperature": 0, "memory_scope": "window"}
    settings |= {
        "tools": "off",
        "memory_tree_in_prompt": False,
    }  # a client of /v1 brings its own tools and prompt
    made = client.post(
        "/api/windows", json={"name": "page", "system_prompt": "", "settings": settings}
    ).json()["id"]
    history: list[dict[str, str]] = []
    guest, page = [], []
    with httpx.Client(base_url=client.base_url, timeout=600) as listener:
        for number in range(TRIES):
            text = sentence(number)
            page.append(over_the_page(client, listener, made, text))
            history.append({"role": "user", "content": text})
            ms, reply, _, window = over_v1(client, history, max_tokens=8, temperature=0)
            if not number:  # the page's windows and the clients' have the same settings from here on
                client.patch(f"/api/windows/{window}", json={"settings": settings})
            guest.append(ms)
            history.append({"role": "assistant", "content": reply})
    pairs = [a - b for a, b in zip(guest[2:], page[2:], strict=True)]
    return {
        "v1_overhead_ms": round(statistics.median(pairs), 2),
        "v1_first_token_ms": round(statistics.median(guest[2:]), 2),
        "page_first_token_ms": round(statistics.median(page[2:]), 2),
    }


def measure_history(weave: Weave, client: httpx.Client) -> dict[str, float]:
    """A chat of many messages that its client sends whole with every request."""
    window = weave.windows.create(
        "long", settings={"memory_scope": "window", "timestamps": False, "max_context_tokens": 0}
    )
    said = [(Role.USER if i % 2 == 0 else Role.ASSISTANT, sentence(i)) for i in range(MESSAGES)]
    weave.turns.add(window.id, said)
    roles = {Role.USER: "user", Role.ASSISTANT: "assistant"}
    history = [{"role": roles[role], "content": text} for role, text in said]
    matched, reuse, before = [], [], weave.memory.stats().turns
    for number in range(5):
        history.append({"role": "user", "content": f"And now, number {number}?"})
        began = time.perf_counter()
        found = weave.turns.recognise([(Role(one["role"]), one["content"]) for one in history])
        matched.append((time.perf_counter() - began) * 1e3)
        assert found is not None
        assert found.window == window.id
        _, reply, usage, place = over_v1(client, history, max_tokens=8, temperature=0)
        assert place == window.id
        history.append({"role": "assistant", "content": reply})
        reuse.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
    return {
        "match_ms": round(statistics.median(matched), 2),
        "stored_twice": weave.memory.stats().turns - before - 10,
        "kv_reuse": round(statistics.median(reuse[1:]), 4),
    }


def most_memory() -> float:
    """Megabytes that this process had at most. `ru_maxrss` would count what its parent had when it was started."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure_import(folder: Path) -> dict[str, float]:
    """An export of another program with many messages, in a process of its own, so that its memory is its own."""
    conversations = []
    for chat in range(IMPORTED // 100):
        mapping: dict[str, Any] = {"r": {"id": "r", "message": None, "parent": None, "children": ["0"]}}
        for i in range(100):
            mapping[str(i)] = {
                "id": str(i),
                "parent": "r" if not i else str(i - 1),
                "children": [str(i + 1)] if i < 99 else [],
                "message": {
                    "id": f"{chat}-{i}",
                    "author": {"role": "user" if i % 2 == 0 else "assistant"},
                    "create_time": 1_700_000_000.0 + chat * 1000 + i,
                    "content": {"content_type": "text", "parts": [sentence(chat * 100 + i)]},
                },
            }
        about = {"title": f"Chat {chat}", "create_time": 1_700_000_000.0, "update_time": 1_700_000_000.0}
        conversations.append(
            {**about, "conversation_id": f"c{chat}", "current_node": "99", "mapping": mapping}
        )
    file = folder / "conversations.json"
    file.write_text(json.dumps(conversations))
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom datetime import UTC, datetime\n"
        "from benchmarks.bench_doors import most_memory\nfrom halo_weave.app import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "base = most_memory()\nbegan = time.perf_counter()\n"
        "brought = store.import_file(Path(sys.argv[2]), now=datetime.now(UTC))\n"
        "took = time.perf_counter() - began\n"
        "print(brought.turns, took, most_memory() - base)\nstore.close()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder / "imported"), str(file)],
        check=True,
        capture_output=True,
        text=True,
    )
    turns, took, more = ran.stdout.split()
    assert int(turns) == IMPORTED
    return {
        "import_messages_per_second": round(IMPORTED / float(took)),
        "import_memory_mb": round(float(more), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default=catalogue.SMOLLM2_135M.name, help="a name or a GGUF file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service = Service(lambda progress: build_weave(Options(data=folder / "data", model=asked.model)))
        service.begin().join()
        with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=600) as client:
            weave, model = service.weave, service.weave.engine.info.name
            weave.memory.embed(["warm"])
            report: dict[str, float] = {**measure_overhead(client), **measure_history(weave, client)}
        service.close()
        report |= measure_import(folder)
    report["memory_mb"] = round(most_memory())
    if asked.json:
        print(json.dumps({"model": model, **report}))
    else:
        print(f"{'model':28} {model}")
        for key, value in report.items():
            print(f"{key:28} {value}")
    limits = {"v1_overhead_ms": 20, "match_ms": 20, "stored_twice": 0}
    failed = [key for key, most in limits.items() if report[key] > most]
    if report["kv_reuse"] < 0.95:
        failed.append("kv_reuse")
    if failed:
        print(f"Not as promised: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
