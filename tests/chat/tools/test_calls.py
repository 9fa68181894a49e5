"""Tool calls are found in a reply, however it falls into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.chat.tools.calls import CALL_LIMIT, ToolCallDetector


def commands(*pieces: str | bytes) -> list[str]:
    detector = ToolCallDetector()
    return [call.command for piece in pieces for call in detector.feed(piece)]


def test_a_call_is_reported_with_its_closing_tag_and_not_before():
    detector = ToolCallDetector()
    assert detector.feed("Let me look. <tool>list_memory()</tool") == ()
    (call,) = detector.feed(">")
    assert call.command == "list_memory()"
    assert detector.feed(" and on it goes") == ()


def test_tokens_of_the_real_model_split_tags_anywhere():
    pieces = [b"<", b"tool", b">", b"j", b"q", b" '", b".'", b" notes", b".", b"json", b"</", b"tool", b">\n"]
    assert commands(*pieces) == ["jq '.' notes.json"]


def test_a_character_that_is_spread_over_tokens_is_whole_in_the_command():
    raw = '<tool>save_memory("Żółw/猫", "🐈")</tool>'.encode()
    assert commands(*(raw[i : i + 1] for i in range(len(raw)))) == ['save_memory("Żółw/猫", "🐈")']


def test_two_calls_in_one_piece_are_both_found():
    assert commands("<tool>a()</tool> <tool>b()</tool>") == ["a()", "b()"]


@pytest.mark.parametrize("fence", ["```", "~~~", "  ```", "````"])
def test_a_call_inside_a_fence_is_an_example(fence):
    text = f"So:\n{fence}text\n<tool>a()</tool>\n{fence}\nNow: <tool>b()</tool>"
    assert commands(text) == ["b()"]


def test_another_fence_does_not_close_a_fence():
    assert commands("```\n~~~\n<tool>a()</tool>\n```\n<tool>b()</tool>") == ["b()"]


def test_a_call_right_after_a_backtick_is_an_example():
    assert commands("Write `<tool>list_memory()</tool>` to see it.") == []


def test_a_fence_within_a_call_is_content():
    call = '<tool>save_memory("a", "\n```\ncode\n```\n")</tool>'
    assert commands(call + "<tool>b()</tool>") == ['save_memory("a", "\n```\ncode\n```\n")', "b()"]


def test_a_tag_in_prose_does_not_hide_the_call_after_it():
    assert commands("The <tool> tag is used so: <tool>list_memory()</tool>") == ["list_memory()"]


def test_a_tag_in_prose_does_not_turn_an_example_into_a_call():
    assert commands("A <tool> tag:\n```\n<tool>delete_memory('a')</tool>\n```\n") == []


def test_a_tag_within_a_command_is_content():
    call = 'save_memory("a", "write <tool> first")'
    assert commands(f"<tool>{call}</tool>") == [call]


def test_an_unfinished_call_is_none():
    assert commands("<tool>list_memory()") == []
    assert commands("list_memory()</tool>") == []


def test_an_endless_call_is_not_kept_and_refused_when_it_ends():
    detector = ToolCallDetector()
    detector.feed("<tool>jq ")
    for _ in range(CALL_LIMIT // 1000 + 50):
        assert detector.feed("a" * 1000) == ()
    (call,) = detector.feed("</tool>")
    assert call.too_long
    assert len(call.command) <= CALL_LIMIT
    assert [one.too_long for one in detector.feed("<tool>a()</tool>")] == [False]


PARTS = [
    "<tool>",
    "</tool>",
    "<tool",
    "jq '.'",
    "a()",
    "```",
    "~~~",
    "`",
    "\n",
    " ",
    "ä",
    "🐈",
    "<",
    ">",
    "x",
]


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join), st.data())
def test_any_split_of_the_text_gives_the_same_calls(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole, split = ToolCallDetector(), ToolCallDetector()
    assert list(whole.feed(text)) == [call for piece in pieces for call in split.feed(piece)]


@given(st.text(max_size=200), st.text(alphabet="ab() '\"{}", max_size=40))
def test_a_call_after_any_text_without_marks_is_found(before, command):
    before = before.translate(dict.fromkeys(map(ord, "`~<")))
    assert commands(f"{before}<tool>{command}</tool>") == [command.strip()]


@given(st.binary(max_size=200))
def test_broken_bytes_are_read_without_an_error(raw):
    ToolCallDetector().feed(raw)
