"""Files that no store takes in: what is no export, and an export with a fault anywhere."""

import json

import pytest

from halo_weave.errors import ImportRefused
from tests.store.material import NOW, exported


@pytest.fixture
def copy(memory):
    return memory("copy")


@pytest.mark.parametrize("text", [
    "", "   ", "[]", "null", "7", '"text"', "{", '{"format"', '{"format": "halo-weave memory"}', "not json",
    '{"a": 1} more', '{"tokens": [{"token_id": 1}', "{1: 2}", '{"a" 1}', '{"a": [1,, 2]}', '{"a": NaN}',
    '{"a": ' + "[" * 100_000, "\x00", '{"format": "halo-weave memory", "version": 1, "memory": []}',
    '{"format": "halo-weave memory", "version": 1, "memory": {"id": "x", "next_turn": "-1", "next_position": "0"}}',
])  # fmt: skip
def test_what_is_no_export_is_refused(copy, text, load):
    with pytest.raises(ImportRefused):
        load(copy, text)
    assert copy.stats().turns == 0


def test_bytes_that_are_no_text_are_refused(copy, tmp_path):
    (tmp_path / "in.json").write_bytes(b'{"format": "\xff\xfe')
    with pytest.raises(ImportRefused, match="UTF-8"):
        copy.import_file(tmp_path / "in.json", now=NOW)
    with pytest.raises(ImportRefused, match="folder"):
        copy.import_file(tmp_path, now=NOW)
    with pytest.raises(ImportRefused, match="cannot be read"):
        copy.import_file(tmp_path / "nowhere.json", now=NOW)


def test_a_newer_version_of_the_format_is_refused(rich, copy, load):
    with pytest.raises(ImportRefused, match="version 2"):
        load(copy, exported(rich).replace('"version": 1', '"version": 2', 1))


DEEP = json.loads("[" * 200 + "]" * 200)
KEPT = {"key": "1.0.user", "text": "x", "tokens": 2, "similarity": 0.5, "said": None}


def change(path: list, value):
    def apply(found: dict) -> None:
        for step in path[:-1]:
            found = found[step]
        if value is ...:
            del found[path[-1]]
        else:
            found[path[-1]] = value

    return apply


def another_window(window_id: str):
    return lambda found: found["windows"].append({**found["windows"][0], "id": window_id})


@pytest.mark.slow
@pytest.mark.parametrize("damage", [
    change(["turns", 0, "turn"], "x"),
    change(["turns", 0, "turn"], True),
    change(["turns", 0, "turn"], 1.0),
    change(["turns", 0, "turn"], "9" * 5000),
    change(["turns", 0, "chunks", 0, "ids"], [1.5, 2]),
    change(["turns", 0, "chunks", 0, "ids"], [True, False]),
    change(["history", 0, "detail"], {"similarity": float("1e999")}),
    change(["turns", 0, "turn"], "99999999999999999999"),
    change(["turns", 1, "turn"], "1"),
    change(["turns", 0, "role"], "robot"),
    change(["turns", 0, "said"], "yesterday"),
    change(["turns", 0, "said"], "2026-01-01T00:00:00"),
    change(["turns", 0, "said"], "0001-01-01T00:00:00+14:00"),
    change(["turns", 0, "said"], "9999-12-31T23:59:59+00:00"),
    change(["memory", "next_turn"], str(2**63 - 1)),
    change(["memory", "next_position"], str(2**63 - 1)),
    change(["turns", 0, "chunks"], []),
    change(["turns", 0, "window"], "nowhere"),
    change(["turns", 0, "speaker"], "\ud83d"),
    change(["turns", 1, "answers"], "2"),
    change(["turns", 0, "chunks", 0, "ends"], [3, 2]),
    change(["turns", 0, "chunks", 0, "ids"], ["a", "b"]),
    change(["turns", 0, "chunks", 0, "ids"], [1]),
    change(["turns", 0, "chunks", 0, "ids"], [2**40, 1]),
    change(["turns", 0, "chunks", 0, "text"], "another text"),
    change(["turns", 0, "chunks", 0, "text"], ...),
    change(["turns", 0, "chunks", 0, "start"], "9999999"),
    change(["turns", 1, "chunks", 1, "start"], "0"),
    change(["turns", 1, "chunks", 0, "merged_into"], 0),
    change(["turns", 2, "chunks", 0, "bytes"], "%%%"),
    change(["turns", 0], "not an object"),
    change(["windows", 0, "settings"], []),
    change(["windows", 0, "created"], ...),
    another_window("a b/../c"),
    another_window(""),
    another_window("line\n"),
    change(["windows", 0, "settings"], {"later": DEEP}),
    change(["windows", 0, "settings"], {"later": "\ud83d"}),
    change(["live", 0, "brightness"], "AAAA"),
    change(["live", 0, "brightness"], "AADAfw=="),
    change(["live", 0, "pinned"], 1),
    change(["live", 0, "traces"], "AAAAAA=="),
    change(["live", 0, "traces"], ""),
    change(["asleep", 0, "reason"], None),
    change(["history", 0, "happened"], 7),
    change(["entries", 0, "versions", 0, "vectors"], "AAAAAAAA"),
    change(["entries", 0, "versions", 0, "vectors"], "AADAfw=="),
    change(["entries", 0, "path"], "/".join("a" * 2000)),
    change(["entries", 0, "path"], ""),
    change(["entries", 0, "path"], "A/B/"),
    change(["entries", 0, "path"], "A/../B"),
    change(["entries", 0, "versions"], []),
    change(["entries", 0, "versions", 1, "version"], 1),
    change(["entries", 0, "versions", 0, "version"], 3),
    change(["entries", 0, "versions", 0, "version"], 2**63 - 1),
    change(["entries", 0, "versions", 0, "ended"], None),
    change(["entries", 0, "versions", 0, "content"], DEEP),
    change(["entries", 0, "versions", 1, "snapshot"], {}),
    change(["entries", 0, "versions", 1, "snapshot"], [5]),
    change(["entries", 0, "versions", 1, "snapshot"], [{"text": 5}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{"key": "zzz"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "key": f"{'9' * 5000}.0.user"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "text": None}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "tokens": "2"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "similarity": "near"}]),
    change(["entries", 0, "versions", 1, "snapshot"], [{**KEPT, "said": 7}]),
    change(["notes", 0, "name"], 7),
    change(["notes", 0, "content"], [1]),
    change(["notes", 0, "content"], {"topics": DEEP}),
    change(["notes", 0, "content"], {"_metadata": [1]}),
    change(["settings", 0, "value"], ...),
    change(["settings", 0], {"key": "windows", "value": 5, "modified": "2026-01-31T12:00:00+00:00"}),
    change(["vectors", 0, "vector"], "AADAfw=="),
    change(["generations", 0, "dimension"], 0),
    change(["surprises"], [1]),
    change(["windows", 0, "name"], "x" * 201),
    change(["windows", 0, "name"], " "),
    change(["windows", 0, "user_name"], "\0"),
    change(["windows", 0, "system_prompt"], "x" * 100_001),
    change(["turns", 0, "speaker"], "x" * 201),
    change(["turns", 0, "chunks", 0, "tokenizer"], "x" * 201),
    change(["turns", 0, "chunks", 0], {"chunk": 0, "start": "0", "text": "", "ids": [7], "ends": [0], "tokenizer": "words"}),
    change(["turns", 1, "chunks", 1, "start"], str(2**40)),
    change(["live", 0, "woken"], {"similarity": "near"}),
    change(["live", 0, "woken"], {"words": "cat"}),
    change(["live", 0, "woken"], {"parts": {"words": "many"}}),
    change(["asleep", 0, "reason"], {"why": "deleted", "woken": {"similarity": []}}),
    change(["asleep", 0, "reason"], {"brightness": "bright"}),
    change(["history", 0, "detail"], {"rivals": 10**400}),
    change(["notes", 0, "content"], {"number": 2**63}),
    change(["notes", 0, "name"], "x" * 201),
    change(["generations", 0, "dimension"], 2**40),
])  # fmt: skip
def test_a_file_with_a_fault_anywhere_is_refused_as_a_whole(rich, copy, damage, load, content):
    found = json.loads(exported(rich, vectors=True))
    for section in ("asleep", "live"):  # the first ones belong to chunks of two tokens
        assert found[section]
    damage(found)
    empty = content(exported(copy))
    with pytest.raises(ImportRefused, match=r"Nothing was changed|not imported"):
        load(copy, json.dumps(found))
    assert content(exported(copy)) == empty


@pytest.mark.parametrize(
    "kept", [[KEPT], [{**KEPT, "said": "2026-01-31T12:00:00+00:00"}, {"own": "A B"}], [{"later": 1}]]
)
def test_a_sound_snapshot_passes(rich, copy, kept, load):
    found = json.loads(exported(rich))
    found["entries"][0]["versions"][1]["snapshot"] = kept
    load(copy, json.dumps(found))
    assert list(copy.entry("A/B").snapshot) == kept


def test_settings_of_a_newer_version_pass(rich, copy, load):
    found = json.loads(exported(rich))
    newer = {"top_k": 7, "a_later_one": {"any": ["thing"]}, "temperature": 99}
    found["windows"][0]["settings"] = newer
    found["settings"][0]["value"] = newer
    load(copy, json.dumps(found))
    assert copy.window(found["windows"][0]["id"]).settings == newer
    assert copy.settings()["windows"] == newer


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity", "9" * 5000, "[" * 5000 + "]" * 5000])
def test_numbers_and_nesting_that_cannot_be_kept_are_refused(rich, copy, load, number):
    text = exported(rich)
    assert '"rivals": 3' in text
    with pytest.raises(ImportRefused, match="Nothing was changed"):
        load(copy, text.replace('"rivals": 3', f'"rivals": {number}'))
    assert copy.stats().turns == 0


def test_a_file_that_breaks_off_is_refused_as_a_whole(rich, copy, load):
    text = exported(rich)
    for part in (0.3, 0.6, 0.999):
        with pytest.raises(ImportRefused):
            load(copy, text[: int(len(text) * part)])
    assert copy.stats().turns == 0
