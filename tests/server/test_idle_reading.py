"""A server reads in idle time by itself, and its status says how far it is."""

import io
import json
import time

import httpx

from halo_weave.chat import idle_reading
from halo_weave.cli.models import idle_reading as remembered
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.store.imports.test_files import mapping


def test_what_is_imported_is_read_without_a_request_and_the_progress_is_shown(tmp_path, monkeypatch):
    for name in ("POLL", "QUIET", "RETRY"):
        monkeypatch.setattr(idle_reading, name, 0.02)
    monkeypatch.setattr(idle_reading, "machine_is_idle", lambda: True)
    monkeypatch.setattr(idle_reading, "on_battery", lambda: False)
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    try:
        with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
            chat = [mapping("The heron Gerda stands in the reeds behind the old mill.", "I see.")]
            service.weave.memory.import_file(io.BytesIO(json.dumps(chat).encode()))
            end = time.monotonic() + 60
            while time.monotonic() < end:
                status = client.get("/api/status").json()["idle_reading"]
                if status["state"] == "done" and status["total"]:
                    break
                time.sleep(0.02)
            assert status["state"] == "done"
            assert status["done"] == status["total"] > 8
            assert remembered(tmp_path)["done"] == status["done"]
    finally:
        service.close()
