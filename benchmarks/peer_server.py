"""Servers in processes of their own: llama.cpp's, a peer that nobody here wrote, and another Halo Weave."""

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

ROOT = Path(__file__).parents[1]


class PeerServer:
    """A server on a port of its own, that can be killed and started again there."""

    def __init__(
        self, command: list[str], ready: str, env: dict[str, str] | None = None, log: Path | None = None
    ) -> None:
        """`command`: its words may hold {port}. `ready`: the path that answers with 200 once it can be asked.

        `log`: the file that its error stream is written to.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, *(word.replace("{port}", port) for word in command)]
        self._ready = ready
        self._log = log
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        self.start()

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self) -> None:
        with open(self._log or os.devnull, "ab") as errors:  # a pipe that nobody reads would hold it up
            self._server = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        end = time.monotonic() + 180
        while time.monotonic() < end and self._server.poll() is None:
            try:
                if httpx.get(f"{self.url}{self._ready}", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"{self._command} did not start.")

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()
        if self._server.stdin:
            self._server.stdin.close()


@contextmanager
def running(server: PeerServer) -> Iterator[PeerServer]:
    """The server, until the block ends."""
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def llama_server(
    model: Path, *, context: int = 2048, key: str = "", env: dict[str, str] | None = None
) -> Iterator[str]:
    """Its address, until the block ends."""
    command = ["-m", "benchmarks.peer_server", str(model), "{port}", str(context), key]
    with running(PeerServer(command, "/health", env)) as server:
        yield server.url


@contextmanager
def halo_server(folder: Path, *options: str) -> Iterator[PeerServer]:
    """Another Halo Weave, until the block ends. Its model is there."""
    program = "tests.fakes" if "scripted" in options else "halo_weave"
    command = ["-m", program, "serve", "--port", "{port}", "--data", str(folder), "--embedder", "off"]
    (folder / "config.toml").touch()
    env = {"HALO_WEAVE_CONFIG": str(folder / "config.toml")}  # not the user's
    with running(PeerServer([*command, *options], "/api/v1/model", env)) as server:
        yield server


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
