"""The AI's own memory on the command line."""

import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from halo_weave.app import Options, build_weave
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.cli import app
from halo_weave.store.sqlite import SqliteStore
from tests.chat.tools.places import NOW, hit


@pytest.fixture
def halo(tmp_path, monkeypatch):
    monkeypatch.setenv("HALO_WEAVE_EMBEDDER", "off")
    monkeypatch.setenv("HALO_WEAVE_ENGINE", "scripted")

    def run(*arguments, said=None):
        result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path)], input=said)
        run.failure = result.exception
        return result.output

    run.folder = tmp_path
    return run


def test_a_memory_is_saved_shown_and_listed(halo):
    assert "version 1" in halo("memory", "save", "User/Pets/Cat", '{"name": "Miso"}')
    assert "version 2" in halo("memory", "save", "User/Pets/Cat", "plain [bold]text[/bold]")
    assert '"plain [bold]text[/bold]"' in halo("memory", "show", "User/Pets/Cat")
    listed = halo("memory", "list")
    assert all(word in listed for word in ("User", "Pets", "Cat", "version 2"))
    tree = json.loads(halo("memory", "list", "User", "--json"))
    assert tree["children"][0]["children"][0]["path"] == "User/Pets/Cat"


def test_a_heading_that_is_an_entry_itself_is_listed_as_one(halo):
    halo("memory", "save", "User/Pets", "two")
    halo("memory", "save", "User/Pets/Cat", "Miso")
    halo("memory", "save", "User/Pets", "three")
    first, second = halo("memory", "list", "User/Pets").splitlines()
    assert first.startswith("User/Pets  version 2, ")
    assert "Cat  version 1, " in second
    assert halo("memory", "list", "User").splitlines()[0].strip() == "User"


def test_content_comes_from_standard_input(halo):
    halo("memory", "save", "a", "-", said='{"x": [1, 2]}')
    assert json.loads(halo("memory", "show", "a", "--json"))["content"] == {"x": [1, 2]}


def test_a_snapshot_is_shown_with_its_keys_as_text(halo):
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        StructuredMemory(store, search=lambda text, limit, within: [hit(2**60, "long ago")]).save(
            "a", 1, now=NOW
        )
    shown = json.loads(halo("memory", "show", "a", "--json"))
    assert shown["snapshot"][0]["key"] == f"{2**60}.0.user"
    assert "long ago" in halo("memory", "show", "a", "--snapshot")
    assert "long ago" not in halo("memory", "show", "a")


def test_a_chunk_that_an_import_did_not_bring_is_shown_without_a_key(halo):
    chunk = {"key": None, "text": "long ago", "tokens": 2, "similarity": 0.5, "said": None}
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        store.save_entry("a", 1, now=NOW, snapshot=[chunk])
    assert json.loads(halo("memory", "show", "a", "--json"))["snapshot"] == [chunk]
    shown = halo("memory", "show", "a", "--snapshot")
    assert "not in this memory" in shown
    assert "long ago" in shown


def test_what_is_saved_is_kept_with_the_talk_that_explains_it_and_brings_it_back(halo):
    with closing(build_weave(Options(halo.folder, engine="scripted", embedder="off"))) as weave:
        window = weave.windows.create("Sea", settings={"max_new_tokens": 20, "memory_tree_in_prompt": False})
        list(weave.turns.steps(window.id, "The lighthouse key hangs behind the barometer."))
        key = weave.windows.context(window.id).turns[0].chunks[0].chunk.key
        weave.chunks.prune(window.id, key)
    assert "chunks kept with it: 0" in halo("memory", "save", "Bare", "lighthouse", "--context-tokens", "0")
    saved = json.loads(halo("memory", "save", "Keys/Lighthouse", "barometer", "--json"))
    assert "The lighthouse key hangs behind the barometer." in [one["text"] for one in saved["snapshot"]]
    halo("memory", "inject", "Keys/Lighthouse", "--window", "Land")
    assert "no window" in str(halo.failure)
    woken = json.loads(halo("memory", "inject", "Keys/Lighthouse", "--window", "Sea", "--json").strip())
    assert str(key) in woken["resurrected"]
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        assert key in [one.key for one in store.live(window.id)]


def test_looking_does_not_count_as_access(halo):
    halo("memory", "save", "a", "1")
    before = json.loads(halo("memory", "show", "a", "--json"))["accessed"]
    assert json.loads(halo("memory", "show", "a", "--json"))["accessed"] == before


def test_memories_are_found_by_their_words(halo):
    halo("memory", "save", "User/Cat", "Miso is black")
    halo("memory", "save", "User/Work", "Oslo")
    found = json.loads(halo("memory", "find", "black Miso", "--json"))["matches"]
    assert [match["path"] for match in found] == ["User/Cat", "User/Work"]
    assert (
        halo("memory", "find", "Miso", "--under", "User")
        .splitlines()[0]
        .endswith('User/Cat = "Miso is black"')
    )


def test_deleting_asks_before_it_takes_more_than_one(halo):
    for path in ("User", "User/Cat", "UserData"):
        halo("memory", "save", path, "1")
    halo("memory", "delete", "User", "--recursive", said="n\n")
    assert json.loads(halo("memory", "list", "--json"))["children"][0]["children"]
    assert "Deleted 2" in halo("memory", "delete", "User", "--recursive", "--yes")
    assert [child["path"] for child in json.loads(halo("memory", "list", "--json"))["children"]] == [
        "UserData"
    ]
    assert "Deleted 1" in halo("memory", "delete", "UserData")
    assert "empty" in halo("memory", "list")
    halo("memory", "show", "User")
    assert "no memory at User" in str(halo.failure)


def test_history_shows_all_versions(halo):
    halo("memory", "save", "a", "first")
    halo("memory", "save", "a", "second")
    halo("memory", "delete", "a")
    versions = json.loads(halo("memory", "history", "a", "--json"))["versions"]
    assert [(one["version"], one["content"]) for one in versions] == [(2, "second"), (1, "first")]
    assert halo("memory", "history", "a").splitlines()[1].endswith('"first"')


def test_notes_are_read_and_written_with_jq(halo):
    assert halo("notes", '.topics.cat = "Miso"', "--write").strip() == '.topics.cat = "Miso"'
    assert json.loads(halo("notes", ".topics")) == {"cat": "Miso"}
    assert json.loads(halo("notes", ".topics, 1", "--json")) == {"values": [{"cat": "Miso"}, 1]}
    assert "last_modified" in halo("notes")
    halo("notes", "nosuch")
    assert "jq cannot do this" in str(halo.failure)


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("1e1000", "1.7976931348623157e+308"),
        ("(-1e1000)", "-1.7976931348623157e+308"),
        ("infinite", "1.7976931348623157e+308"),
        ('"9" * 5000 | tonumber', "1.7976931348623157e+308"),
        ("nan", "null"),
        ("[1E400, 12345678901234567890, 0.5]", "[1.7976931348623157e+308, 12345678901234567890, 0.5]"),
    ],
)
def test_numbers_that_json_does_not_have_are_shown_as_jq_reckons_them(halo, program, value):
    halo("memory", "save", "a", "1")
    assert halo("notes", program, "--json") == f'{{"values": [{value}]}}\n'
    assert json.loads(halo("notes", program)) == json.loads(value)


def test_reading_makes_no_memory(halo):
    halo("memory", "list")
    assert "no memory" in str(halo.failure)
    halo("notes")
    assert "no memory" in str(halo.failure)
    assert not (halo.folder / "memory.sqlite").exists()


def test_a_window_is_named_by_its_id_or_by_its_name_if_only_one_has_it(halo):
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        first = store.create_window("Dogs", now=NOW)
        store.create_window("Cats", now=NOW)
    assert "Nothing was found." in halo("search", "x", "--window", "Cats")
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        store.create_window("Dogs", now=NOW)
    halo("search", "x", "--window", "Dogs")
    assert "2 windows are called 'Dogs'" in str(halo.failure)
    assert "Nothing" in halo("search", "x", "--window", first.id)


def test_nothing_that_is_shown_steers_the_terminal(halo):
    bad = "a\x1b[31m\x9b31m"
    with SqliteStore(halo.folder / "memory.sqlite") as store:
        store.create_window(bad, now=NOW)
    halo("memory", "save", "x", bad)
    shown = halo("windows") + halo("memory", "show", "x") + halo("memory", "find", "a")
    shown += halo("notes", '.topics = "\\u009b31m" | .topics')
    assert "\x1b[31m" not in shown
    assert "\x9b" not in shown


def test_a_result_nested_too_deeply_is_refused_in_a_sentence(halo):
    halo("memory", "save", "a", "1")
    halo("notes", "reduce range(5000) as $i (0; [.])")
    assert "nested too deeply" in str(halo.failure)


def test_nothing_found_is_said(halo):
    halo("memory", "save", "a", "1")
    halo("memory", "delete", "a")
    assert halo("memory", "find", "x") == "Nothing was found.\n"


def test_every_command_looks_where_the_file_says_the_memory_lies(tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text(f'data = "{tmp_path / "there"}"\n')
    monkeypatch.setenv("HALO_WEAVE_CONFIG", str(file))
    monkeypatch.delenv("HALO_WEAVE_DATA", raising=False)
    SqliteStore(tmp_path / "there" / "memory.sqlite").close()
    told = CliRunner().invoke(app, ["status", "--json"])
    assert json.loads(told.output.strip())["memory"] == str(tmp_path / "there" / "memory.sqlite")
    file.write_text("embedder = 5\n")
    failed = CliRunner().invoke(app, ["search", "x", "--data", str(tmp_path / "there")])
    assert "quotation marks" in str(failed.exception)
