"""A whole server for the browser tests: the real one on a real socket, with the scripted engine behind it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat.weave import Weave
from halo_weave.server.http_server import Server, bind, policy_for
from halo_weave.server.service import Service
from tests.fakes.scripted_engine import ScriptedEngine


def missing(what: str) -> None:
    """A missing backend skips visibly, and on CI fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


class House:
    """A server that a test can pace, stop and start again on the same memory and the same address."""

    def __init__(
        self,
        folder: Path,
        *,
        key: str = "",
        embedder: Literal["off"] | None = "off",
        store: str | None = None,
        assemble: Callable[..., Weave] | None = None,
    ) -> None:
        self.folder, self.key, self.embedder, self.store = folder, key, embedder, store
        self.assemble = assemble or self.scripted
        self.pace = 0.0  # seconds before each token
        self.held = threading.Event()  # while it is set, no further token comes
        self.replies: list[str] = []  # what the model says next
        self.port = 0
        self.also: list[str] = []  # other addresses that lead here
        self.server: Server | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> House:
        listener = bind("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        self.service = Service(self.assemble)
        policy = policy_for("127.0.0.1", self.port, key=self.key, names=tuple(self.also))
        self.server = Server(self.service, policy)
        listener.listen()
        self.thread = threading.Thread(target=self.server.run, args=([listener],))
        self.thread.start()
        loading = self.service.begin()
        if wait:
            loading.join()
        return self

    def receive(self, folder: Path) -> House:
        """Begin again with another memory. The server goes on, if no test has ended it or changed its names."""
        self.folder, self.pace, self.replies = folder, 0.0, []
        self.held.clear()
        if self.also:
            self.stop()
        if self.server is None:
            self.port, self.also = 0, []
            return self.start()
        Service.__init__(self.service, self.assemble)
        self.service.begin().join()
        return self

    def stop(self) -> None:
        if self.server is None:
            return
        self.held.clear()
        self.server.should_exit = True
        self.thread.join()
        self.server = None

    def scripted(self, progress: Any) -> Weave:
        options = Options(self.folder, store=self.store, engine="scripted", embedder=self.embedder)
        weave = build_weave(options, progress)
        assert isinstance(weave.engine, ScriptedEngine)
        self.engine = weave.engine
        self.engine.pause, self.engine.replies = self._pause, self.replies
        return weave

    def _pause(self) -> None:
        while self.held.is_set():
            time.sleep(0.005)
        time.sleep(self.pace)

    # What a test asks of the server without the page

    def ask(self, method: str, path: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        answer = httpx.request(method, f"{self.address}/api{path}", headers=headers, timeout=60, **more)
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def window(self, name: str = "Lighthouse", **settings: Any) -> str:
        return str(self.ask("POST", "/windows", json={"name": name, "settings": settings})["id"])

    def context(self, window: str) -> Any:
        return self.ask("GET", f"/windows/{window}/context")

    def text(self, window: str) -> str:
        """All that is live in a window."""
        turns = self.context(window)["turns"]
        return "".join("".join(chunk["text_pieces"]) for turn in turns for chunk in turn["chunks"])

    def say(self, window: str, text: str, reply: str | None = None) -> None:
        """A whole turn without the page."""
        if reply is not None:
            self.replies.append(reply)
        self.ask("POST", f"/windows/{window}/messages", json={"text": text})
        self.until_quiet(window)

    def until_quiet(self, window: str) -> None:
        end = time.monotonic() + 60
        while self.ask("GET", f"/windows/{window}")["generating"]:
            assert time.monotonic() < end, "the reply does not end"
            time.sleep(0.01)


class Cable:
    """A way to the server that can be cut and mended."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.whole = True
        self.open: list[socket.socket] = []
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closed:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            if not self.whole:
                here.close()
                continue
            there = socket.create_connection(("127.0.0.1", self.target))
            self.open += [here, there]
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(65536):
                other.sendall(piece)
        except OSError:
            pass
        finally:
            for end in (one, other):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def cut(self) -> None:
        self.whole = False
        for end in self.open:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def mend(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.closed = True
        self.cut()
        self.listener.close()
        for end in self.open:
            end.close()
