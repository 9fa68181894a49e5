"""The commands search and reindex, as a user or a script would run them."""

import json
import time
from datetime import datetime, timedelta

import pytest
from typer.testing import CliRunner

from halo_weave import app as assembling
from halo_weave.cli import search as commands
from halo_weave.cli.app import app
from halo_weave.errors import BadInput, ModelNotFound, UnknownWindow
from halo_weave.paths import memory_file
from halo_weave.settings import SHARED_KEY
from halo_weave.store.sqlite import SqliteStore
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import talk
from tests.store.material import NOW


class Opened(HashingEmbedder):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A folder with a memory of ten chunks; MiniLM's place is taken by an embedder that needs no file."""
    monkeypatch.setattr(commands, "open_local_embedder", lambda path: Opened(name=str(path or "standard")))
    monkeypatch.setattr(commands.catalogue, "ensure", lambda entry, progress: None)
    with SqliteStore(memory_file(tmp_path)) as store:
        talk(store, store.create_window("first", now=NOW, user_name="Grace", ai_name="Iris").id)
    return tmp_path


def run(*arguments: str):
    result = CliRunner().invoke(app, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def found(memory, *arguments: str) -> dict:
    return json.loads(run("search", *arguments, "--data", str(memory), "--json").stdout)


def test_search_by_words_alone(memory):
    answer = found(memory, "violin", "--embedder", "off")
    assert answer["embedder"] == "off"
    assert answer["hits"][0]["text"] == "My sister Ada plays the violin in Lisbon."
    assert answer["hits"][0]["words"] == ["violin"]


def test_reindex_makes_search_know_the_meaning(memory):
    assert "meaning" not in found(memory, "violin")["hits"][0]["parts"]
    made = json.loads(run("reindex", "--data", str(memory), "--json").stdout)
    assert (made["state"], made["vectors"], made["wanted"]) == ("current", 10, 0)
    answer = found(memory, "violin")
    assert answer["embedder"] == "ready"
    assert answer["hits"][0]["parts"]["meaning"] > 0


def test_another_embedder_is_told_until_it_is_reindexed(memory):
    run("reindex", "--data", str(memory))
    other = memory / "other.gguf"
    other.touch()
    shown = run("search", "violin", "--data", str(memory), "--embedder", str(other))
    assert "Ada plays the violin" in shown.stdout
    assert "halo-weave reindex" in shown.stderr
    run("reindex", "--data", str(memory), "--embedder", str(other))
    assert found(memory, "violin", "--embedder", str(other))["embedder"] == "ready"


def test_a_budget_shows_what_would_wake_up_with_pairs(memory):
    answer = found(memory, "Who plays the violin?", "--budget", "16", "--embedder", "off")
    assert [hit["speaker"] for hit in answer["hits"]] == ["Grace", "Iris"]
    assert answer["cost"] == sum(hit["tokens"] for hit in answer["hits"]) <= 16
    assert found(memory, "violin", "--budget", "0", "--embedder", "off")["hits"] == []


def test_a_budget_heeds_the_stored_settings_and_what_is_near_enough(memory):
    asked = ("Who plays the violin?", "--budget", "20", "--embedder", "off")
    with SqliteStore(memory_file(memory)) as store:
        store.change_settings(SHARED_KEY, {"resurrect_pairs": "with"}, now=NOW)
    both = found(memory, *asked)["hits"]
    with SqliteStore(memory_file(memory)) as store:
        store.change_settings(SHARED_KEY, {"resurrect_pairs": "off"}, now=NOW)
    alone = found(memory, *asked)["hits"]
    assert both[0]["key"] == alone[0]["key"]
    assert "answer" in {hit["part"] for hit in both}
    assert "answer" not in {hit["part"] for hit in alone}
    run("reindex", "--data", str(memory))
    asked = ("Tell me of Grace", "--budget", "500")
    for floor, wakes in ((0, True), (1, False)):
        with SqliteStore(memory_file(memory)) as store:
            store.change_settings(SHARED_KEY, {"min_probability": floor}, now=NOW)
        assert bool(found(memory, *asked)["hits"]) == wakes


def test_what_is_live_in_a_window_does_not_wake_up_there(memory):
    asked = ("Who plays the violin?", "--budget", "16", "--embedder", "off", "--window", "first")
    assert found(memory, *asked)["hits"] == []


def test_nothing_found_is_said(memory):
    assert (
        "Nothing was found." in run("search", "zeppelin", "--data", str(memory), "--embedder", "off").stdout
    )


def test_the_screen_shows_who_said_it_when_and_why(memory):
    shown = run("search", "greyhound", "--data", str(memory), "--embedder", "off").stdout
    assert "Grace" in shown
    assert "2026-03-04" in shown
    assert "(words " in shown


def test_a_hit_names_its_window_also_a_deleted_one(memory):
    def head() -> str:
        return run("search", "greyhound", "--data", str(memory), "--embedder", "off").stdout.splitlines()[0]

    assert "  first  " in head()
    with SqliteStore(memory_file(memory)) as store:
        store.change_window(store.windows()[0].id, now=NOW, name="Dogs [/b]")
        store.delete_window(store.windows()[0].id, now=NOW)
    assert "  Dogs [/b]  " in head()
    assert found(memory, "greyhound", "--embedder", "off")["hits"][0]["window_name"] == "Dogs [/b]"


def test_the_screen_shows_local_time_and_json_the_world_s(memory, monkeypatch):
    said = found(memory, "greyhound", "--embedder", "off")["hits"][0]["said"]
    assert said.endswith("+00:00")
    monkeypatch.setenv("TZ", "EAST-9:30")
    time.tzset()
    try:
        shown = run("search", "greyhound", "--data", str(memory), "--embedder", "off").stdout
    finally:
        monkeypatch.undo()
        time.tzset()
    here = datetime.fromisoformat(said) + timedelta(hours=9, minutes=30)
    assert f"{here:%Y-%m-%d %H:%M}" in shown


def test_an_embedder_that_is_not_there_leaves_the_words(memory, monkeypatch):
    def missing(path):
        raise ModelNotFound("There is no embedder. Try: halo-weave pull")

    monkeypatch.setattr(commands, "open_local_embedder", missing)
    shown = run("search", "violin", "--data", str(memory))
    assert "Ada plays the violin" in shown.stdout
    assert "Try: halo-weave pull. Search goes by words only." in shown.stderr


@pytest.mark.parametrize(
    "command",
    [["serve", "--port", "0"], ["chat"], ["search", "x"], ["memory", "save", "a", "1"], ["reindex"]],
)
@pytest.mark.parametrize("configured", [False, True])
def test_an_embedder_that_was_named_must_be_there(memory, monkeypatch, command, configured):
    missing = str(memory / "nope.gguf")
    if configured:
        monkeypatch.setenv("HALO_WEAVE_EMBEDDER", missing)
    named = [] if configured else ["--embedder", missing]
    with pytest.raises(ModelNotFound, match=r"no embedder at .*nope\.gguf\. Name"):
        run(*command, "--data", str(memory), *named)


def test_a_system_is_not_loaded_with_an_embedder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(assembling, "open_engine", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(ModelNotFound, match="no embedder"):
        assembling.build_weave(
            assembling.Options(tmp_path, engine="scripted", embedder=tmp_path / "nope.gguf")
        )
    assert not list(tmp_path.iterdir())


def test_an_unknown_window_is_refused(memory):
    with pytest.raises(UnknownWindow):
        run("search", "violin", "--data", str(memory), "--window", "nowhere", "--embedder", "off")


def test_reindex_without_an_embedder_is_refused(memory):
    with pytest.raises(BadInput):
        run("reindex", "--data", str(memory), "--embedder", "off")


def test_a_search_is_narrowed_to_windows_with_a_tag(memory):
    with SqliteStore(memory_file(memory)) as store:
        second = store.create_window("second", now=NOW, tags=["music"]).id
        talk(store, second)
    assert len({hit["window"] for hit in found(memory, "violin", "--limit", "50")["hits"]}) == 2
    for more in ((), ("--budget", "500")):
        hits = found(memory, "Who plays the violin?", "--tag", "music", *more)["hits"]
        assert {hit["window"] for hit in hits} == {second}
    assert found(memory, "violin", "--tag", "none")["hits"] == []


def test_the_embedder_that_reindex_is_given_serves_from_then_on(memory, tmp_path, monkeypatch):
    file = tmp_path / "other.gguf"
    file.write_bytes(b"GGUF")
    run("reindex", "--data", str(memory), "--embedder", str(file))
    answer = found(memory, "violin")
    assert answer["embedder"] == "ready"
    assert "meaning" in answer["hits"][0]["parts"]


def test_what_has_nothing_to_do_with_the_text_is_not_found(memory):
    run("reindex", "--data", str(memory))
    assert found(memory, "violin")["hits"]
    for nonsense in ("qkwxzzv", "xvzvvqq"):
        assert found(memory, nonsense)["hits"] == [], nonsense


def test_a_search_heeds_the_stored_settings(memory):
    with SqliteStore(memory_file(memory)) as store:
        store.change_settings(SHARED_KEY, {"user_weight": 9.0}, now=NOW)
    hits = found(memory, "violin greyhound rent", "--embedder", "off")["hits"]
    assert {hit["parts"]["user"] for hit in hits if "user" in hit["parts"]} == {2.1972}
