"""The page's own unit tests, on Node's test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.web.house import missing

HERE = Path(__file__).parent / "js"


def test_store_stream_colour_and_words_pass_their_unit_tests():
    node = shutil.which("node")
    if not node:
        missing("Node.js was not found, so the page's unit tests cannot run.")
    files = sorted(map(str, HERE.glob("*.test.js")))
    done = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "# pass 0" not in done.stdout
