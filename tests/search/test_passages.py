"""What is embedded of a chunk."""

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.search.embedding_worker import MOST_PASSAGES, passages


def test_every_passage_tells_who_said_it():
    text = "I went to the market with my brother and we bought far too many lemons. Then it rained for the whole rest of the day."
    assert passages(text, "Ada") == [
        "Ada: I went to the market with my brother and we bought far too many lemons.",
        "Ada: Then it rained for the whole rest of the day.",
    ]


def test_short_sentences_stay_together():
    assert passages("Yes. No. Maybe! Who knows?", "Ada") == ["Ada: Yes. No. Maybe! Who knows?"]


@settings(deadline=None)
@given(st.text())
def test_nothing_but_white_space_is_lost(text):
    said = " ".join(part.removeprefix("Ada:") for part in passages(text, "Ada"))
    assert "".join(said.split()) == "".join(text.split())


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab .\n", min_size=1, max_size=40), max_size=200))
def test_a_long_chunk_has_a_bounded_number_of_passages(parts):
    assert 1 <= len(passages(" ".join(parts), "")) <= MOST_PASSAGES + 1
