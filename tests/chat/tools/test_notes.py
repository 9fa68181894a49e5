"""The notes are one JSON document with its metadata, changed whole or not at all."""

import threading
from datetime import timedelta

import pytest

from halo_weave.chat.tools.notes import NAME, Notes
from halo_weave.errors import BadInput
from tests.chat.tools.places import DAY, NOW, PATIENT


@pytest.fixture
def notes(store):
    return Notes(store, PATIENT)


def content(notes, now=NOW):
    document = dict(notes.document(now=now))
    document.pop("_metadata")
    return document


def test_the_first_notes_have_their_structure_and_metadata(notes):
    assert notes.document(now=NOW) == {
        "_metadata": {
            "created": "2026-03-01T12:00:00Z",
            "last_modified": "2026-03-01T12:00:00Z",
            "description": "AI assistant's persistent notes",
        },
        "topics": {},
        "reminders": [],
        "context": {},
        "scratch": {},
    }


def test_reading_changes_nothing(notes, store):
    assert notes.read(".topics", now=NOW).values == ("{}",)
    assert store.note(NAME) is None


@pytest.mark.parametrize(
    ("program", "told", "expected"),
    [
        ('.topics.cat = "Miso"', '.topics.cat = "Miso"', {"topics": {"cat": "Miso", "a b": 1}}),
        ('.reminders += ["call"]', '.reminders[1] = "call"', {"reminders": ["buy", "call"]}),
        ('. + {"new": {"x": 1}}', '.new = {"x":1}', {"new": {"x": 1}}),
        ("del(.scratch)", "deleted .scratch", {"scratch": None}),
        ('.topics["a b"] = 2', '.topics.["a b"] = 2', {"topics": {"a b": 2}}),
        ("del(.reminders[0])", ".reminders = []", {"reminders": []}),
        (".topics = true", ".topics = true", {"topics": True}),
        ('.topics["a b"] = true', '.topics.["a b"] = true', {"topics": {"a b": True}}),
        (".", "nothing changed", {}),
    ],
)
def test_a_write_tells_what_it_changed(notes, program, told, expected):
    notes.replace({"topics": {"a b": 1}, "reminders": ["buy"], "scratch": {}}, now=NOW)
    assert notes.write(program, now=NOW + DAY).changes == told
    for key, value in expected.items():
        assert content(notes).get(key) == value


def test_many_changes_are_counted(notes):
    told = notes.write(". + ([range(20) | {key: tostring, value: .}] | from_entries)", now=NOW).changes
    assert told.count(" = ") == 8
    assert told.endswith("(12 more changes)")


@pytest.mark.parametrize(
    "program", ["._metadata = 7", "._metadata.created = 0", "._metadata.new = 1", ".topics = 2"]
)
def test_a_write_keeps_the_metadata_and_sets_the_time(notes, program):
    notes.write(".topics.a = 1", now=NOW)
    notes.write(program, now=NOW + DAY)
    assert notes.document(now=NOW + 9 * DAY)["_metadata"] == {
        "created": "2026-03-01T12:00:00Z",
        "last_modified": "2026-03-02T12:00:00Z",
        "description": "AI assistant's persistent notes",
    }


@pytest.mark.parametrize(
    "program",
    [
        ".topics",
        ".scratch",
        '{"topics": {}}',
        "del(._metadata)",
        "[]",
        "1",
        '"text"',
        "null",
        "empty",
        "., .",
        "nosuch",
        ".a.b.c",
        "1e1000 as $x | .a = $x",
        "halt",
    ],
)
def test_what_cannot_be_the_notes_changes_nothing(notes, program):
    notes.write('.topics = "kept"', now=NOW)
    before = notes.document(now=NOW)
    with pytest.raises(BadInput):
        notes.write(program if program != ".a.b.c" else ".topics.b.c = 1", now=NOW + DAY)
    assert notes.document(now=NOW + DAY) == before


def test_the_notes_have_a_size_limit(store):
    notes = Notes(store, PATIENT, size_limit=2000)
    notes.write('.scratch.a = "x" * 1000', now=NOW)
    before = notes.document(now=NOW)
    for program in ('.scratch.b = "x" * 1000', '.scratch.b = "é" * 600', '.scratch.b = "x" * 2000000'):
        with pytest.raises(BadInput, match="Nothing was changed"):
            notes.write(program, now=NOW + DAY)
    assert notes.document(now=NOW) == before


def test_deep_notes_are_refused(notes):
    with pytest.raises(BadInput, match="deep"):
        notes.write(".scratch = reduce range(200) as $i (0; [.])", now=NOW)


def test_notes_survive_a_restart(tmp_path):
    from halo_weave.store.sqlite import SqliteStore

    with SqliteStore(tmp_path / "m.sqlite") as store:
        Notes(store).write('.context.name = "Ada"', now=NOW)
    with SqliteStore(tmp_path / "m.sqlite") as store:
        assert Notes(store).read(".context", now=NOW).values == ('{"name":"Ada"}',)


def test_a_write_on_notes_that_others_changed_meanwhile_is_made_again(notes, store):
    """Another writer comes in between reading and writing, in the very same moment."""
    rival = Notes(store, PATIENT)
    rounds = []

    def change(document):
        if not rounds:
            rounds.append(rival.write('.topics.rival = "first"', now=NOW))
        return {**document, "mine": True}

    notes._change(change, NOW)
    assert content(notes)["topics"] == {"rival": "first"}
    assert content(notes)["mine"] is True


def test_writers_at_the_same_time_lose_nothing(notes):
    """All at the same moment, so that the clock cannot tell them apart; fewer than the tries one write has."""
    writers = 4
    failures = []

    def write(i):
        try:
            notes.write(f".topics.w{i} = {i}", now=NOW - timedelta(days=i))
        except BadInput as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert content(notes)["topics"] == {f"w{i}": i for i in range(writers)}
