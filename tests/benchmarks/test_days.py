"""Scripted days: their files are fair and read whole, replies are judged as people would, bad files give sentences."""

import json
import re

import pytest

from benchmarks.bench_day import DAYS, Heard, Product, Ran, main, percentile, report
from benchmarks.day_plain import PlainReply
from benchmarks.day_script import (
    BadDay,
    Day,
    Message,
    abstains,
    has_leading_stamp,
    is_right,
    mixed,
    read_day,
    read_days,
    refuses,
    scaffolding,
)

pytestmark = pytest.mark.slow


def written(folder, *messages, **about):
    file = folder / "day.json"
    file.write_text(json.dumps({"name": "a-day", "about": "A day.", "messages": list(messages), **about}))
    return file


def question(*answers, never=(), told=True):
    patterns = [tuple(re.compile(one, re.IGNORECASE) for one in group) for group in (answers, never)]
    return Message("w", "?", needs=("fact",), answers=patterns[0], never=patterns[1], told=told)


DAY_FILES = sorted(DAYS.glob("*.json"))


@pytest.mark.parametrize("file", DAY_FILES, ids=lambda file: file.stem)
def test_a_day_is_long_and_has_something_of_everything(file):
    messages = read_day(file).messages
    assert len(messages) >= 40
    assert 5 <= len({one.window for one in messages}) <= 8
    assert messages[0].window != messages[-1].window
    assert 10 <= sum(one.asks_memory for one in messages) <= 14
    assert 3 <= sum(not one.told for one in messages) <= 5
    assert 3 <= sum(one.remember is not None for one in messages) <= 5
    assert 3 <= sum(one.replaces is not None for one in messages) <= 4
    assert sum(one.update for one in messages) >= 3
    assert sum(one.needs_nothing for one in messages) >= 10


@pytest.mark.parametrize("file", DAY_FILES, ids=lambda file: file.stem)
def test_accepted_answers_are_in_the_fact_and_not_in_the_question_or_in_what_was_corrected(file):
    day = read_day(file)
    for number, message in enumerate(day.messages):
        if message.remember:
            assert message.remember.search(message.say)
        if not message.asks_memory:
            continue
        told = [day.messages[one].say for label in message.needs for one in day.sources(label, number)]
        assert any(is_right(message, say) for say in told), message.say
        assert not is_right(message, message.say), message.say
        if message.update:
            corrections = [one for one in day.messages[:number] if set(one.tells) & set(message.needs)]
            old = [one.say for one in day.messages if {c.replaces for c in corrections} & set(one.tells)]
            assert old, message.say
            assert not any(is_right(message, say) for say in old), message.say


def test_there_are_six_days_with_names_of_their_own():
    names = [day.name for day in read_days(DAYS)]
    assert len(set(names)) == len(names) >= 6


def test_a_correction_takes_the_place_of_what_it_corrects():
    said = [
        Message("w", "monday", tells=("day",)),
        Message("w", "tuesday", tells=("day2",), replaces="day"),
        Message("w", "friday", tells=("day3",), replaces="day2"),
        Message("w", "?", needs=("day",)),
    ]
    day = Day("d", "", tuple(said))
    assert day.sources("day", 1) == {0}
    assert day.sources("day", 2) == {1}
    assert day.sources("day", 3) == {2}
    assert day.sources("day2", 3) == {2}


@pytest.mark.parametrize(
    ("reply", "good"),
    [
        ("It's on the 21st.", True),
        ("On the twenty-first", True),
        ("The 14th, now 21st", False),
        ("Soon.", False),
    ],
)
def test_an_answer_needs_one_accepted_pattern_and_none_that_must_not_be(reply, good):
    assert is_right(question("21st", "twenty-first", never=["14th"]), reply) is good


def test_typographic_signs_make_no_difference():
    assert is_right(question("fred's"), "FRED\N{RIGHT SINGLE QUOTATION MARK}S")


@pytest.mark.parametrize(
    "reply",
    [
        "You have not told me your dog's name.",
        "I don't have any information about that.",
        "I'm not sure what your dog is called.",
        "You haven\N{RIGHT SINGLE QUOTATION MARK}t mentioned it.",
        "Could you please tell me more?",
        "Das weiß ich leider nicht.",
        "No lo sé.",
        "Tu ne m'as pas dit cela.",
    ],
)
def test_saying_that_one_does_not_know_is_abstaining(reply):
    assert abstains(question(told=False), reply)


@pytest.mark.parametrize("reply", ["Your dog is called Rex.", "Don't worry, I remember: Rex.", "Yes!"])
def test_a_made_up_answer_is_not_abstaining(reply):
    assert not abstains(question(told=False), reply)


def test_refusals_are_known_and_plain_replies_are_not_refusals():
    assert refuses("I'm sorry, but I can't assist with that.")
    assert refuses("As an AI language model, I have no feelings.")
    assert not refuses("I'm sorry to hear that. Get well soon!")


@pytest.mark.parametrize(
    "reply",
    [
        "[2026-11-18 06:44, in First steps] Hello",
        "Hello<|im_end|>",
        '{"name": "save_memory", "arguments": {"path": "x"}}',
        "<tool_call>",
        "⚙️【list_memory】→ nothing",
    ],
)
def test_scaffolding_is_found(reply):
    assert scaffolding(reply, "Hi")


def test_what_the_user_pasted_is_not_scaffolding_and_neither_are_lists():
    pasted = "[2026-11-18 06:44:01] started"
    assert scaffolding(f"It says {pasted}", f"What is this? {pasted}") == []
    assert scaffolding("[1] first, [x] done, a <b>bold</b> word", "Hi") == []
    assert has_leading_stamp(" [2026-11-18 06:44] Hi")
    assert not has_leading_stamp("On 2026-11-18 it rained.")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"window": "w", "say": "x", "mood": "good"}, "unknown key: mood"),
        ({"say": "x"}, "has no window"),
        ({"window": "w"}, "has no say"),
        ({"window": "w", "say": "x", "answers": ["("]}, "not a regular expression"),
        ({"window": "w", "say": "x", "needs": ["cat"]}, "needs cat, which no message before it tells"),
        ({"window": "w", "say": "x", "replaces": "cat"}, "replaces cat, which no message before it tells"),
        ({"window": "w", "say": "x", "tells": "cat"}, "tells must be a list of texts"),
        ({"window": "w", "say": "x", "told": "no"}, "told must be true or false"),
        (["w"], "is not a JSON object"),
    ],
)
def test_a_bad_file_gives_a_sentence_and_exit_code_1(tmp_path, capsys, message, sentence):
    file = written(tmp_path, message)
    with pytest.raises(BadDay, match=re.escape(sentence)):
        read_day(file)
    assert main(["--days", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("halo-weave: day.json")
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_other_bad_files_give_sentences_too(tmp_path):
    with pytest.raises(BadDay, match="There is no day in"):
        read_days(tmp_path)
    (tmp_path / "day.json").write_text("{")
    with pytest.raises(BadDay, match="cannot be read as JSON"):
        read_days(tmp_path)
    file = written(tmp_path, mood="good")
    with pytest.raises(BadDay, match="unknown key: mood"):
        read_day(file)
    with pytest.raises(BadDay, match="has no messages"):
        read_day(written(tmp_path))
    written(tmp_path, {"window": "w", "say": "x"})
    with pytest.raises(BadDay, match="There is no day named other"):
        read_days(tmp_path, "other")


def test_the_report_counts_what_came_of_the_messages():
    fact = Message("w", "My cat is Mochi.", tells=("fact",))
    kept = Message("w", "Remember 4711.", remember=re.compile("4711"))
    asked = question("mochi")
    unknown = question(told=False)
    heard = [
        Heard(fact, "[2026-11-18 06:44] Nice!", wait=1.0, read_by_llama=0.5, tokens=40, overhead=12),
        Heard(
            kept,
            "Saved.",
            wait=3.0,
            read_by_llama=1.0,
            new_entries={"Codes/Door": "The code is 4711"},
            overhead=600,
        ),
        Heard(asked, "Mochi.", found=("fact",), tokens=20),
        Heard(unknown, "", faults=["the reply is empty"]),
    ]
    plain = {"chat": [PlainReply(text, 0.1, 10) for text in ("Ok", "I can't assist", "Rex", "I don't know")]}
    found = report([Ran(Day("d", "", ()), heard, plain, ["Traceback"], 300.0)], 200.0)
    assert found["answers"] == {"product": 1.0, "chat": 0.0}
    assert found["abstained"] == {"product": 0.0, "chat": 1.0}
    assert found["refusals"] == {"product": 0, "chat": 1}
    assert found["counts"]["needed"] == (1, 2)
    assert (found["scaffolding"], found["stamps"], found["faults"]) == (1, 1, 2)
    assert (found["needless"], found["tokens"]) == (20.0, 15.0)
    assert (found["remember"], found["overwritten"]) == (1.0, 0)
    assert found["overhead_tokens"] == {"mean": 306.0, "p90": 600, "needless_max": 12}
    assert (found["first_token"]["ratio_p50"], found["first_token"]["ratio_p90"]) == (2.0, 3.0)
    assert found["rss_mb"]["ratio"] == 1.5


def test_a_refusal_or_another_path_is_no_confirmed_memory():
    kept = Message("w", "Remember 4711.", remember=re.compile("4711"))
    entries = {"Codes/Door": "The code is 4711"}
    assert not Heard(kept, "I'm sorry, but I can't assist with that.", new_entries=entries).confirmed
    assert not Heard(kept, "Saved.", overwritten=["Codes/Door"]).kept


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (90, 9)])
def test_percentiles_are_values_that_were_measured(percent, value):
    assert percentile(list(range(1, 11)), percent) == value


def test_a_server_that_is_not_there_is_a_fault_and_no_traceback():
    product = Product("http://127.0.0.1:9")
    heard = product.say(Day("d", "", (Message("w", "Hi"),)), 0)
    product.close()
    assert heard.faults
    assert heard.faults[0].startswith("no answer")


def test_mixed_days_take_turns_in_a_window_each_and_keep_their_labels_apart():
    one = Day("one", "", (Message("a", "x", tells=("cat",)), Message("b", "y", needs=("cat",))))
    two = Day("two", "", (Message("a", "z", tells=("cat",)),))
    day = mixed([one, two], None)
    assert [(message.window, message.say) for message in day.messages] == [
        ("one", "x"),
        ("two", "z"),
        ("one", "y"),
    ]
    assert day.sources(day.messages[2].needs[0], 2) == {0}
    assert len(mixed([one, two], 2).messages) == 2
