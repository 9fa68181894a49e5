"""Forced tool calls (`tool_choice`): a grammar that makes the model write a tool call in the format of its template."""

from __future__ import annotations

import json
import re
from typing import Any

from halo_weave.chat.prompt import parse_tool_declarations
from halo_weave.core.json_grammar import grammar_of_one, until
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.chat_template import common_prefix
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.engines.templates.tool_calls import PROBE_CALL
from halo_weave.server.errors import OpenAiError

_CLOSING = re.compile(r'(?:,[^{}]*(?=\}))?"?[\s}\]]*')


def tool_call_grammar(engine: Engine, tools: str, name: str, effort: str | None) -> str:
    """The grammar of a forced call. `name`: the tool to call; empty: any tool.

    The model may think first. If the template writes arguments as JSON, they match the tool's schema; otherwise the
    grammar only fixes the name.
    """
    text, prompt = _rendered_call(engine, tools, effort)
    marks, begin = engine.facts.marks, ""
    if marks is not None:
        if marks.close in text[: text.find(PROBE_CALL.name)]:  # the template writes an empty thought
            text = text.partition(marks.close)[2]
        text = text.lstrip()
        thought = f"{until(marks.close)} [ \\n]*"
        begin = thought if marks.opened_by(prompt) else f'("{marks.open}" {thought})?'
    functions = [tool["function"] for tool in json.loads(tools)]
    options = [_call_rule(text, function) for function in functions if name in ("", function["name"])]
    if not options:
        sentence = f"tool_choice names {name[:80]!r}, which is not among the tools."
        raise OpenAiError(400, "invalid_value", sentence, param="tool_choice")
    return grammar_of_one(begin, options)


def _rendered_call(engine: Engine, tools: str, effort: str | None) -> tuple[str, str]:
    """The text that the template writes for a call after its generation prompt, and that prompt."""
    declared, question = parse_tool_declarations(tools), ChatMessage("user", "a")
    talk = [
        question,
        ChatMessage("assistant", "", calls=(PROBE_CALL,)),
        ChatMessage("tool", "qzResult", answers=PROBE_CALL),
    ]
    alone = engine.chat([question], effort=effort, tools=declared)
    whole = engine.chat(talk, effort=effort, tools=declared).text
    same = common_prefix(alone.text, whole)
    cut = same.rfind("<")
    if ">" not in same[cut:]:  # within a delimiter
        same = same[: max(0, cut)]
    text = whole[len(same) :].partition("qzResult")[0]
    format = engine.facts.tools
    if (
        PROBE_CALL.name not in text and format is not None
    ):  # the template describes calls, but does not write them
        call = {
            format.name_key or "name": PROBE_CALL.name,
            format.arguments_key or "arguments": PROBE_CALL.arguments,
        }
        text = f"{format.open}\n{json.dumps(call)}"
    return text, alone.pieces[-1].text


def _call_rule(text: str, function: dict[str, Any]) -> tuple[str, Any, str]:
    """The rule for a call of this tool: the text before its arguments, their schema, the text after them."""
    name = text.find(PROBE_CALL.name)
    arguments = re.search(r"\{[^{}]*qzText[^{}]*\}", text)
    if arguments is None or not _is_probe(arguments[0]):
        return text[:name] + function["name"], None, ""
    name_last = name > arguments.start()
    closing = _CLOSING.match(text, name + len(PROBE_CALL.name) if name_last else arguments.end())
    end = closing.end() if closing else arguments.end()
    before, after = (
        part.replace(PROBE_CALL.name, function["name"])
        for part in (text[: arguments.start()], text[arguments.end() : end].rstrip())
    )
    return before, function.get("parameters") or {"type": "object"}, after


def _is_probe(text: str) -> bool:
    try:
        return bool(json.loads(text) == PROBE_CALL.arguments)
    except ValueError:
        return False
