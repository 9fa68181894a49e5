"""Thoughts of a reasoning model: told apart while they stream, stored as their own kind, asleep after their turn."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from halo_weave.chat import events
from halo_weave.chat.event_hub import NumberedEvent
from halo_weave.chat.reply import ReplyParser
from halo_weave.chat.reply_storage import recover_drafts
from halo_weave.chat.views import PrunedGap
from halo_weave.core.pruning import PruneReason
from halo_weave.engines.templates.thoughts import ThoughtMarks
from halo_weave.server.events import render_event
from halo_weave.store.records import Draft, ExportFilter
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, of
from tests.engines.templates.samples import CHANNELS, OPENS_THOUGHT, THINKS
from tests.fakes.scripted_engine import ScriptedEngine

NOW = datetime(2026, 5, 4, tzinfo=UTC)
ROOMY = {**SMALL, "max_new_tokens": 200, "max_context_tokens": 2_000, "tools": "off"}
THOUGHT, ANSWER = "The user greets.\nA lighthouse keeper would wave.", "Ahoy, friend."
WAYS = {
    "marks": (THINKS, f"<think>\n{THOUGHT}</think>\n\n{ANSWER}"),
    "opened by the prompt": (OPENS_THOUGHT, f"{THOUGHT}</think>\n\n{ANSWER}"),
    "channels": (
        CHANNELS,
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}",
    ),
}


@pytest.fixture(params=WAYS)
def way(request) -> tuple[str, str]:
    return WAYS[request.param]


def thinker(assembled, template: str, *replies: str, **settings: object):
    weave = assembled(ScriptedEngine(replies, template=template))
    return weave, weave.windows.create("one", settings={**ROOMY, **settings}).id


def shown(turn: list[events.TurnEvent], *, thought: bool) -> str:
    return "".join(one.text for one in of(events.TokenGenerated, turn) if one.thought is thought)


def test_thought_and_answer_are_told_apart_while_they_stream(assembled, way):
    weave, window = thinker(assembled, *way)
    turn = list(weave.turns.steps(window, "Hello."))
    assert shown(turn, thought=True).strip() == THOUGHT
    assert shown(turn, thought=False) == ANSWER
    assert (
        b"".join(one.piece for one in of(events.TokenGenerated, turn)).decode() == way[1]
    )  # nothing is lost
    positions = [one.position for one in of(events.TokenGenerated, turn)]
    assert positions == list(range(positions[0], positions[0] + len(positions)))
    assert turn[-1].stats["thought_tokens"] > 0
    assert turn[-1].stats["only_thought"] is False


def test_a_thought_is_a_chunk_of_its_own_kind_and_sleeps_when_its_turn_is_over(assembled, way):
    weave, window = thinker(assembled, *way)
    turn = list(weave.turns.steps(window, "Hello."))
    (spoken,) = of(events.ReplyStored, turn)
    assert [one.thought for one in spoken.chunks] == [True, False]  # live until here, in time order
    thought, answer = spoken.chunks
    assert thought.chunk.text.strip() == THOUGHT
    assert answer.chunk.text == ANSWER
    assert answer.key.chunk_id == 0  # the opening of the answer is the turn's anchor
    (slept,) = of(events.ChunksPruned, turn)
    assert [(one.key, one.why) for one in slept.chunks] == [(thought.key, PruneReason.TURN_OVER)]
    context = weave.windows.context(window)
    assert [one.key for one in context.turns[-1].chunks] == [answer.key]
    assert context.turns[-1].chunks[0].gap == PrunedGap(1, thought.tokens)
    assert context.turns[-1].chunks[0].thoughts == 1
    assert weave.runtime.store.chunk(thought.key).tags == ("thought",)


def test_the_next_turn_is_read_as_the_template_writes_past_answers(assembled, way):
    template, reply = way
    weave, window = thinker(assembled, template, reply, reply)
    list(weave.turns.steps(window, "Hello."))
    seen = []
    weave.engine.answer = lambda prompt: seen.append(prompt) or "Ok."
    weave.engine.replies.clear()
    turn = list(weave.turns.steps(window, "And again."))
    assert THOUGHT not in seen[0]
    assert ANSWER in seen[0]
    read = of(events.PrefillFinished, turn)[0]
    # All that was said is in the cache still, the thought has left it as a hole: only frames and the new turn are computed.
    new = len(weave.engine.tokenize(seen[0].split(ANSWER)[1]).ids)
    assert read.computed <= new + 6


def test_a_reply_in_progress_shows_thoughts_and_no_marks(assembled, way):
    weave, window = thinker(assembled, *way)
    contexts = []
    for event in weave.turns.steps(window, "Hello."):
        if isinstance(event, events.TokenGenerated):
            contexts.append(weave.windows.context(window).reply)
    last = contexts[-1]
    assert len(last.text_pieces) == len(last.brightness) == len(last.tool) == len(last.thought)
    told = list(zip(last.text_pieces, last.thought, strict=True))
    assert "".join(text for text, thought in told if thought).strip() == THOUGHT
    assert "".join(text for text, thought in told if not thought) == ANSWER


def test_brightness_is_told_of_as_many_tokens_as_were_shown(assembled, way, monkeypatch):
    monkeypatch.setattr("halo_weave.chat.turn.BRIGHTNESS_INTERVAL", -1.0)
    weave, window = thinker(assembled, *way)
    told = heard = 0
    for event in weave.turns.steps(window, "Hello."):
        if isinstance(event, events.MessageStored):
            heard = sum(one.tokens for one in event.chunks)
        told += isinstance(event, events.TokenGenerated)
        if isinstance(event, events.ReplyStored):
            break
        if (
            isinstance(event, events.BrightnessChanged)
            and weave.runtime.window_for_reading(window).working_set.reply
        ):
            assert heard <= len(event.brightness) <= heard + told + 1


@pytest.mark.parametrize("wanted", [False, True])
def test_thoughts_wake_up_only_where_that_is_wanted(assembled, way, wanted):
    template, reply = way
    weave, window = thinker(assembled, template, reply, "Yes.", recall_thoughts=wanted)
    list(weave.turns.steps(window, "Hello."))
    turn = list(weave.turns.steps(window, "Who is a lighthouse keeper?"))
    woken = [one.chunk.text for event in of(events.ChunksResurrected, turn) for one in event.chunks]
    assert any("lighthouse" in text for text in woken) is wanted


def test_a_woken_thought_is_read_again(assembled):
    weave, window = thinker(assembled, *WAYS["marks"])
    list(weave.turns.steps(window, "Hello."))
    turn = weave.windows.context(window).turns[-1].turn_id
    thought = next(one.key for one in weave.runtime.store.turn(turn) if one.tags == ("thought",))
    weave.chunks.resurrect(window, thought)
    seen = []
    weave.engine.answer = lambda prompt: seen.append(prompt) or "Ok."
    list(weave.turns.steps(window, "And?"))
    assert "A lighthouse keeper would wave." in seen[0]
    assert weave.windows.context(window).turns[1].chunks[0].thought


def test_a_reply_that_is_cut_within_its_thought_says_so(assembled, way):
    weave, window = thinker(assembled, *way, max_new_tokens=20)
    begun = weave.turns.send_message(window, "Hello.").result()
    turn = list(weave.turns.follow(window, begun.last_event))
    assert turn[-1].reason == "length"
    assert turn[-1].stats["only_thought"] is True
    assert weave.windows.context(window).last_turn["only_thought"] is True
    assert [one.role for one in weave.windows.context(window).turns] == ["user"]
    weave.engine.replies += ["Still here."]
    assert list(weave.turns.steps(window, "And now?"))[-1].reason == "eos"


def test_effort_reaches_the_template(assembled):
    weave, window = thinker(assembled, THINKS, "Hi.", effort="off")
    seen = []
    weave.engine.replies.clear()
    weave.engine.answer = lambda prompt: seen.append(prompt) or "Hi."
    list(weave.turns.steps(window, "Hello."))
    weave.windows.change(window, settings={"effort": None})
    list(weave.turns.steps(window, "Hello?"))
    assert seen[0].endswith("<think>\n\n</think>\n\n")
    assert seen[1].endswith("assistant\n")


def test_export_import_and_restart_keep_the_kind(assembled, way, tmp_path):
    weave, window = thinker(assembled, *way)
    list(weave.turns.steps(window, "Hello."))
    turn = weave.windows.context(window).turns[-1].turn_id
    kept = [(one.key, one.tags, one.chunk.text) for one in weave.runtime.store.turn(turn)]
    assert sorted(tags for _, tags, _ in kept) == [(), ("thought",)]
    path = tmp_path / "export.json"
    with path.open("w") as target:
        weave.memory.export(target.write, subset=ExportFilter(), vectors=False)
    with SqliteStore(tmp_path / "other.sqlite") as other:
        other.import_file(path, now=NOW)
        assert [(one.key, one.tags, one.chunk.text) for one in other.turn(turn)] == kept
        assert not other.verify()
    weave.close()
    again = assembled(ScriptedEngine(template=way[0]))
    assert [(one.key, one.tags, one.chunk.text) for one in again.runtime.store.turn(turn)] == kept
    assert again.windows.context(window).turns[-1].chunks[0].thoughts == 1


def test_a_reply_that_a_killed_process_left_is_split_too(assembled, way):
    template, reply = way
    weave, window = thinker(assembled, template)
    store, engine = weave.runtime.store, weave.engine
    ids = store.reserve(400)
    list(weave.turns.steps(window, "Hello."))
    tokens = engine.tokenize(reply)
    store.save_drafts([Draft(window, ids.assistant_turn, ids.start, None, tokens, "scripted", NOW, NOW)])
    recover_drafts(weave.runtime, held=window)
    found = {one.tags: one.chunk.text.strip() for one in store.turn(ids.assistant_turn)}
    assert found == {("cut", "thought"): THOUGHT, ("cut",): ANSWER}


# Tokens that a mark cuts


def read(pieces: list[bytes], marks: ThoughtMarks, *, opened: bool = False) -> ReplyParser:
    reader = ReplyParser(100, marks)
    reader.begin(opened)
    for i, piece in enumerate(pieces):
        reader.feed(i, piece)
    return reader


def test_a_token_that_a_mark_cuts_is_kept_as_what_is_left_of_it():
    engine = ScriptedEngine()
    pieces = [b"<thi", b"nk>So", b" be", b" it", b".</", b"think", b">Yes", b", sir."]
    parts = read(pieces, ThoughtMarks()).parts(engine.tokenize)
    assert [(part.tokens.text, part.tag) for part in parts] == [("So be it.", "thought"), ("Yes, sir.", "")]
    for part in parts:
        assert len(part.sources) == len(part.tokens)
    # In time order, without overlap: what takes more tokens has taken places of the marks.
    assert parts[0].start + len(parts[0].tokens) <= parts[1].start


def test_a_mark_within_an_answer_is_a_quotation():
    parts = read([b"Write ", b"<think>", b" first."], ThoughtMarks()).parts(ScriptedEngine().tokenize)
    assert [(part.tokens.text, part.tag) for part in parts] == [("Write <think> first.", "")]


def test_what_looks_like_a_mark_at_the_end_is_shown():
    reader = read([b"2 ", b"<"], ThoughtMarks(answer_opens=("<a>",), answer_close="</a>"))
    assert [token.text for token in reader.known] == ["2 "]
    assert [token.text for token in reader.finish()] == ["<"]


def test_the_page_is_told_which_tokens_are_thoughts(assembled, way):
    weave, window = thinker(assembled, *way)
    turn = list(weave.turns.steps(window, "Hello."))
    token = next(one for one in of(events.TokenGenerated, turn) if one.thought)
    data = json.loads(render_event(NumberedEvent("1-1", token)).split(b"data: ")[1])
    assert data["thought"] is True
