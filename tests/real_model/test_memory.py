"""The promise, on the real model: what was said long ago returns to its place when it is asked about."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey
from halo_weave.search.llama_embedder import default_embedder_file
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from tests.fuzz import examples
from tests.real_model.weights import chat_model

pytestmark = pytest.mark.model

FACT = "Remember this: my sister Philippa keeps the spare key of the lighthouse behind the brass barometer."
QUESTION = "Where does Philippa keep the spare key of the lighthouse?"
SETTINGS = {
    "max_context_tokens": 420,
    "max_new_tokens": 8,
    "seed": 7,
    "tool_rounds": 0,
    "resurrection_budget": 200,
}
TOPICS = ["soup", "clouds", "chess", "trains", "violins", "sand", "maps", "tea", "kites", "moss"]


def opened(folder: Path) -> Weave:
    return build_weave(Options(data=folder, model=chat_model(), settings=Settings().changed(SETTINGS)))


def tell(weave: Weave, window: str) -> ChunkKey:
    (heard,) = [event for event in weave.turns.steps(window, FACT) if isinstance(event, events.MessageStored)]
    return heard.chunks[0].key


def chatter(weave: Weave, window: str, turns: int) -> None:
    for i in range(turns):
        list(weave.turns.steps(window, f"Let us talk about {TOPICS[i % 10]} for a moment, round {i}."))


def live(weave: Weave, window: str) -> list[ChunkKey]:
    return [one.chunk.key for turn in weave.windows.context(window).turns for one in turn.chunks]


def ask(weave: Weave, window: str, key: ChunkKey) -> None:
    """The question wakes the fact at its place, and the model reads it word for word."""
    if key in live(weave, window):  # the model still looks at it, or other talk woke it
        weave.chunks.prune(window, key)
    assert key not in live(weave, window)
    for event in weave.turns.steps(window, QUESTION):
        if isinstance(event, events.TokenGenerated):  # the model has read its context and begins to answer
            keys = live(weave, window)
            assert key in keys
            records = [weave.runtime.store.chunk(one) for one in keys]
            own = [
                one.chunk.start for one in records if one.window == window
            ]  # quotations stand by their dates
            assert own == sorted(own)
            assert FACT in read_by(weave, window)
            return
    raise AssertionError("The model said nothing.")


def read_by(weave: Weave, window: str) -> str:
    """What the engine holds in the KV cache of a window."""
    held = weave.engine.caches[window].live  # type: ignore[attr-defined]
    return weave.engine.pieces(held.ids).text


def test_a_fact_of_turn_one_returns_after_many_other_turns_also_elsewhere_and_after_a_restart(
    tmp_path: Path,
):
    weave = opened(tmp_path)
    window = weave.windows.create("one").id
    other = weave.windows.create("two").id
    key = tell(weave, window)
    chatter(weave, window, min(examples(12), 40))
    ask(weave, window, key)
    chatter(weave, other, 2)
    ask(weave, other, key)
    weave.close()
    again = opened(tmp_path)
    chatter(again, window, 6)
    ask(again, window, key)
    assert live(again, window)[0] == key  # it was said first
    again.close()


def test_thanks_wakes_nothing_and_what_is_spoken_of_does(tmp_path: Path):
    """Recall is not asked for the best there is, but for what has to do with the user's words."""
    options = Options(tmp_path, engine="scripted", embedder=default_embedder_file())
    with closing(build_weave(options)) as weave:
        weave.windows.change_settings({"max_new_tokens": 8, "memory_tree_in_prompt": False})
        window = weave.windows.create("one").id
        for text in (FACT, "The bus to town leaves at nine.", "I planted tomatoes behind the shed."):
            list(weave.turns.steps(window, text))
        assert isinstance(weave.runtime.memory_search, MemorySearch)
        assert weave.runtime.memory_search.settle(60)
        for key in live(weave, window):
            weave.chunks.prune(window, key)
        for small in ("Thanks!", "ok", "Hmm.", "Tell me more.", "What is the capital of Mongolia?"):
            assert not weave.memory.preview(window, small).plan.chunks, small
        woken = weave.memory.preview(
            window, "Which of my relatives looks after the beacon on the coast?"
        ).plan.keys
        assert [weave.runtime.store.chunk(key).chunk.text for key in woken][:1] == [FACT]
        weave.windows.change_settings({"min_probability": 0})
        assert weave.memory.preview(window, "Hmm.").plan.chunks


def test_nonsense_finds_nothing_and_a_question_in_other_words_does(tmp_path: Path):
    options = Options(tmp_path, engine="scripted", embedder=default_embedder_file())
    with closing(build_weave(options)) as weave:
        weave.windows.change_settings({"max_new_tokens": 8, "memory_tree_in_prompt": False})
        window = weave.windows.create("one").id
        texts = (
            "My cat is called Mochi. She is grey and afraid of thunder.",
            "I work as a nurse in the harbour hospital.",
            "My sister plays the violin in an orchestra.",
            "I am allergic to peanuts.",
        )
        for text in texts:
            list(weave.turns.steps(window, text))
        assert isinstance(weave.runtime.memory_search, MemorySearch)
        assert weave.runtime.memory_search.settle(60)
        for nonsense in ("xqzt wvbn plorf", "asdfghjkl", "blorp the fnord"):
            assert not weave.memory.search(nonsense), nonsense
            assert not weave.memory.preview(window, nonsense).near, nonsense
        for asked, meant in (
            ("pet", texts[0]),
            ("occupation", texts[1]),
            ("instrument of my sibling", texts[2]),
        ):
            assert weave.memory.search(asked)[0].record.chunk.text == meant
