"""Changes of an open window are seen by other threads as a whole, and chunks come in the order they were asked for."""

import threading

from halo_weave.core.tokens import ChunkKey, Role
from tests.chat.conftest import SMALL


def test_a_chunk_that_the_user_prunes_leaves_the_context_only_while_no_other_thread_reads_it(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, "Alpha bravo charlie."))
    open_window = weave.runtime.window_for_change(window)
    key, now = next(iter(open_window.live_keys)), weave.runtime.now()
    with open_window.lock:
        pruning = threading.Thread(target=lambda: open_window.prune_by_user(key, now=now))
        pruning.start()
        pruning.join(0.2)
        assert pruning.is_alive()
        assert key in open_window.working_set
    pruning.join(10)
    assert key not in open_window.working_set


def test_chunks_that_are_wanted_by_key_are_planned_in_this_order_whatever_their_length(assembled):
    weave = assembled()
    window = weave.windows.create(
        "one", settings={**SMALL, "max_context_tokens": 0, "min_chunk_tokens": 64}
    ).id
    long, short = "Alpha bravo charlie delta echo foxtrot golf hotel. " * 4, "Kilo lima."
    for text in (long, short):
        list(weave.turns.steps(window, text))
    turns = [turn.id for turn in weave.runtime.store.branch(window) if turn.role is Role.USER]
    keys = [ChunkKey(turn, 0, Role.USER) for turn in sorted(turns)]
    for key in keys:
        weave.chunks.prune(window, key)
    open_window = weave.runtime.window_for_reading(window)
    for wanted in (keys, keys[::-1]):
        plan = open_window.plan_resurrection_of(wanted, 1000)
        assert plan.keys == tuple(wanted)
        room = next(one.cost for one in plan.chunks if one.key == keys[0])
        assert open_window.plan_resurrection_of(keys, room).keys == (keys[0],)
