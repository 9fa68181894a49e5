"""Both stores answer every question alike: a memory that was moved is asked the same in both."""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

import numpy as np
import pytest

from halo_weave.app import open_store
from halo_weave.core.attribution import Attribution, ChunkShare, TokenSource
from halo_weave.core.tokens import Chunk, Role
from halo_weave.core.working_set import LiveChunk
from halo_weave.store.records import Draft, ExportFilter
from halo_weave.store.sql_store import SqlStore
from halo_weave.store.transfer import transfer_memory
from tests.contract.conftest import enriched
from tests.store.material import NOW, answer, ask, assistant, cut, exported, sleep, user, wake

LATER = NOW + timedelta(days=400)


def plain(value: Any) -> Any:
    """A record as values that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.shape, np.nan_to_num(value, nan=-1.5).tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def ordered(found) -> list:
    return sorted(plain(list(found)), key=str)


QUESTIONS: dict[str, Callable[[SqlStore, str, str], Any]] = {
    "windows": lambda store, one, two: store.windows(deleted=True),
    "window names": lambda store, one, two: store.window_names(),
    "figures of a window": lambda store, one, two: [store.window_stats(one), store.window_stats(two)],
    "live": lambda store, one, two: [store.live(one), store.live(two)],
    "life": lambda store, one, two: [store.window_timeline(one), store.window_timeline(two)],
    "graveyard": lambda store, one, two: [
        store.graveyard(one, sort=sort, descending=way)
        for sort in ("position", "slept", "peak", "tokens")
        for way in (True, False)
    ],
    "graveyard by words": lambda store, one, two: store.graveyard(one, text="QUESTION", role=Role.USER),
    "graveyard by signs": lambda store, one, two: [store.graveyard(one, text=text) for text in "%_\\"],
    "places asleep": lambda store, one, two: store.pruned_positions(one),
    "counted asleep": lambda store, one, two: store.count_pruned(one, 0, 10_000),
    "asleep between": lambda store, one, two: store.pruned_between(one, 0, 10_000, 5),
    "history": lambda store, one, two: [
        store.history(limit=500),
        store.history(window=one),
        store.history(window=one, key=user(1)),
        store.history(key=user(9)),
    ],
    "turns": lambda store, one, two: [store.turn(turn) for turn in range(1, 16)],
    "between": lambda store, one, two: store.chunks_between(3, 900),
    "said in": lambda store, one, two: [
        store.said_in(one, limit=3),
        store.said_in(one, around=5, limit=4),
        store.said_in(two, offset=1, limit=2),
    ],
    "deleted in": lambda store, one, two: store.deleted_in(one),
    "timeline": lambda store, one, two: [
        store.timeline(limit=5),
        store.timeline(since=NOW + timedelta(1), until=NOW + timedelta(3), window=one),
        store.timeline(after=(NOW, 2), limit=4),
        store.timeline(window=two),
    ],
    "branch": lambda store, one, two: [store.branch(one), store.branch(one, 5), store.branch(two)],
    "followers": lambda store, one, two: [store.followers(0, one), store.followers(2, one)],
    "siblings": lambda store, one, two: store.siblings(range(1, 16)),
    "marks": lambda store, one, two: [
        store.hashes_before(8, 5),
        store.turns_with_hash(store.hashes_before(3, 1)[0][1]),
    ],
    "marked in a window": lambda store, one, two: store.turns_with_hash(
        store.hashes_before(3, 1)[0][1], window=one
    ),
    "use": lambda store, one, two: [store.use_of(4), store.used_in(user(1)), store.used_in(assistant(2))],
    "most used": lambda store, one, two: store.most_used(one),
    "remembered": lambda store, one, two: [
        store.remembered([2, 4, 6]),
        store.remembered([4], min_share=0.4),
        store.remembered([]),
    ],
    "times woken": lambda store, one, two: store.resurrection_count(user(1)),
    "deletion": lambda store, one, two: [store.deletion_of(user(3)), store.deletion_of(assistant(2, 1))],
    "sleepers": lambda store, one, two: store.recall_candidates(
        two, [user(1), assistant(2), assistant(4), user(7)]
    ),
    "to wake": lambda store, one, two: store.resurrectable_chunks(one, [user(1), assistant(2, 1), user(13)]),
    "recallable": lambda store, one, two: [
        store.recallable_chunks(one),
        store.recallable_chunks(two),
        store.windows_by_last_turn(),
    ],
    "chunk places": lambda store, one, two: ordered(store.chunk_places()),
    "chunk places since": lambda store, one, two: ordered(store.chunk_places(store.sequence() - 3)),
    "changes": lambda store, one, two: store.changes(0),
    "wrong marks": lambda store, one, two: store.negative_feedback(),
    "tags": lambda store, one, two: [
        store.chunk_tags([user(3), user(7), assistant(6)]),
        store.tagged(["garden", "lost"]),
        store.tag_counts(),
    ],
    "drafts": lambda store, one, two: store.drafts(now=LATER, abandoned=False),
    "entries": lambda store, one, two: [store.entries(), store.entries("A"), store.entry_versions("A/B")],
    "entry paths": lambda store, one, two: [store.entry_paths(), store.entry_paths("A")],
    "notes": lambda store, one, two: [store.notes(), store.settings()],
    "generations": lambda store, one, two: store.generations(),
    "wanted": lambda store, one, two: store.wanted(store.generations()[0].id, 100),
    "vectors": lambda store, one, two: store.vectors_of(store.generations()[0].id, range(1, 40)),
    "export of a part": lambda store, one, two: [
        exported(store, subset=ExportFilter(window=two)),
        exported(store, subset=ExportFilter(first_turn=3, last_turn=6)),
        exported(store, subset=ExportFilter(since=NOW + timedelta(2), until=NOW + timedelta(4))),
    ],
}
UNORDERED = {"vectors"}


@pytest.fixture(scope="module")
def pair(server, tmp_path_factory) -> Any:
    """The same memory in a file and in a database."""
    folder = tmp_path_factory.mktemp("alike")
    database = server.new()
    with open_store(folder) as file:
        more_of_everything(enriched(file))
        transfer_memory(file, server.address(database))
        with open_store(server.address(database)) as moved:
            yield file, moved
    server.drop(database)


def more_of_everything(store: SqlStore) -> None:
    one, two = (window.id for window in store.windows())
    starts = {item.key: item.chunk.start for item in store.live(one)}
    shares = (ChunkShare(user(1), starts[user(1)], 0.5), ChunkShare(assistant(2), starts[assistant(2)], 0.25))
    use = Attribution(shares, 0.25, ((TokenSource(0, 0, 1.0),), ()), 12)
    store.save_use(4, use, {user(3): {"part": "hit", "similarity": 0.5}})
    store.save_use(6, Attribution((shares[1],), 0.75, ()))
    store.add_negative_feedback(user(3), "which one?", now=NOW)
    ids = ask(store, one, "on the way", now=NOW + timedelta(9))
    answer(store, one, ids, "one way", now=NOW + timedelta(9))
    again = store.reserve(300)
    ask_again = assistant(again.assistant_turn)
    said = [
        LiveChunk(Chunk(ask_again, again.start, cut("another way"), ids.user_turn), np.ones(2, np.float32))
    ]
    store.append(one, said, tokenizer="test", now=NOW + timedelta(10))
    sleep(store, one, user(5), why="dimmest")
    sleep(store, two, assistant(4), why="dimmest")
    wake(store, two, user(5), part="hit")
    store.change_window(two, now=NOW, tags=["garden"], pinned=True)
    last = store.reserve(10)
    store.save_drafts([Draft(one, last.assistant_turn, last.start, None, cut("half a"), "test", NOW, NOW)])
    store.delete_window(store.create_window("gone", now=LATER).id, now=LATER)


@pytest.mark.parametrize("question", QUESTIONS)
def test_both_stores_answer_alike(pair, question):
    file, moved = pair
    one, two = (window.id for window in file.windows())
    asked = [QUESTIONS[question](store, one, two) for store in (file, moved)]
    answers = [
        [ordered(zip(*found, strict=True)) for found in asked] if question in UNORDERED else plain(asked)
    ]
    assert answers[0][0] == answers[0][1]
    assert answers[0][0] not in ([], {}, None), "nothing was asked of it"


def test_chunks_that_want_new_vectors_are_the_same_in_both(pair):
    for store in pair:
        store.request_embeddings([2, 4])
    wanted = [store.wanted(store.generations()[0].id, 100).numbers.tolist() for store in pair]
    assert wanted[0] == wanted[1]
    assert {2, 4} <= {*wanted[0]}
