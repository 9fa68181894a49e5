"""Plans for the KV cache, carried out on a simulated one that follows llama.cpp's rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.engines.base import ANONYMOUS_LABELS
from halo_weave.engines.llama.cache_plan import (
    CachedTokens,
    CachePlan,
    CellAllocator,
    Compute,
    Restore,
    plan_cache,
    split_runs,
)
from halo_weave.errors import BadInput

LIMIT = 120


def held(tokens: list[tuple[int, int, int]]) -> CachedTokens:
    labels, ids, places = zip(*tokens, strict=True) if tokens else ((), (), ())
    return CachedTokens(np.array(labels, np.int64), np.array(ids, np.int32), np.array(places, np.int32))


def execute_plan(
    plan: CachePlan, live: CachedTokens, asleep: list[CachedTokens], labels: np.ndarray, ids: np.ndarray
) -> CachedTokens:
    """Do what the plan says to a map from place to token, refusing what llama.cpp would refuse or confuse."""
    at = {int(live.places[i]): (int(live.labels[i]), int(live.ids[i])) for i in plan.kept}
    assert set(plan.kept.tolist()).isdisjoint(plan.removed.tolist())
    assert len(plan.kept) + len(plan.removed) == len(live)
    for move in plan.moves:
        moved = {place: at.pop(place) for place in sorted(at) if move.start <= place < move.stop}
        assert moved
        for place, token in moved.items():
            assert place + move.by >= 0
            assert place + move.by not in at, "two tokens at one place"
            at[place + move.by] = token
    computed = restored = 0
    for step in plan.steps:
        places = plan.places[step.start : step.stop].tolist()
        assert not set(places) & set(at)
        if isinstance(step, Restore):
            run = asleep[step.run].part(slice(step.at, step.at + len(places)))
            assert len({new - old for new, old in zip(places, run.places.tolist(), strict=True)}) == 1
            tokens = list(zip(run.labels.tolist(), run.ids.tolist(), strict=True))
            restored += len(places)
        else:
            before = [place for place in at if place < places[0]]
            assert len(before) == step.start, "a token is computed before what it should see"
            assert places[0] == (max(before) + 1 if before else places[0])
            assert places == list(range(places[0], places[-1] + 1))
            tokens = list(
                zip(
                    labels[step.start : step.stop].tolist(), ids[step.start : step.stop].tolist(), strict=True
                )
            )
            computed += len(places)
        at.update(zip(places, tokens, strict=True))
    assert (plan.reused, plan.restored, plan.computed) == (len(plan.kept), restored, computed)
    ordered = [(*at[place], place) for place in sorted(at)]
    assert [id for _, id, _ in ordered] == ids.tolist()
    assert sorted(at) == plan.places.tolist()
    return held([(int(label), id, place) for label, (_, id, place) in zip(labels, ordered, strict=True)])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[int], int, int]]:
    """Rounds of: which tokens said so far are live, how many new ones follow, and how many will be generated."""
    rounds, said = [], 0
    for _ in range(draw(st.integers(1, 8))):
        keep = sorted(draw(st.sets(st.integers(0, said - 1), max_size=60))) if said else []
        new = draw(st.integers(1, 12))
        rounds.append((keep, new, draw(st.integers(1, 20))))
        said += new
    return rounds


@given(histories())
@settings(max_examples=400, deadline=None)
def test_any_plan_leads_to_the_prompt_and_never_puts_two_tokens_at_one_place(
    history: list[tuple[list[int], int, int]],
) -> None:
    live, asleep, said = held([]), [], 0
    for keep, new, reserve in history:
        labels = np.array([*keep, *range(said, said + new)], np.int64)
        said += new
        ids = (labels * 7 % 5).astype(np.int32)
        plan = plan_cache(live, asleep, labels, ids, limit=LIMIT, reserve=reserve, compute_from=10**9)
        if len(plan.removed):
            asleep.append(live.part(plan.removed))
        live = execute_plan(plan, live, asleep, labels, ids)
        assert isinstance(plan.steps[-1], Compute)
        assert plan.steps[-1].stop == len(labels)
        if len(labels) + reserve <= LIMIT:
            assert plan.places[-1] + 1 + reserve <= LIMIT
        assert np.all(np.diff(plan.places) > 0)


@st.composite
def histories_with_others(draw: st.DrawFn) -> list[tuple[list[int], int, list[int]]]:
    """Rounds of: which tokens said so far are live, how many new ones follow, and which another window has read."""
    rounds, said = [], 0
    for _ in range(draw(st.integers(1, 6))):
        keep = sorted(draw(st.sets(st.integers(0, said - 1), max_size=60))) if said else []
        new = draw(st.integers(1, 30))
        first = draw(st.integers(0, said + new))
        rounds.append((keep, new, list(range(first, first + draw(st.integers(0, 40))))))
        said += new
    return rounds


@given(histories_with_others())
@settings(max_examples=200, deadline=None)
def test_what_other_windows_have_read_comes_to_its_place_in_order(
    history: list[tuple[list[int], int, list[int]]],
) -> None:
    """As above, with windows that have read some of it at places of their own."""
    live, said = held([]), 0
    for keep, new, known in history:
        labels = np.array([*keep, *range(said, said + new)], np.int64)
        said += new
        ids = (labels * 7 % 5).astype(np.int32)
        known = [label for label in known if label < said]
        places = np.cumsum(np.array(known, np.int32) % 3 + 1)
        others = [CachedTokens(np.array(known, np.int64), np.array(known, np.int32) * 7 % 5, places, True)]
        others = others if known else []
        plan = plan_cache(live, others, labels, ids, limit=LIMIT, reserve=5, compute_from=10**9)
        live = execute_plan(plan, live, others, labels, ids)


def conversation(count: int) -> tuple[CachedTokens, np.ndarray, np.ndarray]:
    labels, ids = np.arange(count, dtype=np.int64), np.arange(100, 100 + count, dtype=np.int32)
    return CachedTokens(labels, ids, np.arange(count, dtype=np.int32)), labels, ids


def plan_for(
    live: CachedTokens, asleep: list[CachedTokens], labels: np.ndarray, **changes: int | str
) -> CachePlan:
    given = {"limit": 1000, "reserve": 10, "compute_from": 10**9, **changes}
    return plan_cache(live, asleep, labels, (labels + 100).astype(np.int32), **given)  # type: ignore[arg-type]


def test_appending_computes_only_what_is_new() -> None:
    live, _, _ = conversation(50)
    plan = plan_for(live, [], np.arange(60))
    assert (plan.reused, plan.restored, plan.computed) == (50, 0, 10)
    assert plan.moves == ()
    assert plan.steps == (Compute(50, 60),)


def test_a_prune_leaves_a_hole_and_moves_nothing() -> None:
    live, _, _ = conversation(50)
    plan = plan_for(live, [], np.array([*range(10), *range(30, 51)]))
    assert plan.removed.tolist() == list(range(10, 30))
    assert plan.moves == ()
    assert plan.places.tolist() == [*range(10), *range(30, 51)]
    assert plan.computed == 1


def test_an_asleep_chunk_returns_into_its_hole() -> None:
    whole, _, _ = conversation(50)
    live = whole.part(np.r_[0:10, 30:50])
    asleep = [whole.part(np.arange(10, 30))]
    plan = plan_for(live, asleep, np.arange(51))
    assert plan.steps == (Restore(10, 30, 0, 0), Compute(50, 51))
    assert plan.places.tolist() == list(range(51))
    assert plan.moves == ()


def test_a_part_of_an_asleep_run_can_return_alone() -> None:
    whole, _, _ = conversation(50)
    plan = plan_for(
        whole.part(np.r_[0:10, 30:50]), [whole.part(np.arange(10, 30))], np.r_[0:10, 20:25, 30:51]
    )
    assert plan.steps == (Restore(10, 15, 0, 10), Compute(35, 36))
    assert plan.places[10:15].tolist() == list(range(20, 25))


def test_a_chunk_that_never_was_here_is_computed_in_the_middle_and_pushes_what_follows() -> None:
    whole, _, _ = conversation(50)
    live = CachedTokens(
        whole.labels[np.r_[0:10, 30:50]], whole.ids[np.r_[0:10, 30:50]], np.arange(30, dtype=np.int32)
    )
    plan = plan_for(live, [], np.arange(51))
    assert plan.steps == (Compute(10, 30), Compute(50, 51))
    assert [(move.start, move.stop, move.by) for move in plan.moves] == [(10, 30, 20)]


def test_a_hole_that_is_large_enough_takes_a_computed_chunk_without_a_move() -> None:
    whole, _, _ = conversation(50)
    plan = plan_for(whole.part(np.r_[0:10, 30:50]), [], np.arange(51))
    assert plan.steps == (Compute(10, 30), Compute(50, 51))
    assert plan.moves == ()


def test_holes_are_closed_only_when_places_run_out() -> None:
    whole, _, _ = conversation(50)
    live = whole.part(np.r_[0:10, 30:50])
    prompt = np.r_[0:10, 30:51]
    assert not plan_for(live, [], prompt, limit=61).compacted
    closed = plan_for(live, [], prompt, limit=60)
    assert closed.compacted
    assert closed.places.tolist() == list(range(31))
    assert [(move.start, move.by) for move in closed.moves] == [(30, -20)]


def test_a_token_with_the_same_label_but_another_text_is_computed() -> None:
    live, labels, ids = conversation(20)
    changed = ids.copy()
    changed[5] = 7
    plan = plan_cache(live, [], labels, changed, limit=1000, reserve=1, compute_from=10**9)
    assert plan.removed.tolist() == [5, 19]
    assert plan.steps == (Compute(5, 6), Compute(19, 20))


def test_the_first_token_is_computed_as_the_first_when_the_beginning_has_left() -> None:
    live, _, _ = conversation(20)
    plan = plan_for(live, [], np.arange(8, 21))
    assert plan.steps[0] == Compute(0, 1)
    assert plan.reused == 11


def test_a_beginning_with_the_same_text_is_reused_whatever_its_labels() -> None:
    live, labels, ids = conversation(20)
    plan = plan_cache(live, [], labels - 1000, ids, limit=1000, reserve=1, compute_from=10**9)
    assert (plan.reused, plan.computed) == (19, 1)


def test_exact_mode_keeps_only_a_clean_beginning() -> None:
    live, _, _ = conversation(50)
    assert plan_for(live, [], np.arange(60), mode="exact", exact_prefix=50).computed == 10
    assert plan_for(live, [], np.arange(60), mode="exact", exact_prefix=20).computed == 40
    pruned = plan_for(live, [live], np.r_[0:10, 30:51], mode="exact", exact_prefix=50)
    assert (pruned.reused, pruned.restored, pruned.computed) == (10, 0, 21)


def test_what_is_to_be_looked_at_is_computed_even_if_it_is_there() -> None:
    live, _, _ = conversation(50)
    assert plan_for(live, [], np.arange(50), compute_from=40).computed == 10


def test_of_turns_whose_frames_begin_alike_each_keeps_its_own() -> None:
    """Frames of three tokens with the same text. Turns leave and return: nothing is read twice but the last token."""
    turns = [[*range(-3 * turn - 3, -3 * turn), *range(10 * turn, 10 * turn + 5)] for turn in range(6)]

    def labels_of(*numbers: int) -> np.ndarray:
        return np.array([label for number in numbers for label in turns[number]], np.int64)

    def ids_of(labels: np.ndarray) -> np.ndarray:
        return np.where(labels < 0, 7, labels + 100).astype(np.int32)

    live, asleep = held([]), list[CachedTokens]()
    for numbers, computed in ((range(5), 40), ([0, 2, 4, 5], 8), ([0, 2, 3, 4, 5], 1), (range(6), 1)):
        labels = labels_of(*numbers)
        plan = plan_cache(live, asleep, labels, ids_of(labels), limit=1000, reserve=10, compute_from=10**9)
        assert plan.computed == computed, numbers
        asleep += [live.part(plan.removed)] if len(plan.removed) else []
        live = execute_plan(plan, live, asleep, labels, ids_of(labels))


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 60))
def test_what_sleeps_is_kept_in_pieces_that_leave_frames_with_their_words(
    turns: list[int], most: int
) -> None:
    """Turns of so many words, each in a frame of two tokens before and one after it."""
    labels = np.concatenate(
        [np.zeros(0, np.int64), *(np.r_[-1, -1, np.arange(said), -1] for said in turns)]
    ).astype(np.int64)
    parts = list(split_runs(labels, most))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(labels)
    for part in parts[:-1]:
        assert labels[part.stop - 1] >= 0
        assert labels[part.stop] >= 0
    for part in parts:  # longer only where it could not be cut
        rest = labels[part][most - 1 :] if part.stop - part.start > most else labels[:0]
        inside = (rest[1:] >= 0) & (rest[:-1] >= 0)
        assert not inside[:-1].any()


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(BadInput, match="has no tokens"):
        plan_for(held([]), [], np.arange(0))


@given(
    st.lists(
        st.one_of(st.integers(1, 12), st.sets(st.integers(0, 63), min_size=1, max_size=20), st.none()),
        max_size=30,
    )
)
@settings(max_examples=300, deadline=None)
def test_cells_are_given_out_as_llama_cpp_does(actions: list[int | set[int] | None]) -> None:
    """The reference walks cell by cell, as `find_slot` and `seq_rm` do."""
    cells = CellAllocator(64)
    used, head = [False] * 64, 0
    for action in actions:
        if action is None:
            cells.rewind()
            head = 0
        elif isinstance(action, set):
            freed = sorted(cell for cell in action if used[cell])
            for cell in freed:
                used[cell] = False
            head = min([head, *freed])
            cells.release(np.array(freed, np.int32))
        elif sum(used) + action <= 64:
            at = 0 if head > sum(used) + 2 * action else head
            expected = []
            while len(expected) < action:
                at = 0 if at >= 64 else at
                if not used[at]:
                    expected.append(at)
                    used[at] = True
                at += 1
            head = expected[-1] + 1
            assert cells.allocate(action).tolist() == expected
        else:
            with pytest.raises(BadInput, match="do not fit"):
                cells.allocate(action)
        assert cells.free == 64 - sum(used)


# From other windows


def borrowed(labels: np.ndarray, first: int = 500) -> CachedTokens:
    places = np.arange(first, first + len(labels), dtype=np.int32)
    return CachedTokens(labels, (labels + 100).astype(np.int32), places, borrowed=True)


def test_what_another_window_has_read_follows_its_neighbour_here() -> None:
    live, _, _ = conversation(10)
    plan = plan_for(live, [borrowed(np.arange(200, 230))], np.r_[0:10, 200:230, 300])
    assert plan.steps == (Restore(10, 40, 0, 0), Compute(40, 41))
    assert plan.places.tolist() == list(range(41))
    assert plan.restored == 30


def test_cells_of_the_window_itself_come_before_those_of_another() -> None:
    whole, _, _ = conversation(50)
    live, own = whole.part(np.r_[0:10, 30:50]), whole.part(np.arange(10, 30))
    for saved, run in ([own, borrowed(own.labels)], 0), ([borrowed(own.labels), own], 1):
        assert plan_for(live, saved, np.arange(51)).steps == (Restore(10, 30, run, 0), Compute(50, 51))


def test_few_tokens_of_another_window_are_computed() -> None:
    """So few could be the same in a memory that was replaced by another one."""
    live, _, _ = conversation(10)
    plan = plan_for(live, [borrowed(np.arange(200, 207))], np.r_[0:10, 200:207, 300])
    assert (plan.restored, plan.computed) == (0, 8)


def test_frames_of_another_window_are_computed() -> None:
    live, _, _ = conversation(10)
    other = borrowed(np.r_[ANONYMOUS_LABELS, 200:220, ANONYMOUS_LABELS - 1])
    prompt = np.r_[0:10, -7, 200:220, -8, 300]
    ids = np.r_[100:110, int(other.ids[0]), 300:320, int(other.ids[-1]), 400].astype(np.int32)
    plan = plan_cache(live, [other], prompt, ids, limit=1000, reserve=10, compute_from=10**9)
    assert (plan.restored, plan.computed) == (20, 3)
