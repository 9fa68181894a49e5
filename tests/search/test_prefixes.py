"""What a model wants before a question and a passage."""

import json
from pathlib import Path

import pytest

from halo_weave.search.llama_embedder import DECLARATION, Prefixes, prefixes_of


def test_what_is_declared_beside_the_model_is_respected(tmp_path: Path):
    (tmp_path / DECLARATION).write_text(json.dumps({"prompts": {"query": "Q: ", "document": "P: "}}))
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
    (tmp_path / DECLARATION).write_text(text)
    assert prefixes_of(tmp_path / "x.gguf", "x") == Prefixes()
