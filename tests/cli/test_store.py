"""The commands that look after the memory, as a user runs them."""

import json
import sqlite3

import pytest
from typer.testing import CliRunner

import halo_weave.cli
from halo_weave.cli.app import app
from halo_weave.errors import BadInput, HaloWeaveError, ImportRefused, StoreError, UnknownWindow
from halo_weave.store.sqlite import SqliteStore
from tests.fuzz import CORPUS
from tests.store.material import NOW, exchange, live_keys, sleep, user

assert halo_weave.cli  # registers the commands


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("HALO_WEAVE_DATA", str(folder))
    return folder


@pytest.fixture
def window(data) -> str:
    with SqliteStore(data / "memory.sqlite") as store:
        window = store.create_window("Harbour talk", now=NOW).id
        exchange(store, window, "the lighthouse stands", "tall")
        exchange(store, window, "and the harbour", "sleeps")
        sleep(store, window, user(1))
    return window


def run(*words: str, input: str | None = None) -> str:
    result = CliRunner().invoke(app, list(words), input=input)
    if isinstance(result.exception, HaloWeaveError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_status_tells_what_there_is(window):
    assert "8 tokens in 4 chunks and 4 turns" in " ".join(run("status").split())
    figures = json.loads(run("status", "--json"))
    assert (figures["tokens"], figures["turns"], figures["next_turn"]) == (8, 4, "5")


def test_status_says_when_vectors_can_be_renewed(window, data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    with SqliteStore(data / "memory.sqlite") as store:
        store.begin_generation("MiniLM", 8, now=NOW)
        assert "0 by MiniLM, 4 to do, by an earlier method: halo-weave reindex renews them" in run("status")
        store.begin_generation("MiniLM, passages 2", 8, now=NOW)
        assert run("status").count("earlier method") == 1


def test_windows_are_put_in_order(window, data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with SqliteStore(data / "memory.sqlite") as store:
        store.create_window("Garden", now=NOW)
    assert "tagged sea, work" in run("window", "Garden", "--tags", "sea, work, sea", "--pin")
    listed = json.loads(run("windows", "--json"))["windows"]
    assert [(one["name"], one["tags"], one["pinned"]) for one in listed] == [
        ("Garden", ["sea", "work"], True),
        ("Harbour talk", [], False),
    ]
    assert [one["name"] for one in json.loads(run("windows", "--tag", "sea", "--json"))["windows"]] == [
        "Garden"
    ]
    run("window", window, "--archive", "--rename", "Old talk")
    assert "Old talk" not in run("windows")
    assert "Old talk (archived)" in " ".join(run("windows", "--archived").split())
    run("window", "Old talk", "--unarchive")
    assert "Old talk" in run("windows")
    with pytest.raises(BadInput, match="1 to 40 characters"):
        run("window", "Garden", "--tags", "x" * 41)
    with pytest.raises(UnknownWindow):
        run("window", "Nowhere", "--pin")


def test_windows_are_listed(window):
    (found,) = json.loads(run("windows", "--json"))["windows"]
    assert (found["id"], found["name"], found["live_chunks"], found["pruned_chunks"]) == (
        window,
        "Harbour talk",
        3,
        1,
    )
    assert window in run("windows")


@pytest.mark.parametrize("name", ["notes [/todo]", "[red]sale[/red]", "[link=x]y", "a \\[b] :smile:"])
def test_brackets_in_names_are_shown_as_they_are(tmp_path, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / name.replace("/", "")
    with SqliteStore(folder / "memory.sqlite") as store:
        store.create_window(name, now=NOW)
        store.begin_generation(name, 8, now=NOW)
    data = ["--data", str(folder)]
    assert name in run("windows", *data)
    told = run("status", *data)
    assert f"0 by {name}" in told
    assert str(folder / "memory.sqlite") in told


def test_commands_that_only_read_make_no_memory(data):
    for command in (["status"], ["windows"], ["verify"], ["export", "x.json"], ["backup", "x.sqlite"]):
        with pytest.raises(StoreError, match="no memory"):
            run(*command)
    assert not data.exists()


@pytest.mark.parametrize(
    "command", [["clear", "--yes"], ["verify", "--repair"], ["memory", "delete", "a"], ["reindex"]]
)
def test_commands_that_change_what_is_there_make_no_memory(data, monkeypatch, command):
    monkeypatch.setattr("halo_weave.models.catalogue.ensure", lambda entry, progress: None)
    with pytest.raises(StoreError, match="no memory"):
        run(*command)
    assert not data.exists()


def test_export_and_import_move_a_memory(window, tmp_path):
    file = tmp_path / "export.json"
    assert "Exported" in run("export", str(file))
    done = json.loads(run("import", str(file), "--data", str(tmp_path / "second"), "--json"))
    assert (done["turns"], done["tokens"], done["kept_ids"]) == (4, 8, True)
    with SqliteStore(tmp_path / "second" / "memory.sqlite") as store:
        assert len(live_keys(store, window)) == 3
    assert "4 turns were here already" in run("import", str(file), "--data", str(tmp_path / "second"))


def test_ids_are_said_to_be_taken_only_where_something_is(window, tmp_path):
    run("export", str(tmp_path / "export.json"))
    run("export", str(tmp_path / "again.json"))
    for text in ("export", "again"):  # two memories with the same ids
        file = tmp_path / f"{text}.json"
        file.write_text(file.read_text().replace('"id": "', f'"id": "{text}', 1))
    taken = "theirs are taken here"
    second = ["--data", str(tmp_path / "second")]
    assert "ids" not in run("import", str(tmp_path / "export.json"), *second)
    run("clear", "--yes", *second)
    assert "ids" not in run("import", str(tmp_path / "again.json"), *second)
    assert taken in run("import", str(tmp_path / "export.json"), *second)


def test_conversations_of_another_program_come_in_and_go_out_in_other_forms(tmp_path):
    there = ["--data", str(tmp_path / "other")]
    told = run("import", str(CORPUS / "imports" / "sillytavern.jsonl"), *there)
    assert "1 window from SillyTavern." in told
    assert "Not taken: hidden messages: 1." in told
    assert "In the green chest." in run(
        "export", "-", "--format", "markdown", "--window", "Captain Brill", *there
    )
    [conversation] = json.loads(run("export", "-", "--format", "chatgpt", *there))
    assert conversation["title"] == "Captain Brill"


def test_an_export_goes_to_standard_output_too(window):
    assert len(json.loads(run("export", "-"))["turns"]) == 4


def test_a_part_is_exported(window, tmp_path):
    run("export", str(tmp_path / "a.json"), "--first-turn", "3", "--last-turn", "3", "--json")
    assert [turn["turn"] for turn in json.loads((tmp_path / "a.json").read_text())["turns"]] == ["3", "4"]
    run("export", str(tmp_path / "b.json"), "--since", "2030-01-01", "--window", window)
    assert json.loads((tmp_path / "b.json").read_text())["turns"] == []


def test_wrong_words_are_answered_with_a_sentence(window, tmp_path):
    (tmp_path / "there.json").write_text("{}")
    with pytest.raises(BadInput, match="exists already"):
        run("export", str(tmp_path / "there.json"))
    with pytest.raises(BadInput, match="2026-01-31"):
        run("export", str(tmp_path / "a.json"), "--since", "soon")
    with pytest.raises(UnknownWindow):
        run("export", str(tmp_path / "a.json"), "--window", "zz")
    with pytest.raises(ImportRefused):
        run("import", str(tmp_path / "there.json"))
    with pytest.raises(BadInput, match="exists already"):
        run("backup", str(tmp_path / "there.json"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "there.json"]


@pytest.mark.parametrize("command", ["export", "backup"])
def test_a_file_in_a_folder_that_is_not_there_is_refused(window, tmp_path, command):
    with pytest.raises(BadInput, match=r"There is no folder .*missing\. Make it first"):
        run(command, str(tmp_path / "missing" / "file"))
    assert not (tmp_path / "missing").exists()


def test_an_import_counts_the_windows_that_are_seen(window, data, tmp_path):
    with SqliteStore(data / "memory.sqlite") as store:
        for number in range(3):
            store.delete_window(store.create_window(f"{number}", now=NOW).id, now=NOW)
        store.save_note("notes.json", {}, now=NOW)
    run("export", str(tmp_path / "a.json"))
    second = ["--data", str(tmp_path / "second")]
    assert "in 4 turns, 1 window.\n" in run("import", str(tmp_path / "a.json"), *second)
    assert "in 0 turns, 0 windows.\n" in run("import", str(tmp_path / "a.json"), *second)
    assert "0 entries, 1 note" in run("status", *second)
    asked = CliRunner().invoke(app, ["clear", *second], input="n\n").output
    assert "4 turns, 1 window, 0 entries and 1 note from" in asked


def test_a_backup_is_a_memory(window, tmp_path):
    assert json.loads(run("backup", str(tmp_path / "copy.sqlite"), "--json"))["bytes"] > 0
    with SqliteStore(tmp_path / "copy.sqlite") as store:
        assert store.stats().turns == 4
    assert not (tmp_path / "copy.sqlite.partial").exists()


def test_verify_says_what_is_wrong_and_repairs_it(window, data):
    assert "sound" in run("verify")
    with sqlite3.connect(data / "memory.sqlite") as db:
        db.execute("DELETE FROM words WHERE rowid = 1")
    db.close()
    failed = CliRunner().invoke(app, ["verify", "--json"])
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["findings"][0]["check"] == "words"
    assert "Repaired" in run("verify", "--repair")
    assert json.loads(run("verify", "--json")) == {"ok": True, "findings": []}


def no_database(file):
    file.write_bytes(b"garbage" * 5000)


def half_a_file(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def a_lost_table(file):
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE drafts")
    db.close()


@pytest.mark.parametrize("damage", [no_database, half_a_file, a_lost_table])
@pytest.mark.parametrize("repair", [[], ["--repair"]])
def test_verify_tells_a_program_of_a_file_that_cannot_be_read(window, data, damage, repair):
    damage(data / "memory.sqlite")
    failed = CliRunner().invoke(app, ["verify", "--json", *repair])
    assert failed.exit_code == 1
    told = json.loads(failed.stdout)
    assert told["ok"] is False
    (finding,) = told["findings"]
    assert "memory.sqlite" in finding["sentence"]
    assert "halo-weave verify" not in finding["sentence"]
    assert finding["repaired"] is False
    assert finding["sentence"] in CliRunner().invoke(app, ["verify", *repair]).stdout


def test_clear_asks_first(window, data):
    refused = CliRunner().invoke(app, ["clear"], input="n\n")
    assert refused.exit_code == 1
    assert "8 tokens in 4 turns" in refused.output
    assert json.loads(run("status", "--json"))["turns"] == 4
    run("clear", "--yes", "--json")
    assert json.loads(run("status", "--json"))["turns"] == 0
