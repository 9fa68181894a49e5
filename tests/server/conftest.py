"""A whole server on a real socket, with the scripted engine behind it."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path

import httpx
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.fakes import ScriptedEngine


def scripted(folder: Path) -> Weave:
    """A system whose engine takes a moment for each token, so that there is a middle of a reply."""
    weave = build_weave(Options(data=folder, engine="scripted"))
    assert isinstance(weave.engine, ScriptedEngine)
    weave.engine.pause = lambda: time.sleep(0.002)
    return weave


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    service = Service(lambda progress: scripted(folder))
    service.begin().join()
    yield service
    service.close()


@pytest.fixture(scope="session")
def address(service):
    with serve_in_thread(service) as address:
        yield address


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=30) as client:
        yield client


class Middle:
    """Holds the engine at its tenth token, so that a test can look at the middle of a reply for as long as it takes."""

    def __init__(self):
        self.tokens, self.held, self.free = count(), threading.Event(), threading.Event()

    def pause(self):
        if next(self.tokens) == 10:
            self.held.set()
            self.free.wait(60)

    def reach(self):
        assert self.held.wait(60)

    def go_on(self):
        self.free.set()


@pytest.fixture
def middle(service, monkeypatch):
    middle = Middle()
    monkeypatch.setattr(service.engine(), "pause", middle.pause)
    yield middle
    middle.go_on()


@pytest.fixture
def window(client):
    """A window that remembers only itself, since all tests share one memory."""
    about = {"name": "Test", "settings": {"memory_scope": "window"}}
    return client.post("/api/windows", json=about).json()["id"]
