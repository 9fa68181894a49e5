"""A question about someone is embedded as that one would say it."""

import pytest

from halo_weave.search.hashing_embedder import HashingEmbedder
from halo_weave.search.query_analysis import rephrase_as_speaker
from tests.search.talk import NOW, recalling, talk

NAMES = ["Ada", "Bo", "You"]


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("What did Ada paint for her son?", "Ada: What did I paint for my son?"),
        ("Where is Bo's bicycle?", "Bo: Where is my bicycle?"),
        ("Did Bo meet Ada?", "Bo: Did I meet Ada?"),
        ("Wo wohnt Ada?", "Ada: Wo wohnt I?"),
        ("Where do I work?", "Where do I work?"),
        ("Thank you!", "Thank you!"),
        ("What is an Adagio?", "What is an Adagio?"),
        ("", ""),
    ],
)
def test_a_question_is_turned_to_the_first_who_is_named(question, asked):
    assert rephrase_as_speaker(question, NAMES) == asked


@pytest.mark.parametrize("name", ["(", "a.b", "\\", "İ", " "])
def test_any_name_is_only_a_name(name):
    rephrase_as_speaker(f"Who is {name}?", [name, ""])


def test_the_question_is_embedded_that_way(store, window):
    asked = []

    class Hearing(HashingEmbedder):
        def embed(self, texts, *, query=False):
            asked.extend(texts if query else ())
            return super().embed(texts, query=query)

    talk(store, window)
    with recalling(store, Hearing) as recall:
        recall.search("Where does Grace keep the violin?", now=NOW)
    assert "Grace: Where does I keep the violin?" in asked
