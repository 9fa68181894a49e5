"""llama.cpp's own server in a process of its own: a peer that nobody here wrote."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def llama_server(model: Path, *, context: int = 2048, key: str = "") -> Iterator[str]:
    """Its address, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "benchmarks.peer_server", str(model), str(port), str(context), key]
    env = {**os.environ, "PYTHONPATH": str(root)}
    server = subprocess.Popen(
        command,
        cwd=root,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, server)
        yield address
    finally:
        server.kill()
        server.wait()
        if server.stdin:
            server.stdin.close()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError("llama-server did not start.")


def _serve(model: str, port: str, context: str, key: str = "") -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.use_jinja = True
    if key:
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    sys.stdin.read()  # until whoever started it goes
    del server


if __name__ == "__main__":
    _serve(*sys.argv[1:])
