"""The log tells what went wrong and where, and never a word that was said."""

import io
import json
import logging

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from halo_weave.errors import StoreError
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.logs import PrivateFormatter
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import say

SECRET = "marimba"


@pytest.fixture(params=["json", "text"])
def log(request):
    """All that is logged, in a form that the server writes."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PrivateFormatter(request.param))
    root, own = logging.getLogger(), logging.getLogger("halo_weave")
    client = logging.getLogger("httpx")  # the test's own requests
    before, heard = own.level, client.level
    client.setLevel(logging.WARNING)
    root.addHandler(handler)
    own.setLevel(logging.INFO)  # as `write_log` does it
    yield out
    root.removeHandler(handler)
    own.setLevel(before)
    client.setLevel(heard)


@pytest.mark.slow
def test_no_said_word_is_in_the_log_whatever_fails(tmp_path, log, monkeypatch):
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    weave = service.weave
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        window = client.post("/api/windows", json={"name": SECRET}).json()["id"]
        say(client, window, SECRET)
        client.get("/api/search", params={"q": SECRET})
        client.put("/api/notes", json={"content": {"topics": SECRET}})
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": SECRET}]})
        client.post("/api/v1/generate", json={"prompt": SECRET, "max_length": 4})
        client.post(f"/api/windows/{window}/messages", content=SECRET)
        client.post("/api/import", content=SECRET.encode())
        client.get(f"/api/windows/{SECRET}")

        def fails(*_: object, **__: object) -> None:
            try:
                raise ValueError(f"about {SECRET}")
            except ValueError as error:
                raise RuntimeError(f"{SECRET} failed") from error

        monkeypatch.setattr(weave.engine, "pause", fails)
        assert say(client, window, SECRET)[-1].name == "failed"
        monkeypatch.setattr(weave.runtime.store, "windows", fails)
        assert httpx.get(f"{address}/api/windows").status_code == 500

        def breaks(*_: object, **__: object) -> None:
            raise StoreError(f"{SECRET} cannot be stored.")

        monkeypatch.setattr(weave.runtime.store, "windows", breaks)
        assert httpx.get(f"{address}/api/windows").status_code == 500
        text = httpx.get(f"{address}/metrics").text
    service.close()
    written = log.getvalue()
    assert SECRET not in written
    assert "RuntimeError" in written  # what failed is told
    assert "test_logs.py" in written  # and where
    assert "A turn ended." in written
    figures = {
        sample.name: sample.value for one in text_string_to_metric_families(text) for sample in one.samples
    }
    assert figures["halo_weave_turns_total"] >= 1
    assert figures["halo_weave_turn_failures_total"] >= 1
    assert figures["halo_weave_recall_seconds_total"] > 0
    assert figures["halo_weave_tokens_per_second"] > 0
    assert SECRET not in text


def test_each_line_of_a_json_log_is_an_object():
    record = logging.LogRecord("halo_weave", 30, "file", 1, "It is %s: %s", ("so", OSError(SECRET)), None)
    told = json.loads(PrivateFormatter("json").format(record))
    assert (told["level"], told["message"]) == ("WARNING", "It is so: OSError")
