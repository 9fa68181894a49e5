"""Many clients at once. `scripts/bench soak` does the same for a minute."""

from benchmarks.bench_soak import soak


def test_twenty_clients_on_five_windows_lose_and_mix_nothing(address):
    report = soak(address, seconds=4)
    assert report.errors == []
    assert report.mixed == []
    assert report.lost == []
    assert report.turns >= 5
    assert report.resumed
