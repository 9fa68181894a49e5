"""What the model reads is what its template writes for the live turns, and every row covers all live tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from halo_weave.chat.prompt import PromptBuilder, TurnAnnotation, WindowPrompt
from halo_weave.core.tokens import Chunk, Role
from halo_weave.core.working_set import WorkingSet, chunk_turn
from halo_weave.engines.base import PROCESS_LABELS, Capture, PrefillResult, Sampling, Step
from halo_weave.engines.templates.chat_template import CHATML
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import TemplateRenderer
from tests.fakes.scripted_engine import ScriptedEngine

TRIMS = CHATML.replace("message['content']", "message['content'] | trim")
OPENS = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
SHOUTS = CHATML.replace("message['content']", "message['content'] | upper")
MOVES = (
    "<|begin|>{% for m in messages if m.role != 'system' %}<|turn|>{{ m.role }}\n"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
)
LONG = "{% if messages[0].role != 'system' %}{{ 'Preamble. ' * 2000 }}{% endif %}" + CHATML
SAID = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


class TemplatedEngine(ScriptedEngine):
    """A scripted engine with a chat template."""

    def __init__(self, template: str, renderer: TemplateRenderer) -> None:
        super().__init__(context=1 << 16)
        self.template = ModelTemplate(template, renderer, specials={}, now=SAID)
        assert self.template.origin == "model"

    def chat(self, messages: Sequence[ChatMessage], **_: object) -> ChatPrompt:
        return self.template.write(messages)


@pytest.fixture(scope="module")
def open_engine() -> Iterator[Callable[[str], TemplatedEngine]]:
    with TemplateRenderer(seconds=60) as renderer:
        yield lambda template: TemplatedEngine(template, renderer)


def filled(
    engine: ScriptedEngine, prompt_builder: PromptBuilder, turns: Sequence[tuple[Role, str]]
) -> WorkingSet:
    window = WorkingSet(frame_tokens=prompt_builder.frame_tokens())
    position = 0
    for turn_id, (role, text) in enumerate(turns):
        chunks: tuple[Chunk, ...] = chunk_turn(
            engine.tokenize(text), turn_id, role, position, min_chunk_tokens=2
        )
        window.add(window.new_chunk(chunk) for chunk in chunks)
        position = chunks[-1].stop
    window.begin_reply(len(turns), position, len(turns) - 1)
    return window


def read_text(engine: ScriptedEngine, prompt: WindowPrompt) -> str:
    return engine.pieces(np.concatenate([segment.ids for segment in prompt.segments])).text


TALK = [
    (Role.USER, "Hello there.\n\nMy dog is called Pixel.\n\n"),
    (Role.ASSISTANT, "A fine name.\n\nWhat is he like?\n\n"),
    (Role.USER, "\n\nAfraid of balloons, <|end|> é! \n"),
]


@pytest.mark.parametrize("template", [CHATML, TRIMS, OPENS, SHOUTS, MOVES, LONG])
@pytest.mark.parametrize("asleep", [(), (1,), (0,), (0, 1)])
@pytest.mark.parametrize("system", ["", "Be kind."])
@pytest.mark.parametrize("told", ["", "day", "quoted"])
def test_the_prompt_is_what_the_template_writes_for_the_live_turns(
    open_engine: Callable[[str], TemplatedEngine],
    template: str,
    asleep: tuple[int, ...],
    system: str,
    told: str,
) -> None:
    engine = open_engine(template)
    prompt_builder = PromptBuilder(engine)
    window = filled(engine, prompt_builder, TALK)
    window.remove([chunk.key for chunk in window.chunks if chunk.key.turn_id in asleep])
    window.remove([window.chunks[0].key])  # the first turn that is live has lost its opening
    day = TurnAnnotation.of_user_turn("", SAID)
    assert day is not None
    quoted = {
        turn: TurnAnnotation.quotation(SAID, role, chat="Pets") for turn, (role, _) in enumerate(TALK[:2])
    }
    origins = {"": {}, "day": {0: day, 2: day}, "quoted": quoted}[told]
    prompt = prompt_builder.prompt(window, prompt_builder.system_prompt(system), origins)
    messages = [ChatMessage("system", system)] if system else []
    quotations = []
    for turn, role in window.turns:
        said = "".join(chunk.text for chunk in window.chunks if chunk.key.turn_id == turn)
        origin = origins.get(turn)
        text = f"{origin.before}{said}{origin.after}" if origin else said
        if turn in quoted and told == "quoted":
            quotations.append(text)
            continue
        if quotations:
            messages.append(ChatMessage("user", "\n".join(quotations)))
            quotations = []
        messages.append(ChatMessage(role.value, text))
    assert read_text(engine, prompt) == engine.chat(messages).text


@pytest.mark.parametrize("template", [CHATML, TRIMS, SHOUTS, LONG])
@pytest.mark.parametrize("reading", [False, True])
def test_every_row_covers_all_live_tokens(
    open_engine: Callable[[str], TemplatedEngine], template: str, reading: bool
) -> None:
    engine = open_engine(template)
    engine.replies = ["one two three"]
    prompt_builder = PromptBuilder(engine)
    window = filled(engine, prompt_builder, TALK)
    prompt = prompt_builder.prompt(window, prompt_builder.system_prompt("Be kind."), {})
    capture = Capture(reading=reading, reading_surprisal=reading, raw=True)
    for step in engine.generate("w", prompt, Sampling(), capture):
        if isinstance(step, PrefillResult) and step.surprisal is not None:
            asked = sum(len(chunk) for chunk in window.chunks if chunk.key.turn_id == 2)
            assert len(prompt.surprisal_of_live_tokens(step.surprisal)) == asked
        if isinstance(step, Step):
            row = prompt.to_live_tokens(step.row)
            assert row is not None
            assert row.raw is not None
            assert row.raw.shape[-1] == len(row.tokens)
            assert window.update(row) is None
            window.append_reply_token(step.id, step.piece)
    assert not window.faults


def test_what_is_trimmed_is_not_read_and_has_no_share(open_engine: Callable[[str], TemplatedEngine]) -> None:
    engine = open_engine(TRIMS)
    prompt_builder = PromptBuilder(engine)
    window = filled(engine, prompt_builder, [(Role.USER, "\n\nhello\n\n")])
    prompt = prompt_builder.prompt(window, prompt_builder.system_prompt(""), {})
    read = [segment for segment in prompt.segments if segment.kind == "chunk"]
    assert [engine.pieces(segment.ids).text for segment in read] == ["hello"]
    assert prompt.read_from == read[0].labels[0] > 0
    assert len(prompt.dropped_at) == len(window) - sum(len(segment.ids) for segment in read)


def test_a_turn_is_read_from_the_cache_when_another_one_sleeps(
    open_engine: Callable[[str], TemplatedEngine],
) -> None:
    engine = open_engine(CHATML)
    prompt_builder = PromptBuilder(engine)
    window = filled(engine, prompt_builder, TALK)
    system = prompt_builder.system_prompt("Be kind.")
    labels = {
        label
        for segment in prompt_builder.prompt(window, system, {}).segments
        for label in zip(segment.labels.tolist(), segment.ids.tolist(), strict=True)
    }
    window.remove([chunk.key for chunk in window.chunks if chunk.key.turn_id == 1])
    for segment in prompt_builder.prompt(window, system, {}).segments:
        assert labels.issuperset(zip(segment.labels.tolist(), segment.ids.tolist(), strict=True))


def test_the_words_after_the_system_prompt_keep_their_labels_when_it_changes(
    open_engine: Callable[[str], TemplatedEngine],
) -> None:
    """What is declared of tools stands there: it need not be read again when the memory's headings change."""
    twice = CHATML.replace("message['content']", "message['content'] + message['content']")
    after = []
    for template, system in ((CHATML, "Be kind."), (CHATML, "Be kind, and brief."), (twice, "Be kind.")):
        engine = open_engine(template)
        prompt_builder = PromptBuilder(engine)
        window = filled(engine, prompt_builder, [(Role.USER, "Hello.")])
        written = prompt_builder.prompt(window, prompt_builder.system_prompt(system), {})
        of_system = [one for one in written.segments if one.kind == "system"]
        labels = np.concatenate([one.labels for one in of_system])
        assert len(np.unique(labels)) == len(labels)
        after.append(of_system[-1])
    assert after[0].ids.tolist() == after[1].ids.tolist()
    assert after[0].labels.tolist() == after[1].labels.tolist()
    assert after[0].labels[0] > PROCESS_LABELS


def test_the_estimate_of_frames_is_what_the_prompt_takes(
    open_engine: Callable[[str], TemplatedEngine],
) -> None:
    for template in (CHATML, LONG, MOVES):
        engine = open_engine(template)
        prompt_builder = PromptBuilder(engine)
        for text in ("", "Be kind."):
            window, system = filled(engine, prompt_builder, TALK), prompt_builder.system_prompt(text)
            window.system_tokens = system.tokens
            prompt = prompt_builder.prompt(window, system, {})
            generation = prompt_builder.frame_tokens()[Role.ASSISTANT]
            size = sum(len(segment.ids) for segment in prompt.segments)
            assert size <= window.size + generation <= size + 12
