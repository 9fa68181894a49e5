"""What every store does for a window: working set, graveyard, merging, deleting."""

from datetime import timedelta

import numpy as np
import pytest

from halo_weave.core.tokens import Chunk, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.store.records import ChunkMove, ChunksToEmbed
from tests.store.material import (
    NOW,
    TOKENIZER,
    answer,
    ask,
    assistant,
    cut,
    embed_all,
    exchange,
    holding,
    live_keys,
    sleep,
    sleeping,
    user,
    wake,
)

# Working sets


def test_a_window_restores_bit_by_bit(store, window, again):
    exchange(store, window, "one two three", "four five", " six")
    bright = np.array([np.pi, -7, 1e-30, 10_000, 2**24, -(2**24), 0.1], np.float32)[:6]
    store.save_brightness(window, [item.chunk for item in store.live(window)], bright)
    live = again().live(window)
    assert np.concatenate([item.brightness for item in live]).tobytes() == bright.tobytes()
    restored = WorkingSet(live)
    assert [chunk.text for chunk in restored.chunks] == ["one two three", "four five", " six"]
    assert restored.brightness.tobytes() == bright.tobytes()


def test_live_chunks_come_in_position_order_whatever_woke_last(store, window):
    first = exchange(store, window, "q one", "a one")
    second = exchange(store, window, "q two", "a two")
    sleep(store, window, user(first.user_turn), assistant(second.assistant_turn))
    wake(store, window, assistant(second.assistant_turn))
    wake(store, window, user(first.user_turn))
    starts = [item.chunk.start for item in store.live(window)]
    assert starts == sorted(starts)
    assert len(starts) == 4


def test_brightness_of_the_wrong_size_or_place_changes_nothing(store, window):
    exchange(store, window, "one two", "three")
    before = np.concatenate([item.brightness for item in store.live(window)])
    live = [item.chunk for item in store.live(window)]
    with pytest.raises(BadInput):
        store.save_brightness(window, live, np.zeros(2, np.float32))
    elsewhere = Chunk(user(1), 150, cut("not live"))
    with pytest.raises(BadInput, match="nothing was saved"):
        store.save_brightness(window, [*live, elsewhere], np.zeros(5, np.float32))
    assert np.concatenate([item.brightness for item in store.live(window)]).tobytes() == before.tobytes()


def test_a_pruned_chunk_keeps_its_brightness_and_why_it_slept(store, window):
    ids = exchange(store, window, "one two three", "answer")
    bright = np.array([3.5, 9, -1], np.float32)
    store.prune(window, [ChunkMove(user(ids.user_turn), bright, {"why": "dimmest", "rivals": 3})], now=NOW)
    assert live_keys(store, window) == [assistant(ids.assistant_turn)]
    asleep = sleeping(store, window, user(ids.user_turn))
    assert asleep.brightness.tobytes() == bright.tobytes()
    assert (asleep.peak, asleep.pruned_at) == (9.0, NOW)
    assert asleep.reason == {"why": "dimmest", "rivals": 3}


def test_prune_then_wake_is_the_identity_on_brightness(store, window):
    ids = exchange(store, window, "one two three", "answer")
    before = store.live(window)
    sleep(store, window, user(ids.user_turn))
    wake(store, window, user(ids.user_turn), part="hit", similarity=0.7)
    after = store.live(window)
    assert [item.brightness.tobytes() for item in after] == [item.brightness.tobytes() for item in before]
    assert after[0].resurrect_reason == {"part": "hit", "similarity": 0.7}
    assert after[1].resurrect_reason is None
    assert sleeping(store, window, user(ids.user_turn)) is None


def test_several_chunks_are_read_at_once_with_the_brightness_they_had_here(store, window):
    other = store.create_window("second", now=NOW).id
    first, second, gone = (exchange(store, window, f"one two {n}", "three") for n in range(3))
    letters = Tokens.of(range(9), [bytes([letter]) for letter in b"one two 1"])
    bright = store.live(window)[0].brightness
    sleep(store, window, user(first.user_turn))
    woken = ChunkMove(user(second.user_turn), np.ones(9, np.float32), tokens=letters, tokenizer="letters")
    store.resurrect(other, [woken], now=NOW)
    sleep(store, other, user(second.user_turn))
    store.delete([user(gone.user_turn)], now=NOW)

    asked = [user(gone.user_turn), user(second.user_turn), user(99), user(first.user_turn)]
    here = store.resurrectable_chunks(window, asked)
    assert list(here) == [asked[0], asked[1], asked[3]]
    assert here[asked[3]].brightness.tobytes() == bright.tobytes()
    assert here[asked[1]].brightness is None
    assert here[asked[1]].record == store.chunk(asked[1])
    assert [one.record.gone for one in here.values()] == [True, False, False]

    there = store.resurrectable_chunks(other, asked)
    assert there[asked[1]].brightness.tolist() == [1] * 9
    assert (there[asked[1]].record.chunk.tokens, there[asked[1]].record.tokenizer) == (letters, "letters")
    assert there[asked[3]].brightness is None
    assert store.resurrectable_chunks(window, []) == {}


def test_traces_are_kept_beside_brightness_wherever_a_chunk_goes(store, window, again):
    def traces_of(key) -> list | None:
        (item,) = [item for item in again().live(window) if item.key == key]
        return None if item.traces is None else item.traces.tolist()

    ids = ask(store, window, "one two", " three")
    key, second = user(ids.user_turn), user(ids.user_turn, 1)
    assert traces_of(key) is None
    live = store.live(window)
    bright = np.concatenate([item.brightness for item in live])
    traces = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.save_brightness(window, [item.chunk for item in live], bright, traces)
    assert (traces_of(key), traces_of(second)) == ([[0, 1], [3, 4]], [[2], [5]])
    with pytest.raises(BadInput, match="do not fit"):
        store.save_brightness(window, [item.chunk for item in live], bright, traces[:, :2])
    with pytest.raises(BadInput, match="do not fit"):
        store.prune(window, [ChunkMove(key, bright[:2], traces=traces)], now=NOW)

    store.prune(window, [ChunkMove(key, bright[:2], traces=10 * traces[:, :2])], now=NOW)
    assert store.resurrectable_chunks(window, [key])[key].traces.tolist() == [[0, 10], [30, 40]]
    assert store.graveyard(window).items[0].traces.tolist() == [[0, 10], [30, 40]]
    store.resurrect(window, [ChunkMove(key, bright[:2], traces=traces[:, :2])], now=NOW)
    store.delete([key], now=NOW)
    store.undelete([key], now=NOW)
    assert traces_of(key) == [[0, 1], [3, 4]]
    store.merge(window, second, now=NOW)
    assert traces_of(key) == traces.tolist()
    store.save_brightness(window, [item.chunk for item in store.live(window)], bright)
    assert traces_of(key) is None


def test_merged_with_a_chunk_without_traces_those_are_not_known(store, window):
    ids = ask(store, window, "one", " two")
    bright, key = np.ones(1, np.float32), user(ids.user_turn)
    sleep(store, window, key)
    store.resurrect(window, [ChunkMove(key, bright, traces=np.full((1, 1), 7, np.float32))], now=NOW)
    store.merge(window, user(ids.user_turn, 1), now=NOW)
    assert np.array_equal(store.live(window)[0].traces, [[7, np.nan]], equal_nan=True)


def test_a_plan_is_applied_whole_or_not_at_all(store, window):
    ids = exchange(store, window, "one", "two")
    bright = np.ones(1, np.float32)
    with pytest.raises(UnknownChunk):
        store.prune(window, [ChunkMove(user(ids.user_turn), bright), ChunkMove(user(99), bright)], now=NOW)
    assert len(live_keys(store, window)) == 2
    sleep(store, window, user(ids.user_turn))
    with pytest.raises(BadInput):
        store.resurrect(
            window,
            [
                ChunkMove(user(ids.user_turn), bright),
                ChunkMove(assistant(ids.assistant_turn), bright),
            ],
            now=NOW,
        )
    assert live_keys(store, window) == [assistant(ids.assistant_turn)]


def test_a_chunk_wakes_up_in_another_window_at_its_own_place(store, window):
    other = store.create_window("second", now=NOW).id
    ids = exchange(store, window, "my cat is a Siamese", "how nice")
    mine = exchange(store, other, "hello", "hi")
    wake(store, other, user(ids.user_turn))
    live = store.live(other)
    assert [item.key for item in live] == [
        user(ids.user_turn),
        user(mine.user_turn),
        assistant(mine.assistant_turn),
    ]
    assert live[0].window == window
    assert len(live_keys(store, window)) == 2
    sleep(store, other, user(ids.user_turn))
    assert store.graveyard(other).total == 1
    assert store.graveyard(window).total == 0


def test_a_pin_lasts_and_can_be_taken_off(store, window, again):
    ids = exchange(store, window, "one two", "three")
    store.pin(window, user(ids.user_turn), now=NOW, brightness=10_000)
    live = again().live(window)
    assert [item.pinned for item in live] == [True, False]
    assert live[0].brightness.tolist() == [10_000, 10_000]
    store.unpin(window, user(ids.user_turn), now=NOW)
    assert not store.live(window)[0].pinned
    with pytest.raises(UnknownChunk):
        store.pin(window, user(99), now=NOW)


def test_history_tells_when_and_why(store, window):
    ids = exchange(store, window, "one", "two")
    key = user(ids.user_turn)
    sleep(store, window, key, why="dimmest")
    wake(store, window, key, part="hit", words=["one"])
    store.pin(window, key, now=NOW)
    events = store.history(key=key)
    assert [event.event for event in events] == ["pinned", "woke", "slept"]
    assert events[1].detail == {"part": "hit", "words": ["one"]}
    assert {event.window for event in store.history(window=window)} == {window}
    assert store.history(window=window, key=assistant(ids.assistant_turn)) == []
    assert len(store.history(limit=2)) == 2


def test_what_can_be_resurrected_is_listed_with_how_often_it_was(store, window):
    first = exchange(store, window, "one two", "three four five")
    second = exchange(store, window, "six", "seven")
    sleep(store, window, user(first.user_turn))
    wake(store, window, user(first.user_turn))
    store.delete([user(second.user_turn)], now=NOW)
    listed = store.recallable_chunks(window)
    assert [(one.key, one.span, one.resurrections) for one in listed] == [
        (user(first.user_turn), 2, 1),
        (assistant(first.assistant_turn), 3, 0),
        (assistant(second.assistant_turn), 1, 0),
    ]
    assert [one.start for one in listed] == [store.chunk(one.key).chunk.start for one in listed]


def test_the_window_with_the_latest_turn_comes_first(store, window):
    other = store.create_window("other", now=NOW).id
    empty = store.create_window("empty", now=NOW).id
    gone = store.create_window("gone", now=NOW).id
    for one in (window, other, gone):
        exchange(store, one, "one", "two")
    store.delete_window(gone, now=NOW)
    assert store.windows_by_last_turn() == [other, window, empty]
    exchange(store, window, "three", "four")
    assert store.windows_by_last_turn() == [window, other, empty]


def test_a_window_on_another_tokenizer_keeps_its_own_reading(store, window, again):
    ids = ask(store, window, "lighthouse keeper")
    letters = Tokens.of(range(17), [bytes([letter]) for letter in b"lighthouse keeper"])
    chunk = Chunk(user(ids.user_turn), ids.start, letters, span=2)
    bright = np.arange(17, dtype=np.float32)
    store.store_retokenized(window, [LiveChunk(chunk, bright)], tokenizer="letters", now=NOW)
    live = again().live(window)[0]
    assert (live.chunk.tokens, live.tokenizer, live.chunk.span) == (letters, "letters", 2)
    assert store.chunk(user(ids.user_turn)).tokenizer == TOKENIZER
    sleep(store, window, user(ids.user_turn))
    asleep = sleeping(store, window, user(ids.user_turn))
    assert (asleep.record.chunk.tokens, asleep.record.tokenizer) == (letters, "letters")
    wake(store, window, user(ids.user_turn))
    assert store.live(window)[0].chunk.tokens == letters
    store.store_retokenized(
        window, [LiveChunk(store.chunk(user(ids.user_turn)).chunk, bright[:2])], tokenizer=TOKENIZER, now=NOW
    )
    assert store.live(window)[0].chunk.tokens == cut("lighthouse keeper")


def test_a_chunk_wakes_up_with_tokens_of_another_tokenizer(store, window):
    ids = ask(store, window, "ab", asleep=True)
    letters = Tokens.of([1, 2], [b"a", b"b"])
    store.resurrect(
        window,
        [ChunkMove(user(ids.user_turn), np.ones(2, np.float32), tokens=letters, tokenizer="letters")],
        now=NOW,
    )
    assert store.live(window)[0].chunk.tokens == letters
    sleep(store, window, user(ids.user_turn))
    with pytest.raises(BadInput, match="1 tokens, not 3"):
        store.resurrect(window, [ChunkMove(user(ids.user_turn), np.ones(3, np.float32))], now=NOW)


# The graveyard


@pytest.fixture
def sleepers(store, window):
    for number in range(12):
        exchange(store, window, f"question {number}", f"the answer {'very ' * number}long",
                 now=NOW + timedelta(days=number))  # fmt: skip
    bright = {item.key: item.brightness for item in store.live(window)}
    for number, key in enumerate(bright):
        store.prune(
            window,
            [ChunkMove(key, bright[key] - number * 2000, {})],
            now=NOW + timedelta(minutes=number % 5),
        )
    return window


def test_the_graveyard_comes_by_page(store, sleepers):
    pages = [store.graveyard(sleepers, offset=offset, limit=10, descending=False) for offset in (0, 10, 20)]
    assert [len(page.items) for page in pages] == [10, 10, 4]
    assert {page.total for page in pages} == {24}
    keys = [item.key for page in pages for item in page.items]
    assert keys == sorted(set(keys), key=lambda key: (key.turn_id, key.chunk_id))


@pytest.mark.parametrize(
    ("sort", "value"),
    [
        ("position", lambda item: item.record.chunk.start),
        ("slept", lambda item: item.pruned_at),
        ("peak", lambda item: item.peak),
        ("tokens", lambda item: len(item.record.chunk)),
    ],
)
@pytest.mark.parametrize("descending", [True, False])
def test_the_graveyard_is_sorted(store, sleepers, sort, value, descending):
    items = store.graveyard(sleepers, sort=sort, descending=descending).items
    values = [value(item) for item in items]
    assert values == sorted(values, reverse=descending)
    assert len(set(values)) > 1


def test_the_graveyard_is_filtered(store, sleepers):
    def turns(**filters):
        page = store.graveyard(sleepers, descending=False, **filters)
        assert page.total == len(page.items)
        return [item.key.turn_id for item in page.items]

    assert turns(role=Role.USER) == list(range(1, 24, 2))
    assert turns(text="QUESTION 1") == [3, 21, 23]
    assert turns(role=Role.USER, text="question 1") == [3, 21, 23]
    assert turns(role=Role.ASSISTANT, text="question 1") == []
    assert turns(text="100%_") == []


def test_a_graveyard_cannot_be_sorted_by_anything_else(store, window):
    with pytest.raises(BadInput, match="position, slept, peak, tokens"):
        store.graveyard(window, sort="number; DROP TABLE chunks")


# Merging


def test_merged_chunks_go_by_the_first_key(store, window, again):
    ids = ask(store, window, "one two", " three", " four five")
    key = user(ids.user_turn, 1)
    before = np.concatenate([item.brightness for item in store.live(window)])
    assert store.merge(window, key, now=NOW) == user(ids.user_turn)
    live = again().live(window)
    assert [(item.key.chunk_id, item.chunk.text) for item in live] == [
        (0, "one two three"),
        (2, " four five"),
    ]
    assert np.concatenate([item.brightness for item in live]).tobytes() == before.tobytes()
    assert store.chunk(key).merged_into == user(ids.user_turn)
    assert store.history(key=user(ids.user_turn))[0].event == "merged"
    store.merge(window, user(ids.user_turn, 2), now=NOW)
    assert [item.chunk.text for item in store.live(window)] == ["one two three four five"]


def test_a_merged_chunk_has_the_tokens_the_span_and_the_pin_of_both(store, window):
    ids = ask(store, window, "one two", " three")
    store.pin(window, user(ids.user_turn, 1), now=NOW, brightness=10_000)
    first, second = store.live(window)
    store.merge(window, user(ids.user_turn, 1), now=NOW)
    (live,) = store.live(window)
    assert live.chunk.tokens == first.chunk.tokens + second.chunk.tokens
    assert (live.chunk.start, live.chunk.span, live.chunk.stop) == (ids.start, 3, second.chunk.stop)
    assert live.brightness.tolist() == [*first.brightness.tolist(), 10_000]
    assert live.pinned
    assert WorkingSet([live]).pinned == {user(ids.user_turn)}


def test_a_merged_chunk_has_the_tags_of_both(store, window):
    tags = {0: ["cut"], 1: ["tool", "cut"]}
    ids = ask(store, window, "one", " two", " three", tags=lambda key: tags.get(key.chunk_id, []))
    for number in (1, 2):
        store.merge(window, user(ids.user_turn, number), now=NOW)
    assert store.chunk(user(ids.user_turn)).tags == ("cut", "tool")
    assert store.live(window)[0].tags == ("cut", "tool")


def test_a_merged_chunk_is_found_by_its_new_words_only_once(store, window):
    ids = ask(store, window, "apple tree", " pear tree")
    store.merge(window, user(ids.user_turn, 1), now=NOW)
    (hit,) = holding(store, "pear")
    assert store.chunks([hit])[0].key == user(ids.user_turn)
    assert len(holding(store, "tree")) == 1


def test_only_live_neighbours_merge(store, window):
    ids = ask(store, window, "one", " two", " three")
    with pytest.raises(BadInput, match="right before"):
        store.merge(window, user(ids.user_turn), now=NOW)
    sleep(store, window, user(ids.user_turn, 1))
    with pytest.raises(BadInput, match="both be live"):
        store.merge(window, user(ids.user_turn, 1), now=NOW)
    with pytest.raises(BadInput, match="both be live"):
        store.merge(window, user(ids.user_turn, 2), now=NOW)
    with pytest.raises(UnknownChunk):
        store.merge(window, user(99), now=NOW)


def test_a_chunk_that_another_window_has_live_is_not_merged_under_it(store, window):
    other = store.create_window("other", now=NOW).id
    ids = ask(store, window, "one", " two")
    wake(store, other, user(ids.user_turn, 1))
    with pytest.raises(BadInput, match="'other'"):
        store.merge(window, user(ids.user_turn, 1), now=NOW)
    sleep(store, other, user(ids.user_turn, 1))
    store.merge(window, user(ids.user_turn, 1), now=NOW)
    (item,) = store.graveyard(other).items
    assert (item.key, item.record.chunk.text) == (user(ids.user_turn), "one two")
    assert len(item.brightness) == 2
    assert item.peak == 10_000


# Deleting


def everywhere(store, word: str, vector: np.ndarray) -> set[int]:
    """Chunk numbers that any way of searching finds."""
    generation = next(item.id for item in store.generations() if item.state == "current")
    there = holding(store, word)
    for window in store.windows():
        there |= holding(store, word, window=window.id)
        there |= {item.record.number for item in store.graveyard(window.id, text=word).items}
        there |= {item.number for item in store.live(window.id) if word in item.chunk.text}
    for numbers, vectors in store.vectors(generation):
        there |= set(numbers[vectors @ vector > 0.99].tolist())
    numbers, _ = store.vectors_of(generation, range(1000))
    return there | set(numbers.tolist()) if not word else there


def test_deleted_words_are_found_by_no_way_of_searching_until_undeleted(store, window):
    other = store.create_window("other", now=NOW).id
    ids = exchange(store, window, "the zanzibar plan", "zanzibar it is")
    exchange(store, window, "something else", "fine")
    wake(store, other, user(ids.user_turn))
    sleep(store, window, assistant(ids.assistant_turn))
    generation, vectors = embed_all(store)
    number = store.chunk(user(ids.user_turn)).number
    assert everywhere(store, "zanzibar", vectors[number]) == {number, number + 1}

    keys = store.deletion_of(user(ids.user_turn))
    store.delete(keys, now=NOW)
    assert everywhere(store, "zanzibar", vectors[number]) == set()
    assert store.changes(0).gone.tolist() == [number, number + 1]
    record = store.chunk(user(ids.user_turn))
    assert (record.chunk.text, record.deleted) == ("the zanzibar plan", NOW)
    assert store.recall_candidates(window, keys) == {}
    with pytest.raises(BadInput, match="deleted"):
        wake(store, window, user(ids.user_turn))

    later = NOW + timedelta(days=1)
    store.undelete(keys, now=later)
    assert set(store.wanted(generation.id, 10).numbers.tolist()) == {number, number + 1}
    store.add_vectors(
        generation.id, ChunksToEmbed(np.array([number]), store.sequence()), vectors[number][None]
    )
    assert everywhere(store, "zanzibar", vectors[number]) == {number, number + 1}
    record = store.chunk(user(ids.user_turn))
    assert (record.deleted, record.undeleted) == (None, later)
    assert [item.key for item in store.graveyard(window).items] == [assistant(ids.assistant_turn)]
    assert user(ids.user_turn) in live_keys(store, window)
    assert live_keys(store, other) == [user(ids.user_turn)]


def test_what_is_undeleted_is_in_every_window_what_it_was(store, window):
    other, third = (store.create_window(name, now=NOW).id for name in ("other", "third"))
    ids = exchange(store, window, "the zanzibar plan", "zanzibar it is")
    question, reply = user(ids.user_turn), assistant(ids.assistant_turn)
    store.pin(window, question, now=NOW, brightness=77)
    wake(store, other, reply)
    wake(store, third, question)
    sleep(store, third, question)
    windows = (window, other, third)

    def state():
        return [
            [(one.key, one.pinned, one.brightness.tolist(), one.resurrect_reason) for one in store.live(each)]
            for each in windows
        ], [[one.key for one in store.graveyard(each).items] for each in windows]

    before = state()
    assert set(store.delete([question, reply], now=NOW)) == {window, other}
    assert state()[0] == [[], [], []]
    assert set(store.undelete([question, reply], now=NOW)) == {window, other}
    assert state() == before
    assert store.verify() == []


def test_a_question_and_its_answer_are_deleted_together_other_chunks_alone(store, window):
    ids = ask(store, window, "opening", " more")
    answer(store, window, ids, "reply", " rest")
    pair = (user(1), user(1, 1), assistant(2), assistant(2, 1))
    assert store.deletion_of(user(1)) == pair
    assert store.deletion_of(assistant(2, 1)) == pair
    assert store.deletion_of(user(1, 1)) == (user(1, 1),)
    with pytest.raises(UnknownChunk):
        store.deletion_of(user(7))


def test_deleting_twice_or_something_unknown_is_safe(store, window):
    ids = exchange(store, window, "one", "two")
    store.delete([user(ids.user_turn)], now=NOW)
    store.delete([user(ids.user_turn)], now=NOW + timedelta(1))
    assert store.chunk(user(ids.user_turn)).deleted == NOW
    with pytest.raises(UnknownChunk):
        store.delete([assistant(ids.assistant_turn), user(99)], now=NOW)
    assert store.chunk(assistant(ids.assistant_turn)).deleted is None


def test_a_windows_life_is_its_branch_without_words_and_what_happened_to_it(store, window):
    first = exchange(store, window, "one two", "three")
    second = exchange(store, window, "four", "five six seven")
    sleep(store, window, user(first.user_turn), why="dimmest")
    wake(store, window, user(first.user_turn), pinned=True, by="recall")
    sleep(store, window, assistant(second.assistant_turn), why="by the user")
    elsewhere = store.create_window("Elsewhere", now=NOW).id
    exchange(store, elsewhere, "not here", "at all")
    life = store.window_timeline(window)
    assert [turn for turn, _ in life.turns] == [
        first.user_turn,
        first.assistant_turn,
        second.user_turn,
        second.assistant_turn,
    ]
    assert [(one.tokens, one.live, one.pinned) for one in life.chunks] == [
        (2, True, True),
        (1, True, False),
        (1, True, False),
        (3, False, False),
    ]
    assert [(one.key, one.event, one.why) for one in life.events] == [
        (user(first.user_turn), "slept", "dimmest"),
        (user(first.user_turn), "woke", "recall"),
        (assistant(second.assistant_turn), "slept", "by the user"),
    ]
    store.delete([user(second.user_turn)], now=NOW)
    assert user(second.user_turn) not in {one.key for one in store.window_timeline(window).chunks}
