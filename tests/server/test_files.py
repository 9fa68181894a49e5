"""Memory out of and into files over HTTP."""

import errno
import io
import json
import os
import tempfile
import zipfile

import pytest

from tests.fuzz import CORPUS
from tests.server.talking import refused, say


def test_an_export_is_a_file_and_imports_without_change(client, window):
    say(client, window, "Take me along.")
    answer = client.get("/api/export", params={"window": window})
    assert answer.headers["content-disposition"].startswith("attachment")
    assert int(answer.headers["content-length"]) == len(answer.content)
    exported = json.loads(answer.content)
    assert exported["turns"]
    kind = {"content-type": "application/octet-stream"}
    brought = client.post("/api/import", content=answer.content, headers=kind).json()
    assert (brought["turns"], brought["known_turns"]) == (0, len(exported["turns"]))


def test_an_export_of_a_part(client, window):
    told = say(client, window, "Only this turn.")
    turn = next(event.data["turn_id"] for event in told if event.name == "message_stored")
    part = client.get("/api/export", params={"first_turn": turn, "last_turn": turn}).json()
    assert [one["turn"] for one in part["turns"]] == [turn, str(int(turn) + 1)]
    assert client.get("/api/export", params={"since": "2199-01-01"}).json()["turns"] == []
    refused(client.get("/api/export", params={"since": "2199-13-01"}), 422, "bad_input")
    refused(client.get("/api/export", params={"window": "nowhere"}), 404, "unknown_window")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"not json", b"\xff\x00", b'{"format": "halo-weave memory"']
)
def test_a_file_that_is_no_export_is_refused_and_changes_nothing(client, body):
    before = client.get("/api/stats").json()
    refused(client.post("/api/import", content=body), 422, "import_refused")
    assert client.get("/api/stats").json() == before


def test_files_in_passing_lie_nameless_beside_the_memory(client, service, window, monkeypatch, tmp_path):
    say(client, window, "Not into the RAM.")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # the system's folder is not asked
    folder = service.weave.memory.folder
    store = service.weave.runtime.store
    seen, import_open_file = [], store.import_open_file
    before = {path.name for path in folder.iterdir()}

    def watched(file, **more):
        seen.append({path.name for path in folder.iterdir()})
        assert os.fstat(file.fileno()).st_dev == folder.stat().st_dev
        return import_open_file(file, **more)

    monkeypatch.setattr(store, "import_open_file", watched)
    answer = client.get("/api/export", params={"window": window})
    assert client.post("/api/import", content=answer.content).status_code == 200
    refused(client.post("/api/import", content=b"{}"), 422, "import_refused")
    assert len(seen) == 2
    for names in (*seen, {path.name for path in folder.iterdir()}):
        assert all(name.startswith("memory.sqlite") for name in names - before)


def test_a_disk_without_room_for_a_file_is_said_so(client, monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    for answer in (client.get("/api/export"), client.post("/api/import", content=b"{}")):
        assert "No space left" in refused(answer, 507, "store_full")


def test_a_file_of_another_program_is_imported_with_a_report_and_told_again(client):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.write(CORPUS / "imports" / "claude.json", "conversations.json")
        archive.writestr("users.json", "[]")
    brought = client.post("/api/import", content=out.getvalue()).json()
    assert (brought["program"], brought["windows"], brought["ids"]) == ("Claude", 2, "")
    assert brought["left"] == {"attachments without text": 1, "files without conversations": 1}
    assert client.get("/api/import").json() == {"state": "idle", "done": 0, "total": 0}
    [garden] = [one for one in client.get("/api/windows").json()["windows"] if one["name"] == "Garden plans"]
    text = client.get("/api/export", params={"format": "markdown", "window": garden["id"]})
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    assert text.headers["content-disposition"].endswith('.md"')
    assert "## Claude, 2025-03-02 09:00" in text.text
    [told] = client.get("/api/export", params={"format": "chatgpt", "window": garden["id"]}).json()
    assert told["title"] == "Garden plans"
    refused(client.get("/api/export", params={"format": "markdown"}), 422, "bad_input")
