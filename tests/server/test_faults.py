"""A short form of `scripts/bench faults`: servers that are killed while they reply."""

from benchmarks.bench_faults import drill, failed


def test_killed_servers_lose_nothing_acknowledged_or_shown():
    # How soon what is shown is saved depends on how busy the machine is; the two faults wait for it.
    report = drill(4, only=["model_pause", "tool_answer"], grace=2.0)
    assert not failed(report), report
    assert report["faults"] == {"model_pause": "survived", "tool_answer": "survived"}
    assert report["shown_tokens"]
