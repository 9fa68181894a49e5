"""The template of one model: its own if it can be used, else ChatML, with the reason as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from halo_weave.templates.chat import ChatTemplate
from halo_weave.templates.facts import TemplateFacts, learn_facts
from halo_weave.templates.messages import ChatMessage, ChatPrompt, Piece
from halo_weave.templates.renderer import TemplateRenderer, TemplateUnusable


class ModelTemplate:
    """Writes every conversation, even if the template in the model's file cannot be used."""

    def __init__(
        self,
        source: str | None,
        renderer: TemplateRenderer,
        *,
        specials: Mapping[str, str],
        adds_bos: bool = False,
        now: datetime,
    ) -> None:
        """`specials`: `bos_token`, `eos_token` and others as texts. `adds_bos` counts for ChatML alone: a template that
        wants the token writes it."""
        self.origin: Literal["model", "chatml"] = "chatml"
        self.reason = ""  # why the model's own template is not used
        self.facts = TemplateFacts()
        self.source, self.words, self.adds_bos = source or "", dict(specials), adds_bos
        self._begin = specials.get("bos_token", "") if adds_bos else ""
        self._template: ChatTemplate | None = None
        if not source:
            self.reason = "The model file has no chat template, so ChatML is used."
            return
        try:
            self._template = ChatTemplate(source, renderer, specials, now)
            self.facts = learn_facts(self._template)
            self.origin = "model"
        except TemplateUnusable as error:
            self._template = None
            self.reason = f"The model's chat template cannot be used, so ChatML is. {error}"

    def write(
        self,
        messages: Sequence[ChatMessage],
        *,
        thinking: str = "auto",
        tools: Sequence[Mapping[str, Any]] = (),
        now: datetime | None = None,
    ) -> ChatPrompt:
        """The conversation up to the place where the model goes on."""
        if self._template is not None:
            words = self.facts.thinking_words.get(thinking)
            said = _with_words(messages, words) if words else messages
            variables = self.variables(thinking)
            try:
                return self._template.write(said, tools=tools, variables=variables, now=now)
            except TemplateUnusable as error:
                note = (
                    f"The model's chat template cannot be used for this conversation, so ChatML is. {error}"
                )
                return ChatPrompt(tuple(self._chatml(messages)), (note,))
        return ChatPrompt(tuple(self._chatml(messages)), (self.reason,))

    def variables(self, thinking: str) -> Mapping[str, Any]:
        """The variables that choose a way to think; "on" in place of a degree that the template does not know."""
        known = self.facts.thinking
        if thinking in ("auto", "off") or thinking in known:
            return known.get(thinking, {})
        return known.get("on", {})

    def _chatml(self, messages: Sequence[ChatMessage]) -> list[Piece]:
        pieces = []
        for i, message in enumerate(messages):
            pieces.append(Piece(f"<|im_start|>{message.role}\n", "header", i))
            if message.content:
                pieces.append(Piece(message.content, "content", i))
            pieces.append(Piece("<|im_end|>\n", "footer", i))
        begin = [Piece(self._begin, "begin", 0)] if self._begin else []
        return [*begin, *pieces, Piece("<|im_start|>assistant\n", "prompt", len(messages))]


def _with_words(messages: Sequence[ChatMessage], words: str) -> list[ChatMessage]:
    """Words that switch thoughts stand at the end of the system prompt, or of the last question."""
    said = list(messages)
    place = 0 if said and said[0].role == "system" else len(said) - 1
    if said:
        said[place] = replace(said[place], content=f"{said[place].content} {words}")
    return said
