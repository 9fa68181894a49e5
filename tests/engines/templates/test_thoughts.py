"""Thoughts and answers are told apart, however the reply falls into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.engines.templates.thoughts import TextKind, ThoughtMarks, ThoughtSplitter

TAGS = ThoughtMarks("<think>", "</think>")
BRACKETS = ThoughtMarks("[THINK]", "[/THINK]")
CHANNELS = ThoughtMarks(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
)
WRAPPED = ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), "<|END_TEXT|>")
ALL = [TAGS, BRACKETS, CHANNELS, WRAPPED]


def split(
    reply: str, marks: ThoughtMarks, cuts: list[int] | None = None, *, opened: bool = False
) -> list[tuple[TextKind, bytes]]:
    """The reply fed in pieces that end at the cuts, or byte by byte; neighbours of one kind are joined."""
    whole, splitter = reply.encode(), ThoughtSplitter(marks, opened=opened)
    edges = (
        range(len(whole) + 1)
        if cuts is None
        else [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    )
    found: list[tuple[TextKind, bytes]] = []
    for start, stop in pairwise(edges):
        found += splitter.feed(whole[start:stop])
    found += splitter.finish()
    joined: list[tuple[TextKind, bytes]] = []
    for kind, text in found:
        if joined and joined[-1][0] == kind:
            joined[-1] = kind, joined[-1][1] + text
        elif text:
            joined.append((kind, text))
    return joined


def said(reply: str, marks: ThoughtMarks, **how: bool) -> tuple[str, str]:
    parts = split(reply, marks, **how)
    thought, answer = (
        b"".join(text for kind, text in parts if kind == wanted) for wanted in ("thought", "answer")
    )
    return thought.decode(), answer.decode()


@pytest.mark.parametrize(
    ("reply", "marks", "thought", "answer"),
    [
        ("<think>\nhm\n</think>\n\nYes.", TAGS, "\nhm\n", "Yes."),
        ("[THINK]hm[/THINK]Yes.", BRACKETS, "hm", "Yes."),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            CHANNELS,
            "hm",
            "Yes.",
        ),
        ("<|channel|>final<|message|>Yes.", CHANNELS, "", "Yes."),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>", WRAPPED, "hm", "Yes."),
        ("<|START_TEXT|>Yes.<|END_TEXT|>", WRAPPED, "", "Yes."),
        ("Yes, <think> is a tag, </think> too.", TAGS, "", "Yes, <think> is a tag, </think> too."),
        ("<think></think>Yes.", TAGS, "", "Yes."),
        ("<think>never ends", TAGS, "never ends", ""),
        ("<thin ice>", TAGS, "", "<thin ice>"),
        ("<think", TAGS, "", "<think"),
        ("", TAGS, "", ""),
        ("<think>a</think><think>b</think>Yes.", TAGS, "ab", "Yes."),
        ("<think>a </thin b</think>é", TAGS, "a </thin b", "é"),
    ],
)
def test_a_reply_is_divided_at_the_marks(reply: str, marks: ThoughtMarks, thought: str, answer: str) -> None:
    assert said(reply, marks) == (thought, answer)


@pytest.mark.parametrize(
    ("reply", "thought", "answer"),
    [
        ("hm</think>\n\nYes.", "hm", "Yes."),
        ("<think>\nhm</think>Yes.", "\nhm", "Yes."),
        ("\n\nhm</think>Yes.", "\n\nhm", "Yes."),
        ("</think>Yes.", "", "Yes."),
        ("only thoughts", "only thoughts", ""),
    ],
)
def test_a_thought_that_the_prompt_opened_needs_no_mark(reply: str, thought: str, answer: str) -> None:
    assert said(reply, TAGS, opened=True) == (thought, answer)


fragments = st.sampled_from(
    [mark for marks in ALL for mark in (marks.open, marks.close, *marks.answer_opens, marks.answer_close)]
    + ["é", " ", "\n", "<", "<th", "ink>", "</", "[", "|>", "words"]
)
replies = st.lists(fragments, max_size=12).map("".join)


@given(reply=replies, marks=st.sampled_from(ALL), cuts=st.lists(st.integers(0, 400)), opened=st.booleans())
def test_nothing_is_lost_and_the_cuts_between_pieces_do_not_matter(
    reply: str, marks: ThoughtMarks, cuts: list[int], opened: bool
) -> None:
    parts = split(reply, marks, cuts, opened=opened)
    assert b"".join(text for _, text in parts) == reply.encode()
    assert parts == split(reply, marks, opened=opened) == split(reply, marks, [], opened=opened)


@given(thought=st.text(alphabet="ab <>/\n"), answer=st.text(alphabet="ab <>/\n"), marks=st.sampled_from(ALL))
def test_what_is_put_between_marks_comes_back(thought: str, answer: str, marks: ThoughtMarks) -> None:
    reply = marks.open + thought + marks.close + (marks.answer_opens or ("",))[0] + "x" + answer
    if marks.close not in thought and not (thought + marks.close).find(marks.close) < len(thought):
        assert said(reply, marks) == (thought, "x" + answer)


def test_words_are_given_as_soon_as_they_cannot_be_a_mark() -> None:
    splitter = ThoughtSplitter(TAGS)
    assert splitter.feed(b"<thi") == []
    assert splitter.feed(b"nk>a <") == [("mark", b"<think>"), ("thought", b"a ")]
    assert splitter.feed(b"b") == [("thought", b"<b")]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<a><think>\n", True),
        ("<a><think>\n\n</think>\n\n", False),
        ("<a>", False),
        ("</think><think>", True),
    ],
)
def test_a_generation_prompt_tells_whether_it_opens_a_thought(prompt: str, opened: bool) -> None:
    assert TAGS.opened_by(prompt) is opened
