"""Neighbours stay right whatever is said and deleted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.search.chunk_table import NONE, PAUSE, ChunkTable
from halo_weave.store.records import ChunkPlace


def place(number: int, window: int, start: int, said: int) -> ChunkPlace:
    return ChunkPlace(
        number, number, 0, "user" if number % 2 else "assistant", f"w{window}", start, said, "Ada"
    )


def expected(places: list[ChunkPlace]) -> dict[int, tuple[int | None, int | None]]:
    """Neighbours by the definition: next in time in the same window, no long pause between."""
    found: dict[int, tuple[int | None, int | None]] = {}
    for window in {one.window for one in places}:
        line = sorted((one for one in places if one.window == window), key=lambda one: one.start)
        for i, one in enumerate(line):
            near = []
            for j in (i - 1, i + 1):
                other = line[j] if 0 <= j < len(line) else None
                near.append(other.number if other and abs(other.said - one.said) <= PAUSE else None)
            found[one.number] = (near[0], near[1])
    return found


@settings(deadline=None)
@given(st.data())
def test_neighbours_are_those_of_the_definition(data):
    table, here = ChunkTable(), dict[int, ChunkPlace]()
    count = 0
    for _ in range(data.draw(st.integers(1, 8))):
        if here and data.draw(st.booleans()):
            gone = data.draw(st.sets(st.sampled_from(sorted(here)), min_size=1))
            table.drop(np.array([*gone, 10_000]))
            here = {number: one for number, one in here.items() if number not in gone}
        else:
            fresh = []
            for _ in range(data.draw(st.integers(1, 6))):
                count += 1
                start = 1000 * data.draw(st.integers(0, 50)) + count  # starts are unique, in any order
                said = data.draw(st.sampled_from([0, PAUSE // 2, PAUSE, 2 * PAUSE]))
                fresh.append(place(count, data.draw(st.integers(0, 2)), start, said))
            table.put(fresh)
            table.put(fresh)  # again: nothing changes
            here.update((one.number, one) for one in fresh)
        assert len(table) == len(here)
        wanted = expected(list(here.values()))
        numbers = np.array(sorted(here), np.int64)
        rows = table.rows(numbers)
        ahead, back = table.around(rows, 1)

        def named(row: int) -> int | None:
            return None if row == NONE else int(table["number"][row])

        for number, after, before in zip(numbers.tolist(), ahead.tolist(), back.tolist(), strict=True):
            assert (named(before), named(after)) == wanted[number]
        assert set(table["number"][table["present"]].tolist()) == set(here)


def test_loading_many_at_once_links_as_adding_one_by_one_does():
    places = [place(i + 1, i % 3, 10 * (i * 7919 % 4001), i % 5 * PAUSE) for i in range(4000)]
    at_once, one_by_one = ChunkTable(), ChunkTable()
    at_once.put(places)
    for one in places:
        one_by_one.put([one])
    assert np.array_equal(at_once["before"], one_by_one["before"])
    assert np.array_equal(at_once["after"], one_by_one["after"])


def test_a_row_is_known_by_its_key_and_window():
    table = ChunkTable()
    table.put([place(7, 1, 5, 0), place(8, 2, 6, 0)])
    assert str(table.key(0)) == "7.0.user"
    assert table.rows(np.array([8, 9])).tolist() == [1, NONE]
