"""A conversation as servers take it: roles alternate, and the beginning stays the same as far as it can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.engines.openai import OMITTED, alternate_roles, format_call, in_cached_order, with_reply
from halo_weave.engines.templates.messages import ChatMessage

SYSTEM = ChatMessage("system", "Be kind.")


def talk(*numbers):
    """Even numbers are questions, odd ones answers."""
    return [SYSTEM, *(ChatMessage("assistant" if n % 2 else "user", f"<{n}>") for n in numbers)]


def numbers(messages):
    return [int(one.content.strip("<>")) for one in messages if one.role != "system"]


@pytest.mark.parametrize(
    ("before", "now", "recently_resurrected", "laid"),
    [
        ((), (0, 1, 4), (), [0, 1, 4]),
        ((0, 1, 2), (0, 1, 2, 3, 4), (), [0, 1, 2, 3, 4]),
        # What woke up comes after what was sent and its reply, and stays there.
        ((2, 3, 6), (0, 1, 2, 3, 6, 7, 8), (0, 1), [2, 3, 6, 7, 0, 1, 8]),
        ((2, 3, 6, 7, 0, 1, 8), (0, 1, 2, 3, 6, 7, 8, 9, 10), (0, 1), [2, 3, 6, 7, 0, 1, 8, 9, 10]),
        # It falls asleep again: only what came after it is read once more.
        ((2, 3, 6, 7, 0, 1, 8), (2, 3, 6, 7, 8, 9, 10), (), [2, 3, 6, 7, 8, 9, 10]),
        # Much of the beginning is gone: all returns to its place, but what woke up for these words.
        ((2, 3, 6, 7, 0, 1, 8), (0, 1, 4, 6, 7, 8, 9, 10), (4,), [0, 1, 6, 7, 8, 9, 4, 10]),
        # Asked once more, as after a tool's answer.
        ((2, 3, 6, 7, 0, 1, 8), (0, 1, 2, 3, 6, 7, 8), (0, 1), [2, 3, 6, 7, 0, 1, 8]),
    ],
)
def test_the_beginning_stays_and_what_woke_up_comes_late(before, now, recently_resurrected, laid):
    sent = talk(*before) if before else []
    assert numbers(in_cached_order(sent, talk(*now), frozenset(talk(*recently_resurrected)[1:]))) == laid


@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.sets(st.integers(0, 9)),
)
def test_nothing_is_lost_or_doubled_and_the_newest_words_come_last(before, now, recently_resurrected):
    laid = in_cached_order(talk(*before), talk(*now), frozenset(talk(*recently_resurrected)[1:]))
    assert sorted(numbers(laid)) == sorted(now)
    assert numbers(laid)[-1] == now[-1]
    assert laid.count(SYSTEM) == 1


def test_roles_alternate_whatever_sleeps():
    told = alternate_roles(talk(1, 0, 2, 3, 5, 6))
    assert [(one["role"], one["content"]) for one in told] == [
        ("system", "Be kind."),
        ("user", OMITTED),
        ("assistant", "<1>"),
        ("user", "<0>\n\n<2>"),
        ("assistant", "<3>"),
        ("user", OMITTED),
        ("assistant", "<5>"),
        ("user", "<6>"),
    ]


def test_a_call_and_its_answer_become_messages_of_their_own():
    call = format_call("look", '{"at": "sea"}')
    reply = f"Sure.{call}{answered('waves </tool_response> and more')}<|im_start|>assistant\nDone."
    told = with_reply(alternate_roles(talk(0)), f"<think>\nHm.\n</think>\n\n{reply}")
    assert [one["role"] for one in told] == ["system", "user", "assistant", "tool", "assistant"]
    (call,) = told[2]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": "sea"}'}
    assert told[2]["content"] == "Sure."
    assert told[3]["content"] == "waves </tool_response> and more"
    assert told[3]["tool_call_id"] == call["id"]
    assert told[4]["content"] == "Done."


def answered(*answers):
    """As the template writes what tools have said, after the calls."""
    return "<|im_end|>\n" + "".join(
        f"<|im_start|>user\n<tool_response>\n{one}\n</tool_response><|im_end|>\n" for one in answers
    )


def test_several_calls_of_one_reply_are_one_message_and_each_has_its_answer():
    calls = format_call("look", '{"at": "sea"}') + format_call("look", '{"at": "sky"}')
    once = format_call("look", '{"at": "sand"}')
    reply = f"Sure.{calls}{answered('waves', 'clouds')}<|im_start|>assistant\n{once}{answered('crabs')}"
    told = with_reply(alternate_roles(talk(0)), f"{reply}<|im_start|>assistant\nDone.")
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [one["role"] for one in told] == roles
    ids = [call["id"] for one in told for call in one.get("tool_calls", ())]
    assert len(set(ids)) == 3
    assert [one["tool_call_id"] for one in told if one["role"] == "tool"] == ids
    assert [one["content"] for one in told if one["role"] == "tool"] == ["waves", "clouds", "crabs"]
    assert told[-1]["content"] == "Done."
