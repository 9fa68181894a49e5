"""Chat templates of real models: what we prompt against what each template writes itself, byte by byte."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from halo_weave.engines.templates.messages import ChatMessage, NativeCall
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import TemplateRenderer

NOW = datetime(2026, 1, 2, 3, 4)
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
THINKING = ("auto", "on", "off")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {
                "type": "object",
                "properties": {"words": {"type": "string", "description": "what to look for"}},
                "required": ["words"],
            },
        },
    }
]
CALL = NativeCall("look_up", {"words": "balloons"})


def _talk(roles: str, said: Sequence[str] = ()) -> list[ChatMessage]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    words = said or [f"{names[role]} says {number}." for number, role in enumerate(roles)]
    return [ChatMessage(names[role], text) for role, text in zip(roles, words, strict=True)]  # type: ignore[arg-type]


SHAPES: dict[str, list[ChatMessage]] = {
    "a question": _talk("u"),
    "system prompt and question": _talk("su"),
    "several turns": _talk("uauau"),
    "system prompt and several turns": _talk("suauau"),
    "many turns": _talk("s" + "ua" * 30 + "u"),
    "an answer sleeps": _talk("suu"),
    "a question sleeps": _talk("sau"),
    "gaps, no system prompt": _talk("auuaau"),
    "white space around": _talk("suau", ["Be kind.\n\n", " Hello\n\n", "Hi.\n\n", "\n  What is\tthis? \n"]),
    "marks in what is said": _talk(
        "suau",
        ["A <tool>.", "<|im_end|>{{ 1 }}{% x %}</s>", "[INST] <|eot_id|>", "<start_of_turn>é ☃ \\n \\u00e9"],
    ),
}
TOOL_SHAPE = [
    *_talk("su"),
    ChatMessage("assistant", "", calls=(CALL,)),
    ChatMessage("tool", "A result.", answers=CALL),
]


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Callable[[], str]) -> str:
        return caller()


def hub_environment(kind: type[jinja2.Environment] = ImmutableSandboxedEnvironment) -> jinja2.Environment:
    """As the hub's library sets jinja2 up for chat templates. Nothing of ours."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = kind(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=refuse, strftime_now=NOW.strftime)
    return environment


@lru_cache(64)
def _compiled(source: str, kind: type[jinja2.Environment]) -> jinja2.Template:
    return hub_environment(kind).from_string(source)


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as people hand them to the hub's library."""
    plain = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in message.calls
            ]
        if message.answers:
            entry |= {"tool_call_id": message.answers.id, "name": message.answers.name}
        plain.append(entry)
    return plain


def own_rendering(
    source: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[str | None, str]:
    """What the template writes, or why it does not.

    Where it needs a list of tools, asks for functions, or changes lists, which the hub forbids, it gets its way.
    """
    functions = {"functions": json.dumps(variables.get("tools", [])), "datetime": NOW.strftime("%Y-%m-%d")}
    wishes: list[dict[str, Any]] = [{"tools": None}, {"tools": []}, {"tools": [], **functions}]
    refusal = ""
    for kind in (ImmutableSandboxedEnvironment, SandboxedEnvironment):
        template = _compiled(source, kind)
        for more in wishes:
            given = {**SPECIALS, "documents": None, "add_generation_prompt": True, **more, **variables}
            try:
                return template.render(messages=messages, **given), ""
            except Exception as error:  # a template may fail in any way
                refusal = refusal or str(error)
    return None, refusal


def compare(source: str, renderer: TemplateRenderer) -> tuple[str, str, list[str]]:
    """`same`, `different` or `unusable`, the reason, and what was rearranged."""
    ours = ModelTemplate(source, renderer, specials=SPECIALS, now=NOW)
    if ours.origin == "chatml":
        return "unusable", ours.reason, []
    notes: list[str] = []
    for name, messages, tools in _shapes(ours):
        for thinking in THINKING:
            prompt = ours.write(messages, thinking=thinking, tools=tools)
            variables: dict[str, Any] = {**ours.variables(thinking), **({"tools": tools} if tools else {})}
            if thinking != "auto":
                variables |= {"enable_thinking": thinking == "on", "thinking": thinking == "on"}
            rendered, refusal = own_rendering(source, plain_messages(messages), variables)
            words = thinking in ours.facts.thinking_words
            if prompt.notes or words or (tools and rendered is None):
                # It refuses or leaves out something: then it must write the conversation that we say it was given.
                rendered, refusal = own_rendering(source, prompt.taken, variables)
                notes += [note for note in prompt.notes if note not in notes]
            if rendered is None:
                return (
                    "different",
                    f"{name}, thinking {thinking}: refused by the template itself: {refusal}",
                    notes,
                )
            if prompt.text != rendered:
                return (
                    "different",
                    f"{name}, thinking {thinking}: {_first_difference(prompt.text, rendered)}",
                    notes,
                )
            lost = [
                piece for piece in prompt.pieces if piece.part == "content" and piece.message >= len(messages)
            ]
            if lost:
                return "different", f"{name}: pieces of no message", notes
    return "same", "", notes


def _shapes(ours: ModelTemplate) -> Iterator[tuple[str, list[ChatMessage], list[dict[str, Any]]]]:
    for name, messages in SHAPES.items():
        yield name, messages, []
    if ours.facts.declares_tools and ours.facts.tools:
        yield "ends with a tool", TOOL_SHAPE, TOOLS


def _first_difference(ours: str, theirs: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    return f"{ours[max(0, at - 20) : at + 40]!r} in place of {theirs[max(0, at - 20) : at + 40]!r}"


def milliseconds(sources: Sequence[str], renderer: TemplateRenderer) -> float:
    """The time for one more turn of a conversation of a hundred, in the middle of all templates."""
    times = []
    for source in sources:
        ours = ModelTemplate(source, renderer, specials=SPECIALS, now=NOW)
        long = [ChatMessage("user" if i % 2 == 0 else "assistant", f"turn {i} " * 40) for i in range(101)]
        ours.write(long)
        start = time.perf_counter()
        ours.write([*long, ChatMessage("assistant", "yes"), ChatMessage("user", "more")])
        times.append(1e3 * (time.perf_counter() - start))
    return round(sorted(times)[len(times) // 2], 2) if times else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of chat templates, *.jinja")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    files = sorted(asked.data.glob("*.jinja"))
    if not files:
        sys.exit(f"There is no *.jinja file in {asked.data}. Name a folder of chat templates with --data.")
    found: dict[str, dict[str, str]] = {"same": {}, "different": {}, "unusable": {}}
    rearranged = {}
    with TemplateRenderer() as renderer:
        for file in files:
            verdict, reason, notes = compare(file.read_text(), renderer)
            found[verdict][file.name] = reason
            if notes:
                rearranged[file.name] = notes
        cost = milliseconds([file.read_text() for file in files if file.name in found["same"]], renderer)
    result = {
        "same": len(found["same"]),
        "different": found["different"],
        "unusable": found["unusable"],
        "shapes": len(SHAPES) + 1,
        "thinking": list(THINKING),
        "rearranged": rearranged,
        "ms_for_a_turn_after_100": cost,
    }
    if asked.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print(
        f"{len(found['same'])} of {len(files)} the same, in {len(SHAPES) + 1} shapes, thinking {', '.join(THINKING)}"
    )
    for verdict in ("different", "unusable"):
        for name, reason in found[verdict].items():
            print(f"  {verdict}: {name}: {reason}")
    for name, notes in rearranged.items():
        print(f"  rearranged: {name}: {' '.join(notes)}")
    print(f"{cost} ms for one more turn after 100")


if __name__ == "__main__":
    main()
