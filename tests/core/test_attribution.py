"""What a reply took from chunks, by rows of attention that are given."""

from __future__ import annotations

import numpy as np
import pytest

from halo_weave.core.attribution import AttributionTracker, capture_for_attribution
from halo_weave.core.brightness import AttentionRow, Capture
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration, RetrievalHead
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens

HEADS = Calibration((RetrievalHead(0, 1, 0.9, 0.9, 0.75), RetrievalHead(2, 0, 0.5, 0.5, 0.25)), "")


def chunk(turn: int, start: int, size: int) -> Chunk:
    tokens = Tokens.of(list(range(size)), [b"x"] * size)
    return Chunk(ChunkKey(turn, 0, Role.USER), start, tokens)


CHUNKS = (chunk(1, 0, 4), chunk(3, 10, 4), chunk(5, 20, 2))  # the last one is the question
OFFSETS = np.array([0, 4, 8, 10])


def row(raw: list[list[float]]) -> AttentionRow:
    shares = np.array(raw, np.float32)
    return AttentionRow(shares.mean(axis=0), system=1 - float(shares.mean(axis=0).sum()), raw=shares)


def looked(first: dict[int, float], second: dict[int, float]) -> AttentionRow:
    return row([[head.get(i, 0.0) for i in range(10)] for head in (first, second)])


def test_a_reply_took_what_its_heads_looked_at_and_the_rest_is_nothing_in_particular() -> None:
    tally = AttributionTracker(HEADS)
    tally.add_token(looked({5: 0.8}, {1: 0.4}), CHUNKS, OFFSETS, 5)
    use = tally.whole()
    assert [str(one.key) for one in use.chunks] == ["3.0.user", "1.0.user"]
    # Each head counts by its weight, whatever it spent elsewhere; together they spent 0.75 * 0.8 + 0.25 * 0.4 here.
    assert [one.share for one in use.chunks] == pytest.approx([0.7 * 0.75, 0.7 * 0.25])
    assert use.nothing == pytest.approx(0.3)
    assert sum(one.share for one in use.chunks) + use.nothing == pytest.approx(1.0)
    (sources,) = use.tokens
    assert [(use.chunks[one.place].start + one.offset) for one in sources] == [11, 1]
    assert sources[0].share == pytest.approx(0.525)


def test_the_question_and_the_reply_are_no_sources() -> None:
    tally = AttributionTracker(HEADS)
    tally.add_token(looked({9: 1.0}, {8: 1.0}), CHUNKS, OFFSETS, 5)
    assert tally.whole().nothing == pytest.approx(1.0)
    assert tally.whole().tokens == ((),)


def test_the_question_is_a_source_beside_what_came_before_it_if_that_is_asked_for() -> None:
    tally = AttributionTracker(HEADS, include_question=True)
    tally.add_token(looked({9: 0.6, 5: 0.2}, {9: 0.6, 5: 0.2}), CHUNKS, OFFSETS, 5)
    use = tally.whole()
    assert [(str(one.key), round(one.share, 3)) for one in use.chunks] == [
        ("5.0.user", 0.6),
        ("3.0.user", 0.2),
    ]
    assert use.nothing == pytest.approx(0.2)
    (sources,) = use.tokens
    assert [(use.chunks[one.place].start + one.offset, round(one.share, 3)) for one in sources] == [
        (21, 0.6),
        (11, 0.2),
    ]
    before = AttributionTracker(HEADS)  # what came before has the same share without it
    before.add_token(looked({9: 0.6, 5: 0.2}, {9: 0.6, 5: 0.2}), CHUNKS, OFFSETS, 5)
    assert before.whole().chunks == (use.chunks[1],)


def test_a_question_that_nothing_was_said_before_is_a_source() -> None:
    tally = AttributionTracker(HEADS, include_question=True)
    rows = np.zeros((2, 2), np.float32)
    rows[:, 1] = 0.9
    for _ in range(2):
        tally.add_token(AttentionRow(rows[0], raw=rows), CHUNKS[2:], np.array([0, 2]), 5)
    assert [(str(one.key), round(one.share, 3)) for one in tally.whole().chunks] == [("5.0.user", 0.9)]


def test_without_retrieval_heads_the_question_is_no_source() -> None:
    tally = AttributionTracker(NOT_CALIBRATED, include_question=True)
    tally.add_token(looked({9: 1.0}, {9: 1.0}), CHUNKS, OFFSETS, 5)
    assert not tally.whole().chunks


def test_what_a_tool_said_came_from_nowhere_and_keeps_its_place() -> None:
    tally = AttributionTracker(HEADS)
    tally.add_token(None, CHUNKS, OFFSETS, 5)
    tally.add_token(looked({0: 1.0}, {0: 1.0}), CHUNKS, OFFSETS, 5)
    use = tally.whole()
    assert [len(sources) for sources in use.tokens] == [0, 1]
    assert use.chunks[0].share == pytest.approx(1.0)


def test_a_chunk_that_wakes_up_within_a_reply_is_a_source_from_then_on() -> None:
    tally = AttributionTracker(HEADS)
    few = np.zeros((2, 6), np.float32)
    few[:, 0] = 1.0
    for _ in range(2):  # the first row is that of the template's last words
        tally.add_token(AttentionRow(few[0], raw=few), (CHUNKS[0], CHUNKS[2]), np.array([0, 4, 6]), 5)
    tally.add_token(looked({4: 1.0}, {4: 1.0}), CHUNKS, OFFSETS, 5)
    assert {str(one.key): round(one.share, 3) for one in tally.whole().chunks} == {
        "1.0.user": 0.5,
        "3.0.user": 0.5,
    }


def test_what_counts_is_where_the_tokens_of_the_reply_looked_not_the_words_before_it() -> None:
    tally = AttributionTracker(HEADS)
    tally.add_token(
        looked({0: 1.0}, {0: 1.0}), CHUNKS, OFFSETS, 5
    )  # the template's last word chose the first token
    tally.end_reply(looked({5: 0.9}, {5: 0.9}))
    use = tally.whole()
    assert [(str(one.key), round(one.share, 3)) for one in use.chunks] == [("3.0.user", 0.9)]
    assert [[one.offset for one in sources] for sources in use.tokens] == [[1]]
    longer = AttributionTracker(HEADS)
    longer.add_token(looked({0: 1.0}, {0: 1.0}), CHUNKS, OFFSETS, 5)
    longer.add_token(looked({5: 1.0}, {5: 1.0}), CHUNKS, OFFSETS, 5)
    longer.end_reply(looked({9: 1.0}, {9: 1.0}))
    use = longer.whole()
    assert [(str(one.key), round(one.share, 3)) for one in use.chunks] == [("3.0.user", 0.5)]
    assert [[one.offset for one in sources] for sources in use.tokens] == [[1], [1]]


def test_without_heads_a_token_counts_by_what_it_gets_more_than_usual() -> None:
    tally = AttributionTracker(NOT_CALIBRATED)
    usual = np.full(10, 0.05, np.float32)
    usual[0] = 0.5  # a sink
    tally.observe_prefill([AttentionRow(usual, system=0.05)], 8)
    now = usual.copy()
    now[6] += 0.04
    tally.add_token(AttentionRow(now, system=0.01), CHUNKS, OFFSETS, 5)
    use = tally.whole()
    assert str(use.chunks[0].key) == "3.0.user"
    assert use.chunks[0].share == pytest.approx(0.04)
    assert len(use.chunks) == 1


def test_tokens_of_another_tokenizer_are_found_at_the_places_they_were_said_at() -> None:
    other = Chunk(ChunkKey(1, 0, Role.USER), 0, CHUNKS[0].tokens, span=8)
    tally = AttributionTracker(HEADS)
    tally.add_token(looked({3: 1.0}, {3: 1.0}), (other, *CHUNKS[1:]), OFFSETS, 5)
    assert tally.whole().tokens[0][0].offset == 6


def test_use_is_read_beside_what_a_strategy_reads() -> None:
    assert capture_for_attribution(Capture(), HEADS) == Capture(raw=True, raw_pairs=HEADS.pairs)
    blind = capture_for_attribution(Capture(reply=False, reading_surprisal=True), HEADS)
    assert blind == Capture(pairs=HEADS.pairs, raw=True, reading_surprisal=True)
    assert capture_for_attribution(Capture(), NOT_CALIBRATED) == Capture(reading=True)
