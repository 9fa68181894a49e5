"""A scripted day over HTTP, as `scripts/bench day` says it, on the scripted engine."""

import re

import httpx
import pytest

from benchmarks.bench_day import Product
from benchmarks.day_script import Day, Message

pytestmark = pytest.mark.slow


def test_a_day_tells_what_was_said_what_was_in_context_and_what_changed_in_memory(address):
    zebra = re.compile("zebra")
    day = Day(
        "d",
        "",
        (
            Message("Day one", "The zebra at the quay is called Quillon.", tells=("zebra",)),
            Message("Day one", "What is the zebra called?", needs=("zebra",), answers=(zebra,)),
            Message("Day two", "Good morning.", needs=("zebra",)),
            Message("Day one", "Remember the zebra.", remember=zebra),
            Message("Day one", "Go on."),
        ),
    )
    product = Product(address)
    first, second, third = (product.say(day, number) for number in range(3))
    assert first.faults == second.faults == third.faults == []
    assert "Quillon" in first.reply  # the engine repeats what it is asked
    assert first.stored == first.reply
    assert first.wait is not None
    assert first.wait > 0
    assert first.readings
    assert second.found == ("zebra",)
    live = "zebra" in " ".join(text for _, _, text in third.woken)
    assert third.found == (("zebra",) if live else ())
    with httpx.Client(base_url=address) as http:
        entry = {"path": "Animals/Day zebra", "content": "a zebra"}
        assert http.put("/api/memory/entry", json=entry).status_code == 200
        fourth = product.say(day, 3)
        assert http.put("/api/memory/entry", json=entry | {"content": "a horse"}).status_code == 200
        fifth = product.say(day, 4)
        http.delete("/api/memory/entry", params={"path": entry["path"]})
    product.close()
    assert fourth.kept
    assert fourth.overwritten == []
    assert fifth.overwritten == ["Animals/Day zebra"]
    assert not fifth.new_entries
