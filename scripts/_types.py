"""Writes halo_weave/web/types.d.ts, the types of the page's requests, answers and events, from the description of the API."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halo_weave.server.app import create_app
from halo_weave.server.auth import Policy
from halo_weave.server.service import Service

FILE = Path(__file__).parents[1] / "halo_weave" / "web" / "types.d.ts"
ABOUT = """// Made by scripts/types from the description of the API; a test says when it has to be made again.
// Read by the type checker only: the browser never loads it."""
EVENTS = "/api/windows/{window_id}/events"
PLAIN = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}

Schema = dict[str, Any]


def main() -> None:
    service = Service(lambda progress: sys.exit("Nothing is assembled for a description."))
    description = create_app(service, Policy(4256)).app.openapi()  # type: ignore[attr-defined]
    text = written(description)
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit(f"{FILE.name} is not what the API is described as. Run scripts/types.")


def written(description: Schema) -> str:
    """The whole file: what is sent, answered and told, and every schema that this names."""
    bodies, answers = {}, {}
    for path, operations in description["paths"].items():
        for method, about in operations.items():
            if "Prototype" not in about["tags"]:
                name = f"{method.upper()} {path}"
                done = next(one for status, one in about["responses"].items() if status.startswith("2"))
                answers[name] = content(done) or {"type": "null"}
                if body := content(about.get("requestBody", {})):
                    bodies[name] = body
    stream = description["paths"][EVENTS]["get"]["responses"]["200"]["content"]["text/event-stream"]
    kinds = [one["properties"] for one in stream["schema"]["oneOf"]]
    events = {one["event"]["const"]: one["data"]["contentSchema"] for one in kinds}
    tables = {"Bodies": bodies, "Answers": answers, "Events": events}
    schemas = description["components"]["schemas"]
    parts = [f"  interface {name} {fields(table, list(table))}" for name, table in tables.items()]
    parts += [declared(name, schemas[name]) for name in sorted(reached(tables, schemas))]
    return "\n\n".join([f"{ABOUT}\n\ndeclare namespace Wire {{", *parts]).replace("{\n\n", "{\n") + "\n}\n"


def content(part: Schema) -> Schema:
    """The JSON of a body or an answer; nothing if it is not JSON."""
    return dict(part.get("content", {}).get("application/json", {}).get("schema", {}))


def reached(part: Any, schemas: dict[str, Schema]) -> set[str]:
    """The names of all schemas that a part names, and that these name."""
    found: set[str] = set()
    waiting = list(named(part))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += named(schemas[name])
    return found


def named(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rpartition("/")[2]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from named(one)


def declared(name: str, schema: Schema) -> str:
    if "properties" in schema or schema == {"type": "object"}:
        return f"  interface {name} {fields(schema['properties'], schema.get('required', []))}"
    return wrapped(f"  type {name} = {kind(schema)};")


def wrapped(line: str) -> str:
    return "\n".join(textwrap.wrap(line, 118, subsequent_indent=" " * 6, break_long_words=False))


def fields(schemas: dict[str, Schema], required: list[str]) -> str:
    lines = []
    for name, schema in schemas.items():
        shown = name if name.isidentifier() else json.dumps(name)
        line = f"    {shown}{'' if name in required else '?'}: {kind(schema)};"
        lines.append(wrapped(line))
    return "\n".join(["{", *lines, "  }"])


def kind(schema: Schema) -> str:
    """A schema as a type. JSON of any shape is `any`."""
    match schema:
        case {"$ref": ref}:
            return str(ref).rpartition("/")[2]
        case {"const": value}:
            return json.dumps(value)
        case {"enum": values}:
            return " | ".join(json.dumps(value) for value in values)
        case {"anyOf": options} | {"oneOf": options}:
            return " | ".join(dict.fromkeys(kind(one) for one in options))
        case {"type": "array", "items": items}:
            inner = kind(items)
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"Record<string, {kind(values)}>"
        case {"type": "object"}:
            return "Record<string, any>"
        case {"type": name}:
            return PLAIN[name]
        case _:
            return "any"


if __name__ == "__main__":
    main()
