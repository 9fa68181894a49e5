"""Renders chat templates in a sandboxed process, where it never imports this package.

A request is `{"template": text, "now": ISO time, "limit": characters, "renders": [variables]}`, the response `{"names":
[variables that the template uses], "results": [{"text": …} or {"error": …}]}`, or `{"error": sentence}` if the template
cannot be compiled.
"""

from __future__ import annotations

import datetime
import json
import pprint  # noqa: F401  jinja2 asks for it later, when no file can be opened any more
import sys
from collections.abc import Callable
from typing import Any

_WARM_UP = (
    "{{ x.y.z }}",
    "{% if %}",
    r"{{ strftime_now('%d\té') }}{{ 'é\n' | tojson | urlize | title | pprint | safe }}{{ 1 / 0 }}",
)


def prepared(folders: list[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that answers requests, with jinja2 from these folders."""
    sys.path[:0] = folders
    import jinja2
    import jinja2.debug
    import jinja2.ext
    import jinja2.meta
    from jinja2 import nodes, parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        """Lists and mappings are mutable, as some templates need: they hold only copies."""

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            changes = (isinstance(obj, list) and attr in ("append", "extend", "insert", "pop")) or (
                isinstance(obj, dict) and attr == "update"
            )
            return changes or super().is_safe_attribute(obj, attr, value)

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's text for training; its content is written unchanged."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: parser.Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

        def _write(self, caller: Callable[[], str]) -> str:
            return caller()

    def refuse(message: object = "no reason given") -> None:
        raise jinja2.TemplateError(str(message))

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    compiled: dict[str, tuple[jinja2.Template, list[str]]] = {}

    def compile(source: str) -> tuple[jinja2.Template, list[str]]:
        if source not in compiled:
            names = sorted(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            while len(compiled) > 8:
                del compiled[next(iter(compiled))]
            compiled[source] = environment.from_string(source), names
        return compiled[source]

    def written(template: jinja2.Template, variables: dict[str, Any], limit: int) -> dict[str, str]:
        try:
            parts, size = [], 0
            for part in template.generate(variables):
                size += len(part)
                if size > limit:
                    return {"error": f"it writes more than {limit} characters"}
                parts.append(part)
            return {"text": "".join(parts)}
        except MemoryError:
            return {"error": "it needs too much memory"}
        except RecursionError:
            return {"error": "it calls itself without end"}
        except jinja2.TemplateError as error:
            return {"error": str(error.message or "no reason given")[:500]}
        except Exception as error:  # a template may raise anything
            return {"error": f"{type(error).__name__}: {error}"[:500]}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        now = datetime.datetime.fromisoformat(request["now"])
        environment.globals["strftime_now"] = now.strftime
        try:
            template, names = compile(request["template"])
        except jinja2.TemplateSyntaxError as error:
            return {"error": f"line {error.lineno}: {error.message}"[:500]}
        except MemoryError:
            return {"error": "it needs too much memory"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        limit = request["limit"]
        return {"names": names, "results": [written(template, each, limit) for each in request["renders"]]}

    # jinja2 and Python import some modules on demand, but no file can be opened later.
    for template in _WARM_UP:
        answer({"now": "2026-01-01", "template": template, "limit": 100, "renders": [{}]})
    return answer
