"""What an embedding model wants to read before a question and before a passage.

Declared in `config_sentence_transformers.json` beside the model if its publisher put it there. GGUF has no field
for it, so the families whose model cards ask for prefixes are known here by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DECLARATION = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class Prefixes:
    query: str = ""
    passage: str = ""


SEARCHING = Prefixes(query="Represent this sentence for searching relevant passages: ")
FAMILIES: tuple[tuple[str, Prefixes], ...] = (
    ("nomic-embed", Prefixes("search_query: ", "search_document: ")),
    ("embeddinggemma", Prefixes("task: search result | query: ", "title: none | text: ")),
    (
        "qwen3-embedding",
        Prefixes(
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        ),
    ),
    ("multilingual-e5", Prefixes("query: ", "passage: ")),
    ("e5-", Prefixes("query: ", "passage: ")),
    ("bge-m3", Prefixes()),
    ("bge-", SEARCHING),
    ("mxbai-embed", SEARCHING),
    ("snowflake-arctic-embed", SEARCHING),
)


def prefixes_of(path: Path, name: str) -> Prefixes:
    """As declared beside the file, else by the family that the model's name or the file's name begins with."""
    declaration = path.parent / DECLARATION
    if declaration.is_file():
        try:
            prompts = json.loads(declaration.read_text(encoding="utf-8")).get("prompts") or {}
        except (ValueError, AttributeError):
            prompts = {}
        if prompts:
            passage = prompts.get("document", prompts.get("passage", ""))
            return Prefixes(str(prompts.get("query", "")), str(passage))
    for called in (name, path.stem):
        plain = called.lower().replace(" ", "-").replace("_", "-")
        for family, prefixes in FAMILIES:
            if plain.startswith(family):
                return prefixes
    return Prefixes()
