"""What is embedded of a chunk, and the prefixes that a model wants."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.search.embedding_worker import MAX_PASSAGES, passages
from halo_weave.search.llama_embedder import PREFIX_FILE, Prefixes, prefixes_of


def test_every_passage_tells_who_said_it():
    text = "I went to the market with my brother and we bought far too many lemons. Then it rained for the whole rest of the day."
    assert passages(text, "Ada") == [
        "Ada: I went to the market with my brother and we bought far too many lemons.",
        "Ada: Then it rained for the whole rest of the day.",
    ]


def test_short_sentences_stay_together():
    assert passages("Yes. No. Maybe! Who knows?", "Ada") == ["Ada: Yes. No. Maybe! Who knows?"]


@settings(deadline=None)
@given(st.text())
def test_nothing_but_white_space_is_lost(text):
    said = " ".join(part.removeprefix("Ada:") for part in passages(text, "Ada"))
    assert "".join(said.split()) == "".join(text.split())


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab .\n", min_size=1, max_size=40), max_size=200))
def test_a_long_chunk_has_a_bounded_number_of_passages(parts):
    assert 1 <= len(passages(" ".join(parts), "")) <= MAX_PASSAGES + 1


def test_what_is_declared_beside_the_model_is_respected(tmp_path: Path):
    (tmp_path / PREFIX_FILE).write_text(json.dumps({"prompts": {"query": "Q: ", "document": "P: "}}))
    assert prefixes_of(tmp_path / "e5-small.gguf", "e5-small") == Prefixes("Q: ", "P: ")


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [
        ("all-MiniLM-L6-v2", Prefixes()),
        ("nomic-embed-text-v1.5", Prefixes("search_query: ", "search_document: ")),
        ("Multilingual E5 Small", Prefixes("query: ", "passage: ")),
        ("bge-m3", Prefixes()),
    ],
)
def test_known_families_get_theirs(tmp_path: Path, name, prefixes):
    assert prefixes_of(tmp_path / "model.gguf", name) == prefixes


def test_the_file_name_tells_when_the_model_does_not(tmp_path: Path):
    assert prefixes_of(tmp_path / "bge-small-en-v1.5-q8_0.gguf", "model").query.startswith("Represent")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"prompts": null}'])
def test_a_declaration_that_says_nothing_changes_nothing(tmp_path: Path, text):
    (tmp_path / PREFIX_FILE).write_text(text)
    assert prefixes_of(tmp_path / "x.gguf", "x") == Prefixes()
