"""In a memory of ten chunks everything is relatively near, and still nothing comes back for nothing."""

import pytest

from halo_weave.chat.recall_plan import search_and_plan_recall
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.search.embedding_worker import reindex
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from tests.real_model.test_embedder import minilm
from tests.search.conftest import folder, store, window  # noqa: F401
from tests.store.material import NOW, answer, ask

pytestmark = pytest.mark.model

SAID = (
    ("My sister Ada plays the violin in Lisbon.", "That must be lovely to hear."),
    ("We adopted a greyhound called Comet.", "Greyhounds sleep a lot, and they love sofas."),
    ("My dentist appointment is on Thursday at nine.", "I hope that it goes well."),
    ("The rent of the flat is 840 euros.", "That is a fair price for the city."),
    ("I am allergic to hazelnuts.", "Then look at the labels of chocolate."),
)


@pytest.fixture
def planned(store, window):  # noqa: F811
    """What is resurrected for a message in another window than the one where all was said."""
    told = []
    for text, reply in SAID:
        ids = ask(store, window, text)
        answer(store, window, ids, reply)
        told.append(ChunkKey(ids.user_turn, 0, Role.USER))
    other = store.create_window("other", now=NOW).id
    embedder = minilm("llama")
    reindex(store, embedder, now=lambda: NOW)
    recall = MemorySearch(store, lambda: embedder, now=lambda: NOW)
    recall.embedder(30)

    def plan(text: str) -> list[int]:
        found = search_and_plan_recall(
            text, 512, Settings(), store=store, search=recall.search, now=NOW, window_id=other
        )
        return [told.index(key) for key in found.plan.keys if key in told] + [
            -1 for key in found.plan.keys if key not in told
        ]

    yield plan
    recall.close()


@pytest.mark.parametrize(
    "text",
    [
        "Tell me a short joke about sailors",
        "xyzzy",
        "Good night",
        "Hello, my name is Ruth and I live in Hull.",
        "thanks!",
        "What is the capital of Mongolia?",
        "How do I reverse a list in Python?",
    ],
)
def test_nonsense_small_talk_and_introductions_resurrect_nothing(planned, text):
    assert planned(text) == []


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("Which instrument does my sister play?", 0),
        ("What is the name of our greyhound?", 1),
        ("When do I have to be at the dentist?", 2),
        ("How much rent do I pay?", 3),
        ("What am I allergic to?", 4),
    ],
)
def test_the_fact_that_is_asked_for_comes_first(planned, text, fact):
    assert planned(text)[:1] == [fact]
