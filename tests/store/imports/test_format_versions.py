"""What programs write in versions and cases beyond the plain samples: each arrives with nothing lost and no marks in it."""

from __future__ import annotations

import json

import pytest

from halo_weave.store.third_party.conversation import ai_parts
from tests.store.imports.conftest import heard


def lines(*values: dict) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


def webui(**answer: object) -> list[dict]:
    """One question and its answer, as Open WebUI exports them."""
    messages = {
        "u": {"id": "u", "parentId": None, "childrenIds": ["a"], "role": "user", "content": "Hi?", "timestamp": 1735689600},
        "a": {"id": "a", "parentId": "u", "childrenIds": [], "role": "assistant", "model": "m", "timestamp": 1735689601}
        | answer,
    }  # fmt: skip
    chat = {"title": "T", "history": {"currentId": "a", "messages": messages}}
    return [{"id": "c", "title": "T", "chat": chat, "created_at": 1735689600}]


def test_answers_that_open_webui_keeps_step_by_step_arrive(store, load):
    steps = [
        {"type": "reasoning", "summary": None, "content": [{"type": "output_text", "text": "Look it up."}]},
        {"type": "function_call", "name": "find", "arguments": '{"q": "bees"}', "call_id": "1"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "waggle"}],
        },
        {"type": "message", "content": [{"type": "output_text", "text": "They dance."}]},
    ]
    load(webui(content="", output=steps))
    answer = heard(store)[-1]
    assert (answer.text, answer.thoughts) == ("They dance.", "Look it up.")
    assert answer.tools == 'find({"q": "bees"})\n\nwaggle'


def test_an_answer_of_open_webui_that_stands_in_both_places_arrives_once(store, load):
    steps = [{"type": "message", "content": [{"type": "output_text", "text": "They dance."}]}]
    load(webui(content="They dance.", output=steps))
    assert heard(store)[-1].text == "They dance."


def test_a_failed_answer_of_open_webui_is_told(store, load):
    result = load(webui(content="", error={"content": "no model"}))
    assert result.left == {"empty messages": 1}
    assert [turn.text for turn in heard(store)] == ["Hi?"]


def test_parts_of_a_message_that_are_pictures_are_told(store, load):
    chats = webui(content="Nice.")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    chats[0]["chat"]["history"]["messages"]["u"]["content"] = [{"type": "text", "text": "Look!"}, picture]
    assert load(chats).left == {"images, sounds and other attachments": 1}
    assert heard(store)[0].text == "Look!"


def claude(*messages: dict) -> list[dict]:
    return [{"uuid": "c", "name": "", "created_at": "2025-03-02T09:00:00Z", "chat_messages": list(messages)}]


def spoken(id: str, parent: str | None, sender: str, second: int, *content: dict, **more: object) -> dict:
    when = f"2025-03-02T09:00:{second:02}.000000Z"
    return {"uuid": id, "parent_message_uuid": parent, "sender": sender, "created_at": when, "text": "", "content": [*content], **more}  # fmt: skip


def said(text: str) -> dict:
    return {"type": "text", "text": text, "citations": [], "start_timestamp": None, "flags": None}


def test_what_claudes_page_cannot_show_does_not_stand_in_the_answer(store, load):
    unshown = "\n```\nThis block is not supported on your current device yet.\n```\n"
    tool = {"type": "tool_use", "name": "artifacts", "input": {"command": "create", "title": "Poem"}}
    load(
        claude(
            spoken("1", None, "human", 1, said("Write a poem.")),
            spoken("2", "1", "assistant", 2, tool, text=unshown),
        )
    )
    answer = heard(store)[-1]
    assert answer.text == ""
    assert answer.tools == 'artifacts({"command": "create", "title": "Poem"})'


def test_the_newest_branch_of_claude_is_the_current_one_wherever_it_stands(store, load):
    root = "00000000-0000-4000-8000-000000000000"
    load(
        claude(
            spoken("1", root, "human", 1, said("Name a tree.")),
            spoken("3", "1", "assistant", 9, said("Oak.")),
            spoken("2", "1", "assistant", 2, said("Elm.")),
        )
    )
    [window] = store.windows()
    assert [one.id for one in store.branch(window.id)][-1] == window.head
    assert store.live(window.id)[-1].chunk.text == "Oak."


def test_old_thoughts_of_claude_are_thoughts():
    assert [tuple(part) for part in ai_parts("<antThinking>Hm.</antThinking>Yes.")] == [
        ("thought", "Hm."),
        ("answer", "Yes."),
    ]


@pytest.mark.parametrize(("text", "parts"), [
    ("<|channel|>analysis<|message|>Count.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
     [("thought", "Count."), ("answer", "Four.")]),
    ("<|channel|>analysis<|message|>Count.<|start|>assistant<|channel|>final<|message|>Four.",
     [("thought", "Count."), ("answer", "Four.")]),
    ("<|channel|>analysis<|message|>It never ends", [("thought", "It never ends")]),
    ("[THINK]Hm.[/THINK]Yes.", [("thought", "Hm."), ("answer", "Yes.")]),
    ("[THINK] is a mark.", [("answer", "[THINK] is a mark.")]),
    ("<seed:think>Hm.</seed:think>Yes.", [("thought", "Hm."), ("answer", "Yes.")]),
])  # fmt: skip
def test_thoughts_in_channels_and_other_marks_are_told_apart(text, parts):
    assert [tuple(part) for part in ai_parts(text)] == parts


def gpt(*contents: tuple[str, dict]) -> list[dict]:
    nodes = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    for place, (role, content) in enumerate(contents):
        message = {
            "author": {"role": role, "name": None, "metadata": {}},
            "create_time": 1.7e9 + place,
            "content": content,
        }
        nodes[f"n{place}"] = {"id": f"n{place}", "message": message, "parent": f"n{place - 1}" if place else "root", "children": []}  # fmt: skip
    return [{"title": "T", "id": "c", "mapping": nodes, "current_node": f"n{len(contents) - 1}"}]


def test_chatgpts_citations_and_names_leave_the_words_alone(store, load):
    text = 'The tower\ue200cite\ue202turn0search3\ue201 is in \ue200entity\ue202["city", "Paris", "capital"]\ue201.'
    load(
        gpt(
            ("user", {"content_type": "text", "parts": ["Where?"]}),
            ("assistant", {"content_type": "text", "parts": [text]}),
        )
    )
    assert heard(store)[-1].text == "The tower is in Paris."


def test_what_was_spoken_to_chatgpt_is_taken_as_words(store, load):
    spoken_words = {
        "content_type": "audio_transcription",
        "text": "Good morning.",
        "direction": "in",
        "decoding_id": None,
    }
    sound = {
        "content_type": "real_time_user_audio_video_asset_pointer",
        "audio_asset_pointer": {"format": "wav"},
    }
    load(gpt(("user", {"content_type": "multimodal_text", "parts": [spoken_words, sound]})))
    assert heard(store)[0].text == "Good morning."


def test_chats_of_a_group_keep_each_speaker(store, load):
    load(
        lines(
            {"chat_metadata": {"integrity": "x"}, "user_name": "unused", "character_name": "unused"},
            {"name": "Mara", "is_user": True, "is_system": False, "send_date": "2026-01-02T03:04:05.678Z", "mes": "Who is there?", "extra": {}},
            {"name": "Brill", "is_user": False, "send_date": "2026-01-02T03:04:06.000Z", "mes": "I am.", "extra": {"gen_id": 1}, "original_avatar": "b.png"},
            {"name": "Nell", "is_user": False, "send_date": "2026-01-02T03:04:07.000Z", "mes": "And I.", "extra": {"gen_id": 1}},
        )
    )  # fmt: skip
    assert [(turn.speaker, turn.text) for turn in heard(store)] == [
        ("Mara", "Who is there?"),
        ("Brill", "I am."),
        ("Nell", "And I."),
    ]


def test_tools_that_a_character_called_are_part_of_its_answer(store, load):
    call = {"id": "1", "displayName": "Dice", "name": "roll", "parameters": '{"sides": 6}', "result": "4"}
    result = load(
        lines(
            {"chat_metadata": {}},
            {"name": "Mara", "is_user": True, "mes": "Roll."},
            {"name": "SillyTavern System", "is_system": True, "is_user": False, "mes": "Tool calls: roll", "extra": {"tool_invocations": [call]}},
            {"name": "Brill", "is_user": False, "mes": "A four."},
        )
    )  # fmt: skip
    assert result.left == {}
    assert (heard(store)[-1].text, heard(store)[-1].tools) == ("A four.", 'roll({"sides": 6})\n4')


def test_words_that_a_site_puts_into_an_object_are_found(store, load):
    load(
        lines(
            {"user_name": "Mara", "character_name": "Brill"},
            {"name": "Brill", "is_user": False, "mes": {"message": "Ahoy."}, "swipes": [{"message": "Ahoy."}, {"message": "Hm."}], "swipe_id": 0},
        )
    )  # fmt: skip
    assert [turn.text for turn in heard(store)] == ["Ahoy."]
    assert [one.aside for one in store.followers(0, store.windows()[0].id)] == [True, False]


def test_tools_of_jan_arrive_in_the_answer(store, load):
    call = {
        "type": "tool_call",
        "tool_call_id": "1",
        "tool_name": "clock",
        "input": {"zone": "UTC"},
        "output": "noon",
    }
    text = {"type": "text", "text": {"value": "It is noon.", "annotations": []}}
    about = {"object": "thread.message", "thread_id": "t", "status": "ready", "created_at": 1730000000000}
    load(lines({**about, "id": "1", "role": "assistant", "content": [call, text]}))
    assert (heard(store)[0].text, heard(store)[0].tools) == ("It is noon.", 'clock({"zone": "UTC"})\nnoon')


def test_pictures_in_a_story_of_koboldai_lite_are_told_and_taken_out(store, load):
    save = {
        "prompt": "\n{{[INPUT]}}\nDraw it.\n{{[OUTPUT]}}\n",
        "actions": ["Here.\n[<|p|n3|p|>]", "[<|d|data:image/png;base64,AA==|d|>]"],
    }
    assert load(save).left == {"images, sounds and other attachments": 2}
    assert [turn.text for turn in heard(store)] == ["Draw it.", "Here."]


def test_versions_of_lm_studio_may_be_wrapped(store, load):
    user = {"singleStep": {"role": "user", "content": [{"type": "text", "text": "Tick?"}]}}
    reply = {
        "multiStep": {"steps": [{"type": "contentBlock", "content": [{"type": "text", "text": "Tock."}]}]}
    }
    messages = [{"versions": [one], "currentlySelected": 0} for one in (user, reply)]
    load({"name": "Clock", "createdAt": 1723500000000, "messages": messages})
    assert [(turn.role, turn.text) for turn in heard(store)] == [("user", "Tick?"), ("assistant", "Tock.")]


def test_the_prototypes_oldest_export_has_marks_without_text(store, load):
    turns = [("system", "You", " are kind."), ("user", "Hello", " there."), ("assistant", "Good", " day.")]
    tokens: list[dict] = []
    for turn, (role, *words) in enumerate(turns):
        for place, text in enumerate(["", role, "\n", *words, "", "\n"]):
            about = {
                "token_id": 7,
                "position": len(tokens),
                "turn_id": turn,
                "sentence_id": int(place > 2),
                "role": role,
            }
            tokens.append({**about, "text": text, "brightness": 255, "deleted": turn == 1})
    load({"tokens": tokens})
    assert [(turn.role, turn.text) for turn in heard(store)] == [
        ("system", "You are kind."),
        ("user", "Hello there."),
        ("assistant", "Good day."),
    ]


def card(**more: object) -> dict:
    return {
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {"name": "Brill", "description": "A captain.", "first_mes": "Ahoy!", **more},
    }


def test_the_book_of_a_character_sleeps_until_it_is_spoken_of(store, load):
    entries = [
        {"keys": ["Petrel", "ship"], "content": "The ship of {{char}} leaks.", "enabled": True},
        {"keys": ["always"], "content": "It is winter.", "constant": True},
        {"keys": ["off"], "content": "Never told.", "enabled": False},
        {"keys": [], "content": "@@depth 4\nThe cook is deaf."},
    ]
    result = load(card(character_book={"name": "", "entries": entries}))
    assert result.left == {"entries of a character book that are empty or switched off": 1}
    [window] = store.windows()
    assert window.system_prompt == "A captain.\n\nIt is winter."
    book, greeting = heard(store)
    assert (book.speaker, book.text) == (
        "Brill's book",
        "Petrel, ship: The ship of Brill leaks.\n\nThe cook is deaf.",
    )
    assert [one.chunk.text for one in store.live(window.id)] == ["Ahoy!"]
    assert greeting.text == "Ahoy!"
    assert store.window_stats(window.id).pruned_chunks == 2  # each entry wakes up by itself


def test_a_book_in_the_form_of_sillytaverns_worlds_is_read_too(store, load):
    load(card(character_book={"entries": {"0": {"key": ["Petrel"], "content": "A ship.", "disable": False}}}))
    assert heard(store)[0].text == "Petrel: A ship."


def test_odd_books_do_no_harm(load):
    for book in (
        None,
        [],
        {"entries": [None, 7, {"content": 5}, {"content": "x", "keys": "no list"}]},
        {"entries": "x"},
    ):
        load(card(character_book=book))


def test_files_that_were_shown_to_text_generation_webui_are_part_of_the_message(store, load):
    files = [
        {"name": "plan.pdf", "type": "application/pdf", "content": "Bed three."},
        {"name": "a.png", "type": "image", "image_data": "AA=="},
    ]
    chat = {
        "internal": [["Look.", "I see."]],
        "visible": [["Look.", "I see."]],
        "metadata": {"user_0": {"attachments": files}},
    }
    assert load(chat).left == {"attachments without text": 1}
    assert heard(store)[0].text == "Look.\n\nplan.pdf:\nBed three."
