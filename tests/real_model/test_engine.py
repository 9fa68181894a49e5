"""llama.cpp with the default model: attention, surgery on the KV cache, memory."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capabilities, Capture, Sampling, Step
from halo_weave.engines.llama import attention_capture as seeing
from halo_weave.engines.llama import engine as llama
from halo_weave.engines.llama.attention_capture import AttentionCapture
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.engines.llama.kv_cache import KvCache
from halo_weave.engines.llama.sampler import Sampler
from halo_weave.errors import BadInput, EngineError
from tests.contract.talks import Heard, Talk

pytestmark = pytest.mark.model

THREE = Sampling(temperature=0.0, max_new_tokens=3)
SAID = [
    "Marta moved to Lisbon in the spring and found a small flat near the river.",
    "She works in a bakery that opens at five, and her brother visits on Sundays.",
    "In the evenings she paints boats, mostly blue ones, and sells a few of them.",
    "Last week a gallery asked her for twelve paintings until the end of June.",
    "Her cat is called Pixel and knocks over every glass of water on the table.",
]


def long_talk(engine: LlamaEngine, window: str, said: list[str] = SAID) -> Talk:
    talk = Talk(engine, window)
    for number, text in enumerate(said):
        talk.add(Role.USER if number % 2 == 0 else Role.ASSISTANT, text)
    talk.add(Role.USER, "What does Marta paint?")
    return talk


def cache_of(engine: LlamaEngine, window: str) -> KvCache:
    return engine.caches[window]


def test_the_default_model_is_described_as_its_file_says(engine: LlamaEngine) -> None:
    info = engine.info
    assert (info.architecture, info.layers, info.heads, info.kv_heads) == ("llama", 30, 9, 3)
    assert (info.vocabulary, info.trained_context, info.context) == (49152, 8192, 8192)
    assert (info.abilities, info.template) == (Capabilities(prefetch=True), "model")
    assert engine.config.cell_bytes == 23_040


def test_nothing_is_written_to_the_terminal(model_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LlamaEngine(model_file, limits=EngineLimits(context=256)) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "Hello")
        talk.hear(THREE)
    assert capfd.readouterr() == ("", "")


def test_characters_across_tokens_stream_as_bytes(engine: LlamaEngine) -> None:
    tokens = engine.tokenize("日本語 🎉")
    assert len(tokens) > len("日本語 🎉")
    assert any("\ufffd" in piece.decode(errors="replace") for piece in tokens.pieces())
    assert tokens.text == "日本語 🎉"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.4, top_p=1.0),
        Sampling(temperature=1.0, top_k=40, top_p=0.95, min_p=0.05),
        Sampling(temperature=3.0, top_p=0.99),
    ],
    ids=["default", "hot", "all", "hottest"],
)
def test_the_same_seed_chooses_what_llama_cpp_chooses_from_the_whole_vocabulary(
    engine: LlamaEngine, window: str, sampling: Sampling
) -> None:
    long_talk(engine, window).hear(THREE)
    context = engine.caches[window].context
    before = np.zeros(0, np.int32)
    chosen = []
    for seed in range(60):
        seeded = dataclasses.replace(sampling, seed=seed)
        with (
            Sampler(engine.model, seeded, before) as ours,
            Sampler(engine.model, seeded, before) as theirs,
        ):
            chosen.append(
                (ours.sample(context), int(theirs.c.llama_sampler_sample(theirs.chain, context, -1)))
            )
    assert len({one for one, _ in chosen}) > 3
    # A difference in the last digit of a sum may move the boundary between two tokens.
    assert sum(one != other for one, other in chosen) <= 1


# Attention


@pytest.fixture(scope="module")
def eyes(model_file: Path) -> Iterator[tuple[LlamaEngine, LlamaEngine]]:
    """Two engines: one with the callback in C, one with it in Python."""
    if not seeing.has_c_callback():
        if os.environ.get("CI") == "true":
            pytest.fail("the attention callback in C was not built")
        pytest.skip("the attention callback in C was not built: no compiler when halo-weave was installed")
    limits = EngineLimits(context=1024, threads=1)
    with (
        LlamaEngine(model_file, limits=limits, in_c=True) as in_c,
        LlamaEngine(model_file, limits=limits, in_c=False) as in_python,
    ):
        yield in_c, in_python


@pytest.mark.parametrize(
    "capture",
    [
        Capture(reading=True, reading_surprisal=True),
        Capture(combine="max", raw=True),
        Capture(layers=(3, 20), heads=(0, 8), raw=True),
        Capture(pairs=((20, 8), (3, 0), (20, 1)), raw=True, reading=True),
        Capture(raw=True, raw_pairs=((20, 8), (3, 0))),
    ],
    ids=["mean", "max", "chosen", "pairs", "few of all"],
)
def test_the_callback_in_c_and_in_python_give_the_same_numbers(
    eyes: tuple[LlamaEngine, LlamaEngine], capture: Capture
) -> None:
    heard: list[Heard] = []
    for engine in eyes:
        talk = long_talk(engine, str(capture))
        heard.append(talk.hear(THREE, capture, read_from=talk.turns[-1][1]))
    one, other = heard
    assert one.read is not None
    assert other.read is not None
    assert one.text == other.text
    pairs = list(zip(one.read.rows, other.read.rows, strict=True))
    assert len(pairs) == (0 if not capture.reading else len(pairs))
    pairs += [(a.row, b.row) for a, b in zip(one.steps, other.steps, strict=True)]
    for mine, theirs in pairs:
        assert mine is not None
        assert theirs is not None
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
        assert (mine.frames, mine.system, mine.first) == (theirs.frames, theirs.system, theirs.first)
        if capture.raw:
            np.testing.assert_array_equal(mine.raw, theirs.raw)


def test_the_folded_row_is_the_mean_or_the_maximum_of_the_raw_ones(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window)
    for capture in (
        Capture(raw=True),
        Capture(raw=True, combine="max"),
        Capture(raw=True, layers=(7,), heads=(2, 4)),
    ):
        row = talk.hear(dataclasses.replace(THREE, max_new_tokens=1), capture).steps[0].row
        assert row is not None
        assert row.raw is not None
        folded = row.raw.max(axis=0) if capture.combine == "max" else row.raw.mean(axis=0)
        share = 1 - row.frames - row.system
        np.testing.assert_allclose(row.tokens, folded / folded.sum() * share, atol=1e-5)


PAIRS = ((20, 8), (3, 0), (20, 1), (29, 4))


def test_rows_of_few_pairs_come_beside_the_mean_of_all(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window)
    one = dataclasses.replace(THREE, max_new_tokens=1)
    whole, few = (talk.hear(one, Capture(raw=True, raw_pairs=pairs)).steps[0].row for pairs in (None, PAIRS))
    assert whole is not None
    assert few is not None
    assert whole.raw is not None
    np.testing.assert_allclose(few.tokens, whole.tokens, atol=1e-6)
    np.testing.assert_allclose(few.raw, whole.raw[[layer * 9 + head for layer, head in PAIRS]], atol=1e-6)


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_chosen_pairs_are_those_of_the_full_capture_in_the_order_asked_for(
    engine: LlamaEngine, window: str, combine: Literal["mean", "max"]
) -> None:
    talk = long_talk(engine, window)
    whole, chosen = (
        talk.hear(
            THREE,
            Capture(pairs=pairs, combine=combine, reading=True, raw=True),
            read_from=talk.turns[-1][1],
        )
        for pairs in (None, PAIRS)
    )
    assert whole.read is not None
    assert chosen.read is not None
    everything = [*whole.read.rows, *(step.row for step in whole.steps)]
    few = [*chosen.read.rows, *(step.row for step in chosen.steps)]
    assert len(few) == len(talk.turns[-1][2]) + 3
    for all_pairs, row in zip(everything, few, strict=True):
        assert all_pairs is not None
        assert row is not None
        assert all_pairs.raw is not None
        assert row.raw is not None
        assert all_pairs.raw.shape == (30 * 9, len(row.tokens))
        assert row.raw.shape == (len(PAIRS), len(row.tokens))
        same = all_pairs.raw[[layer * 9 + head for layer, head in PAIRS]]
        np.testing.assert_allclose(row.raw, same, atol=1e-6)
        folded = same.max(axis=0) if combine == "max" else same.mean(axis=0)
        share = 1 - row.frames - row.system
        np.testing.assert_allclose(row.tokens, folded / folded.sum() * share, atol=1e-5)


def test_only_the_layers_and_heads_that_were_chosen_are_read(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: list[int] = []
    folds: list[int] = []
    read_layer, close = AttentionCapture._read_layer, AttentionCapture.close

    def note_layer(self: AttentionCapture, tensor: int, layer: int) -> None:
        layers.append(layer)
        read_layer(self, tensor, layer)

    def note_folds(self: AttentionCapture) -> Any:
        folds.append(self.state.folds)
        return close(self)

    monkeypatch.setattr(AttentionCapture, "_read_layer", note_layer)
    monkeypatch.setattr(AttentionCapture, "close", note_folds)
    with LlamaEngine(model_file, limits=EngineLimits(context=512), in_c=False) as engine:
        heard = long_talk(engine, "w").hear(THREE, Capture(pairs=PAIRS))
    assert all(step.row is not None for step in heard.steps)
    assert layers == [3, 20, 29] * 3
    assert [count for count in folds if count] == [len(PAIRS)] * 3


def test_a_window_that_never_looks_needs_no_callback_in_python(model_file: Path) -> None:
    with LlamaEngine(model_file, limits=EngineLimits(context=512), in_c=False) as engine:
        talk = long_talk(engine, "w")
        expected = talk.hear(THREE).text
        assert cache_of(engine, "w").attention_capture is None
        heard = talk.hear(THREE, Capture())
        assert cache_of(engine, "w").attention_capture is not None
        assert heard.read is not None
        assert heard.read.reused > 0
        assert heard.text == expected
        assert all(step.row is not None for step in heard.steps)


def test_what_is_said_again_looks_at_where_it_was_said_before(engine: LlamaEngine, window: str) -> None:
    talk = Talk(engine, window)
    first = talk.add(Role.USER, SAID[2])
    between = talk.add(Role.ASSISTANT, SAID[4])
    talk.add(Role.USER, SAID[2])
    read = talk.hear(THREE, Capture(reading=True), read_from=talk.turns[-1][1]).read
    assert read is not None
    told = slice(0, len(talk.turns[first][2]))
    other = slice(told.stop, told.stop + len(talk.turns[between][2]))
    shares = [(row.tokens[told].sum(), row.tokens[other].sum()) for row in read.rows[3:]]
    assert sum(same for same, _ in shares) > 1.5 * sum(different for _, different in shares)


# Surgery


def reading_loss(talk: Talk) -> np.ndarray:
    """Surprisal of the last turn while it is read: how well the model knows what stands before it."""
    read = talk.hear(THREE, Capture(reading_surprisal=True, reply=False), read_from=talk.turns[-1][1]).read
    assert read is not None
    assert read.surprisal is not None
    return read.surprisal


def test_cells_that_return_are_as_if_they_had_never_left(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window)
    untouched = reading_loss(talk)
    talk.asleep = {1, 2}
    without = reading_loss(talk)
    talk.asleep = set()
    restored = reading_loss(talk)
    np.testing.assert_allclose(restored, untouched, atol=2e-3)
    assert np.abs(without - untouched).max() > 0.1


def test_a_computed_chunk_brings_its_knowledge_back(engine: LlamaEngine, window: str) -> None:
    talk = Talk(engine, window)
    talk.add(Role.USER, SAID[0])
    secret = talk.add(Role.ASSISTANT, "The password of the harbour is wandering heron forty two.")
    talk.add(Role.USER, SAID[1])
    talk.add(Role.ASSISTANT, "The password of the harbour is wandering heron forty two.")
    fresh = reading_loss(talk)[6:].sum()
    other = Talk(engine, f"{window} other")
    other.turns, other.next = list(talk.turns), talk.next
    other.asleep = {secret}
    without = reading_loss(other)[6:].sum()
    other.asleep = set()
    computed = reading_loss(other)[6:].sum()
    assert cache_of(engine, f"{window} other").count
    engine.forget(f"{window} other")
    assert without > fresh + 5
    assert computed < fresh + 1


def test_many_rounds_of_prune_resurrect_and_generate_keep_the_map(engine: LlamaEngine, window: str) -> None:
    rng = np.random.default_rng(3)
    talk = long_talk(engine, window)
    before = engine.mapping_errors
    for number in range(15):
        turns = np.arange(len(talk.turns) - 1)
        talk.asleep = set(
            rng.choice(turns, size=rng.integers(0, len(turns) // 2 + 1), replace=False).tolist()
        )
        heard = talk.answer(dataclasses.replace(THREE, max_new_tokens=int(rng.integers(1, 9))), Capture())
        assert heard.read is not None
        assert not heard.read.rebuilt
        for step in heard.steps:
            assert step.row is not None
            assert step.row.fault(len(step.row.tokens)) is None
        cache = cache_of(engine, window)
        live = cache.columns[: cache.count]
        assert len(np.unique(live)) == cache.count
        assert set(live.tolist()) == set(np.flatnonzero(cache.cells.taken).tolist())
        talk.add(Role.USER, SAID[number % len(SAID)])
    assert engine.mapping_errors == before


def test_a_map_that_does_not_fit_is_noticed_and_the_window_read_anew(
    engine: LlamaEngine, window: str
) -> None:
    talk = long_talk(engine, window)
    expected = talk.hear(THREE, Capture()).text
    before = engine.mapping_errors
    cache = cache_of(engine, window)
    cache.columns[4] = len(cache.cells) - 1
    heard = talk.hear(THREE, Capture())
    assert heard.read is not None
    assert "did not match" in heard.read.rebuilt
    assert heard.read.reused == 0
    assert engine.mapping_errors == before + 1
    assert heard.text == expected
    assert all(step.row is not None and step.row.fault(len(step.row.tokens)) is None for step in heard.steps)


@pytest.fixture
def tight(model_file: Path) -> Iterator[LlamaEngine]:
    """An engine that believes its model was trained for 300 positions."""
    with LlamaEngine(model_file, limits=EngineLimits(context=280)) as engine:
        engine.config = dataclasses.replace(engine.config, trained_context=300)
        yield engine


def test_holes_are_closed_when_positions_run_out_and_the_conversation_goes_on(tight: LlamaEngine) -> None:
    talk = Talk(tight, "w", system="Hi")
    shifted = 0
    for number in range(16):
        talk.add(Role.USER, SAID[number % len(SAID)])
        talk.asleep = set(range(1, len(talk.turns) - 4))
        heard = talk.answer(dataclasses.replace(THREE, max_new_tokens=8), Capture())
        assert heard.read is not None
        assert heard.read.rebuilt == ""
        shifted += heard.read.shifted
        for step in heard.steps:
            assert step.row is not None
            assert step.row.fault(len(step.row.tokens)) is None
        assert tight.caches["w"].places[: tight.caches["w"].count].max() < 300
    assert talk.next > 300
    assert shifted >= 1


def test_a_shift_in_the_middle_of_a_reply_changes_little(tight: LlamaEngine) -> None:
    talk = long_talk(tight, "w", SAID[:4])
    talk.hear(THREE)
    talk.asleep = {1}
    straight = talk.hear(dataclasses.replace(THREE, max_new_tokens=6)).text
    cache = tight.caches["w"]
    limit = int(cache.places[: cache.count].max()) - 1
    talk.hear(dataclasses.replace(THREE, max_new_tokens=1))
    tight.config = dataclasses.replace(tight.config, trained_context=limit)
    cache.config = tight.config
    heard = talk.hear(dataclasses.replace(THREE, max_new_tokens=6))
    assert heard.read is not None
    assert heard.read.shifted
    assert heard.text[:4] == straight[:4]


def test_a_chunk_returns_even_after_the_holes_were_closed(tight: LlamaEngine) -> None:
    talk = long_talk(tight, "w", SAID[:4])
    untouched = reading_loss(talk)
    talk.asleep = {1}
    roomy, cache = tight.config, tight.caches["w"]
    tight.config = dataclasses.replace(roomy, trained_context=int(cache.places[: cache.count].max()) - 1)
    closed = talk.hear(THREE).read
    assert closed is not None
    assert closed.shifted
    tight.config = roomy
    talk.asleep = set()
    read = talk.hear(THREE, Capture()).read
    assert read is not None
    assert read.restored > 0
    np.testing.assert_allclose(reading_loss(talk), untouched, atol=0.6)


def test_a_growing_window_moves_into_a_larger_context(
    engine: LlamaEngine, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "CONTEXT_GROWTH", 256)
    talk = long_talk(engine, window)
    talk.hear(THREE, Capture())
    small = len(cache_of(engine, window).cells)
    talk.asleep = {1, 3}
    talk.hear(THREE, Capture())
    talk.asleep = {3}
    heard = talk.hear(dataclasses.replace(THREE, max_new_tokens=400), Capture(), stopped=stop_after(4))
    assert len(cache_of(engine, window).cells) > small
    assert heard.read is not None
    assert heard.read.restored > 0
    assert heard.read.reused > 0
    assert not heard.read.rebuilt
    assert all(step.row is not None for step in heard.steps)


def stop_after(tokens: int):  # type: ignore[no-untyped-def]
    asked = iter(range(tokens))
    return lambda: next(asked, None) is None


# Memory and threads


def test_the_least_recently_used_window_is_dropped_when_memory_is_short(model_file: Path) -> None:
    two = 2 * (768 * 23_040 + 2 * 64 * 4 * 49_152)  # cells of two windows, and two buffers of logits for each
    with LlamaEngine(model_file, limits=EngineLimits(context=512, memory_bytes=two)) as engine:
        talks = [long_talk(engine, name, [f"{name} speaks.", *SAID[1:]]) for name in "abc"]
        texts = [talk.hear(THREE).text for talk in talks]
        assert list(engine.caches) == ["b", "c"]
        again = talks[0].hear(THREE)
        assert again.read is not None
        assert again.read.reused == 0
        assert again.text == texts[0]
        assert list(engine.caches) == ["c", "a"]


def test_what_sleeps_is_bounded_oldest_out_first(model_file: Path) -> None:
    with LlamaEngine(model_file, limits=EngineLimits(context=512, graveyard_bytes=60 * 23_040)) as engine:
        talk = long_talk(engine, "w")
        talk.hear(THREE)
        for asleep in ({0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}):
            talk.asleep = asleep
            talk.hear(THREE)
        cache = engine.caches["w"]
        assert sum(evicted_cells.state.nbytes for evicted_cells in cache.evicted) <= 60 * 23_040
        talk.asleep = set()
        read = talk.hear(THREE).read
        assert read is not None
        assert 0 < read.restored < sum(len(tokens) for _, _, tokens in talk.turns[:4])
        assert read.computed > len(talk.turns[0][2])


def test_what_sleeps_in_all_windows_is_bounded_and_the_window_used_longest_ago_gives_way_first(
    model_file: Path,
) -> None:
    limit = 200 * 23_040
    with LlamaEngine(
        model_file, limits=EngineLimits(context=512, graveyard_bytes=limit, memory_bytes=1 << 30)
    ) as engine:
        for name in "abc":
            talk = long_talk(engine, name)
            talk.hear(THREE)
            talk.asleep = {0, 1, 2, 3}
            talk.hear(THREE)
            assert sum(cache.evicted_bytes for cache in engine.caches.values()) <= limit
        assert engine.caches["c"].evicted_bytes > engine.caches["a"].evicted_bytes


def test_one_of_many_that_fell_asleep_together_returns_although_there_is_no_room_for_all(
    model_file: Path,
) -> None:
    with LlamaEngine(model_file, limits=EngineLimits(context=1024)) as engine:
        said = [f"{number}. {' '.join(SAID[:2])}" for number in range(33)]
        talk = long_talk(engine, "w", said)
        talk.asleep = {*range(12, 33)}
        talk.hear(THREE)
        talk.asleep = {*range(12)}  # they leave together
        talk.hear(THREE)
        talk.asleep = {*range(12)} - {5}
        read = talk.hear(THREE).read
        assert read is not None
        cache = engine.caches["w"]
        together = sum(len(tokens) for _, _, tokens in talk.turns[:12])
        assert len(cache.cells) - cache.count < together - len(talk.turns[5][2])
        assert read.restored >= len(talk.turns[5][2])
        assert read.computed < len(talk.turns[-1][2]) + 10


def test_a_window_that_begins_anew_ends_what_it_was_saying(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window)
    older = engine.generate(window, talk.prompt(), dataclasses.replace(THREE, max_new_tokens=500), None)
    next(event for event in older if isinstance(event, Step))
    assert talk.hear(THREE).steps
    with pytest.raises(EngineError, match="something new"):
        list(older)


def test_a_forgotten_window_that_is_speaking_finishes_first(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window)
    steps = engine.generate(window, talk.prompt(), dataclasses.replace(THREE, max_new_tokens=8), None)
    next(event for event in steps if isinstance(event, Step))
    engine.forget(window)
    assert len(list(steps)) == 8
    read = talk.hear(THREE).read
    assert read is not None
    assert read.reused == 0


def test_closing_in_the_middle_of_a_generation_ends_it(model_file: Path) -> None:
    engine = LlamaEngine(model_file, limits=EngineLimits(context=512))
    talk = long_talk(engine, "w")
    began = threading.Event()
    caught: list[BaseException] = []

    def listen() -> None:
        try:
            for event in engine.generate("w", talk.prompt(), Sampling(max_new_tokens=400), Capture()):
                if isinstance(event, Step):
                    began.set()
        except EngineError as error:
            caught.append(error)

    listener = threading.Thread(target=listen)
    listener.start()
    assert began.wait(120)
    engine.close()
    listener.join(60)
    assert not listener.is_alive()
    assert "closed" in str(caught[0])


def test_reading_can_be_stopped_and_taken_up_again(engine: LlamaEngine, window: str) -> None:
    talk = long_talk(engine, window, SAID * 3)
    heard = talk.hear(THREE, stopped=lambda: True)
    assert heard.done is not None
    assert heard.done.reason == "abort"
    assert heard.read is None
    again = talk.hear(THREE, Capture())
    assert again.read is not None
    assert 0 < again.read.reused < 128
    assert again.steps[0].row is not None


def test_the_example_in_the_documentation_runs(capsys: pytest.CaptureFixture[str], model_file: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "engine.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, str(page), "exec"), {})
    assert "looking at" in capsys.readouterr().out


@pytest.mark.parametrize(
    "grammar", ["root ::= " + "(" * 40_000 + '"a"' + ")" * 40_000, 'root ::= ("a"? | "b"?){60}']
)
def test_a_hostile_grammar_is_refused_and_the_engine_goes_on(
    engine: LlamaEngine, window: str, grammar: str
) -> None:
    talk = long_talk(engine, window)
    with pytest.raises(BadInput, match="too large"):
        talk.hear(Sampling(temperature=0.0, grammar=grammar))
    allowed = Sampling(temperature=0.0, max_new_tokens=4, grammar='root ::= "yes"')
    assert talk.hear(allowed).text == "yes"
