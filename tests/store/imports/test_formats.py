"""Each program's conversations arrive with their words, speakers, dates, thoughts and branches."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from halo_weave.store.third_party.conversation import ai_parts, moment_of
from halo_weave.store.third_party.formats import formats
from tests.store.imports.conftest import NOW, heard, sample


@pytest.fixture(autouse=True)
def _clock_of_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(*when: int) -> datetime:
    return datetime(*when, tzinfo=UTC)  # type: ignore[misc, arg-type]


def windows(store):
    return {one.name: one for one in store.windows()}


def test_chatgpt(store, load):
    result = load("chatgpt.json")
    assert result.program == "ChatGPT"
    assert result.left == {
        "conversations without messages": 1,
        "custom instructions": 1,
        "images, sounds and other attachments": 1,
    }
    window = windows(store)["A lighthouse"]
    assert (window.created, window.user_name, window.ai_name) == (
        at(2024, 5, 1, 8, 0, 0, 250000),
        "User",
        "ChatGPT",
    )
    turns = heard(store, window.id)
    texts = [turn.text for turn in turns]
    assert texts[0] == "Where did I put the lighthouse key?"
    assert "You told me it hangs behind the blue door." in texts
    last = turns[-1]
    assert (last.role, last.speaker, last.text) == ("assistant", "ChatGPT", "The tower has 204 steps.")
    assert last.thoughts == "Counting steps\nTwelve floors of seventeen steps."
    assert "12 * 17" in last.tools
    assert last.tools.endswith("python: 204")
    assert turns[0].said == at(2024, 5, 1, 8, 0, 1, 250000)
    assert last.said == at(2024, 5, 1, 8, 1, 0, 250000)  # it has no time: that of the message before it


def test_claude(store, load):
    assert load("claude.json").left == {"attachments without text": 1}
    turns = heard(store, windows(store)["Garden plans"].id)
    assert turns[0].text == "What grows beside tomatoes?\n\nplan.txt:\nBed three lies in the shade."
    assert turns[0].said == at(2025, 3, 2, 9, 0, 1, 123456)
    assert turns[1][1:2] + turns[1][3:] == (
        "Claude",
        "Basil grows well beside tomatoes.",
        "Basil is the classic.",
        'web_search({"query": "companions"})\n\nBasil, marigold.',
    )
    assert [turn.text for turn in heard(store, windows(store)["Claude"].id)] == [
        "Older exports have no parents.",
        "They are one line.",
    ]


def test_sillytavern(store, load):
    assert load("sillytavern.jsonl").left == {"hidden messages": 1}
    window = windows(store)["Captain Brill"]
    assert (window.user_name, window.ai_name) == ("Mara", "Captain Brill")
    turns = [turn for turn in heard(store) if turn.text not in ("Who are you?", "I lost it.")]
    assert [(turn.speaker, turn.text, turn.said) for turn in turns] == [
        ("Captain Brill", "Welcome aboard, Mara.", at(2024, 7, 12, 1, 31)),
        ("Mara", "Where is the sextant, captain?", at(2024, 7, 12, 1, 32, 5, 682000)),
        ("Captain Brill", "In the green chest.", at(2024, 7, 12, 1, 33)),
    ]
    assert turns[-1].thoughts == "She means the brass one."


def test_sillytavern_without_its_first_line(store, load):
    load(b"\n".join(sample("sillytavern.jsonl").splitlines()[1:]))
    [window] = store.windows()
    assert (window.name, window.ai_name) == ("Captain Brill", "Captain Brill")
    assert heard(store)[-1].text == "In the green chest."


def test_open_webui(store, load):
    load("openwebui.json")
    turns = heard(store)
    answer = next(turn for turn in turns if turn.speaker == "Llama 3")
    assert answer.text == "By the sun and by scent."
    assert answer.thoughts == "They use the sun & scent."
    assert answer.tools == 'lookup("{}")\n"waggle"'
    assert turns[-1].text == "Thank you."
    assert turns[-1].said == at(2025, 1, 1, 0, 1, 40)


def test_koboldai_lite(store, load):
    assert load("koboldlite.json").left == {"texts of memory, author's note and world info": 1}
    assert [(turn.role, turn.speaker, turn.text) for turn in heard(store)] == [
        ("user", "Mara", "Is the bridge open?"),
        ("assistant", "Old Tom", "Not before noon."),
        ("user", "Mara", "And the ferry?"),
        ("assistant", "Old Tom", "The ferry leaves at nine."),
        ("assistant", "Nell", "At ten, Tom."),
    ]


def test_koboldai_lite_with_marks(store, load):
    load("koboldlite-instruct.json")
    turns = heard(store)
    assert [turn.role for turn in turns] == ["user", "assistant"] * 2
    assert (turns[-1].text, turns[-1].thoughts) == ("The Ebro.", "Rivers of the south.")
    assert {turn.said for turn in turns} == {NOW}  # the file has no times


def test_koboldai_lite_without_its_settings(store, load):
    spoken = "\nUser: Hello.\nOld Tom: Good day.\nUser: Is it late?\nOld Tom: It is: ten."
    load({"gamestarted": True, "prompt": "", "actions": [spoken]})
    load({"prompt": "\n### Instruction:\nSing.\n### Response:\n", "actions": ["La la."], "savedsettings": {}})
    assert [(turn.speaker, turn.text) for turn in heard(store)] == [
        ("User", "Hello."),
        ("Old Tom", "Good day."),
        ("User", "Is it late?"),
        ("Old Tom", "It is: ten."),
        ("User", "Sing."),
        ("AI", "La la."),
    ]


def test_koboldai_lite_with_tags_of_its_own(store, load):
    settings = {
        "instruct_starttag": "\\n<|user|>\\n",
        "instruct_endtag": "\\n<|bot|>\\n",
        "chatopponent": "Bot",
    }
    load({"prompt": "\n<|user|>\nSing.\n<|bot|>\n", "actions": ["La la."], "savedsettings": settings})
    assert [turn.text for turn in heard(store)] == ["Sing.", "La la."]


def test_lm_studio(store, load):
    assert load("lmstudio.json").left == {"system messages": 1}
    turns = heard(store)
    assert turns[0].said == at(2024, 8, 12, 21, 43, 20)
    assert (turns[-1].speaker, turns[-1].text) == ("qwen", "Shorten the pendulum a little.")
    assert turns[-1].thoughts == "The pendulum is too long."
    assert turns[-1].said == at(2024, 8, 12, 21, 49, 1, 13000)
    assert store.windows()[0].system_prompt == ""


def test_jan(store, load):
    load("jan.jsonl")
    turns = heard(store)
    assert [(turn.speaker, turn.text, turn.thoughts) for turn in turns] == [
        ("User", "Which yarn is for socks?", ""),
        ("Jan", "Wool with some nylon.", "It must not wear out."),
    ]
    assert turns[1].said == at(2024, 10, 27, 3, 33, 24)


def test_text_generation_webui(store, load):
    load("textgen.json")
    turns = heard(store)
    assert turns[0].text == "How can I help you today?"
    assert turns[1].text == "Is 3 < 4 & true?"
    assert turns[1].said == at(2025, 2, 3, 10, 20)
    assert (turns[-1].text, turns[-1].thoughts) == ("Still.", "Same.")


def test_what_was_escaped_twice_is_read_as_it_was_said(store, load):
    load({"internal": [["a &lt; b", "It&#x27;s so."]], "visible": [["a &lt; b", "It&#x27;s so."]]})
    assert [turn.text for turn in heard(store)] == ["a < b", "It's so."]


def test_a_character_card_becomes_a_window_with_its_first_words(store, load):
    assert load("card.json").left == {}
    [window] = store.windows()
    assert (window.name, window.ai_name) == ("Brill", "Brill")
    prompt = window.system_prompt
    assert prompt.startswith("Stay in character.\n\nBrill is a captain who likes User.")
    assert "Scenario:\nA ship at night." in prompt
    assert heard(store)[-1].text == "Ahoy, User!"


def test_the_first_version_of_cards_is_known_too(store, load):
    load(
        {
            "name": "Nell",
            "description": "A smith.",
            "personality": "",
            "scenario": "",
            "first_mes": "Aye?",
            "mes_example": "",
        }
    )
    assert store.windows()[0].system_prompt == "A smith."


def test_the_current_export_of_the_prototype(store, load):
    result = load("prototype-current.json")
    assert (result.program, result.notes, result.turns) == ("Halo Weave's prototype", 1, 4)
    assert "renumbered" in result.ids
    assert "Positions are those of the file" in result.ids
    turns = heard(store)
    assert [(turn.role, turn.speaker, turn.text) for turn in turns] == [
        ("system", "", "You are kind."),
        ("user", "Mara", "The key hangs behind the blue door."),
        ("assistant", "Halo", "I will remember it."),
        ("user", "User", "Where is it?"),
    ]
    assert turns[1].said == at(2025, 12, 29, 10, 20, 30)
    assert store.note("notes.json").content["topics"] == {"key": "blue door"}
    first = store.turn(2)[0]
    assert first.chunk.start == 15  # its place in the file, after the marks
    assert load("prototype-current.json").known_turns == 4


def test_every_format_is_registered_by_its_file(load):
    assert [one.NAME for one in formats()] == [
        "character cards",
        "ChatGPT",
        "Claude",
        "Jan",
        "KoboldAI Lite",
        "LM Studio",
        "Open WebUI",
        "SillyTavern",
        "text-generation-webui",
    ]


def test_a_list_of_conversations_may_stand_in_an_object(store, load):
    load({"version": 2, "conversations": json.loads(sample("claude.json"))})
    assert len(store.windows()) == 2


def test_cards_of_the_oldest_form(store, load):
    load(
        {
            "char_name": "Nell",
            "char_persona": "A smith.",
            "char_greeting": "Aye?",
            "world_scenario": "",
            "example_dialogue": "",
        }
    )
    assert (store.windows()[0].name, store.windows()[0].system_prompt) == ("Nell", "A smith.")


@pytest.mark.parametrize(("written", "meant"), [
    (1714550400, at(2024, 5, 1, 8)), (1714550400.5, at(2024, 5, 1, 8, 0, 0, 500000)),
    (1714550400000, at(2024, 5, 1, 8)), ("1714550400000", at(2024, 5, 1, 8)),
    (1714550400000000, at(2024, 5, 1, 8)), (1714550400000000000, at(2024, 5, 1, 8)),
    ("2024-05-01T08:00:00Z", at(2024, 5, 1, 8)), ("2024-05-01T10:00:00+02:00", at(2024, 5, 1, 8)),
    ("2024-05-01 08:00:00", at(2024, 5, 1, 8)), ("2024-07-12@01h31m37s123ms", at(2024, 7, 12, 1, 31, 37, 123000)),
    ("2024-07-12@01h31m37s", at(2024, 7, 12, 1, 31, 37)), ("2024-6-5 @14h 56m 50s 682ms", at(2024, 6, 5, 14, 56, 50, 682000)),
    ("June 19, 2023 2:20pm", at(2023, 6, 19, 14, 20)), ("June 19, 2023 12:05am", at(2023, 6, 19, 0, 5)),
    ("Feb 03, 2025 10:20", at(2025, 2, 3, 10, 20)),
    (None, None), (True, None), ("", None), ("soon", None), (-5, None), (0, None), (1e300, None), (float("nan"), None),
    ("9" * 60, None), ("2024-13-45", None), ("June 99, 2023 2:20pm", None), ({}, None), ("0001-01-01", None),
])  # fmt: skip
def test_times_in_every_form(written, meant):
    assert moment_of(written) == meant


def test_a_time_without_a_zone_is_local(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    assert moment_of("June 19, 2023 2:20pm") == at(2023, 6, 19, 18, 20)


@pytest.mark.parametrize(("text", "parts"), [
    ("Plain.", [("answer", "Plain.")]),
    ("<think>Hm.</think>Yes.", [("thought", "Hm."), ("answer", "Yes.")]),
    ("Hm.</think>\n\nYes.", [("thought", "Hm."), ("answer", "Yes.")]),
    ("<think>It never ends", [("thought", "It never ends")]),
    ('<details type="reasoning" done="true">\n<summary>Thought</summary>\n&gt; Hm &lt;b&gt;.\n&gt; So.\n</details>\nYes.',
     [("thought", "Hm <b>.\nSo."), ("answer", "Yes.")]),
    ("Use <details> for this.", [("answer", "Use <details> for this.")]),
    ('<details type="reasoning" done="true"', [("answer", '<details type="reasoning" done="true"')]),
    ("a <think> in the text", [("answer", "a <think> in the text")]),
])  # fmt: skip
def test_thoughts_are_told_apart(text, parts):
    assert [tuple(part) for part in ai_parts(text)] == parts
