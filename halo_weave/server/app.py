"""Builds the HTTP application: all routes, the files of the page, the OpenAPI description, authentication."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.routing import Route, compile_path
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from halo_weave import __version__
from halo_weave.server import errors, remote_kv
from halo_weave.server.api import (
    chunks,
    lab,
    models,
    people,
    presets,
    structured_memory,
    system,
    turns,
    windows,
)
from halo_weave.server.auth import AuthMiddleware, PerUser, Policy
from halo_weave.server.errors import ApiError
from halo_weave.server.events import EVENTS
from halo_weave.server.koboldai import generation
from halo_weave.server.koboldai import routes as koboldai
from halo_weave.server.mcp.http import McpEndpoint
from halo_weave.server.openai import routes as v1
from halo_weave.server.service import Service
from halo_weave.server.sse import REF
from halo_weave.server.stateless_runs import StatelessRuns

WEB = Path(__file__).parents[1] / "web"
# The table of the operating system may be missing or wrong.
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": errors.ErrorResponse,
        "description": "The request cannot be fulfilled; the message says why.",
    },
    "5XX": {
        "model": errors.ErrorResponse,
        "description": "The server cannot fulfil the request now; the message says what to do.",
    },
}
_ABOUT = """One endless conversation for local models. Ids of turns and positions are decimal strings; a chunk's key is
`turn.chunk.role`. Every error is `{"error": {"code", "message"}}`. Fields, parameters and bodies that are not described here
are refused; only the prototype's addresses ignore them."""


class _Api(FastAPI):
    def __init__(self, policy: Policy, **options: Any) -> None:
        super().__init__(**options)
        self.policy = policy

    def openapi(self) -> dict[str, Any]:
        """The framework's OpenAPI description, plus error responses, events and security schemes."""
        if self.openapi_schema is None:
            schema = super().openapi()
            failure = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    for status in _ERROR_RESPONSES:
                        operation["responses"][status]["content"] = failure
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            schema["components"]["schemas"] |= _event_schemas()
            schema["components"]["securitySchemes"] = _key_schemes(self.policy)
            # An empty requirement means that no key is needed.
            schema["security"] = [
                *([] if self.policy.key else [{}]),
                *({name: []} for name in _key_schemes(self.policy)),
            ]
        return super().openapi()

    @cached_property
    def static_paths(self) -> list[tuple[re.Pattern[str], list[str]]]:
        """The paths that do not end with a parameter, with their methods."""
        paths = self.openapi()["paths"].items()
        return [
            (compile_path(path)[0], [method.upper() for method in methods])
            for path, methods in paths
            if not path.endswith("}")
        ]


def _event_schemas() -> dict[str, Any]:
    """The schemas of event data, by event name."""
    models: list[type[BaseModel]] = [*EVENTS.values(), generation.GeneratedMessage]
    _, definitions = models_json_schema([(model, "serialization") for model in models], ref_template=REF)
    return dict(definitions["$defs"])


def _key_schemes(policy: Policy) -> dict[str, Any]:
    return {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "The server's key. Every address needs it if the server was started with a key.",
        },
        "cookie": {
            "type": "apiKey",
            "in": "cookie",
            "name": policy.cookie,
            "description": "The session cookie from `POST /api/session`. Its name contains the server's port.",
        },
    }


class _PageFiles(StaticFiles):
    """Serves the page's files with their media types; other files are not served."""

    def file_response(self, full_path: Any, *more: Any, **named: Any) -> Response:
        response = super().file_response(full_path, *more, **named)
        kind = _MEDIA_TYPES.get(Path(full_path).suffix)
        if kind and "content-type" in response.headers:
            response.headers["content-type"] = kind
        return response

    async def get_response(self, path: str, scope: Scope) -> Response:
        if Path(path).suffix not in _MEDIA_TYPES:  # such as sources for the type checker
            raise ApiError(404, "not_found", "There is no such file.")
        return await super().get_response(path, scope)


def create_app(
    service: Service, policy: Policy, *, web: Path = WEB, mcp_writes: bool = False
) -> AuthMiddleware:
    """The API and the page as one ASGI application. `mcp_writes`: MCP clients may write."""
    app = _Api(
        policy,
        title="Halo Weave",
        version=__version__,
        description=_ABOUT,
        openapi_url="/api/openapi.json",
        docs_url=None,  # they would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        responses=_ERROR_RESPONSES,
        generate_unique_id_function=_operation_name,
    )
    errors.install_error_handlers(app)
    families = (
        windows.routes(service),
        turns.routes(service),
        chunks.routes(service),
        presets.routes(service),
        turns.document_routes(service),
        structured_memory.routes(service),
        lab.routes(service),
        models.routes(service, policy),
        models.engine_routes(service),
        people.routes(service, policy),
    )
    for router in (*families, system.routes(service, policy)):
        checks = [Depends(_check_method), Depends(_check_body_expected), Depends(_check_query_parameters)]
        app.include_router(router, dependencies=checks)
    running = PerUser(lambda person: StatelessRuns(f"prototype {person}".strip()))
    generation_history = PerUser(lambda person: generation.GenerationHistory())
    app.include_router(generation.routes(service.engine, running, generation_history))
    app.include_router(remote_kv.routes(service.engine, service.calibration))
    app.include_router(koboldai.routes(service.engine, running, generation_history))
    app.include_router(v1.routes(service))
    app.include_router(system.health_routes(service))

    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return FileResponse(web / "index.html", media_type=_MEDIA_TYPES[".html"])

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return FileResponse(web / "icon.svg", media_type=_MEDIA_TYPES[".svg"])

    memory = McpEndpoint(lambda: service.weave.library, writes=mcp_writes)
    app.router.routes.append(Route("/mcp", memory, include_in_schema=False))
    app.mount("/static", _PageFiles(directory=web, check_dir=False))
    return AuthMiddleware(app, policy, service.people)


def _described_operation(request: Request) -> dict[str, Any]:
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    return cast(dict[str, Any], operation)


def _check_method(request: Request) -> None:
    """Refuse other methods at an address that would otherwise match a route with a parameter."""
    if not request.scope["route"].path_format.endswith("}"):
        return
    for pattern, methods in request.app.static_paths:
        if pattern.match(request.scope["path"]):
            raise HTTPException(405, headers={"allow": ", ".join(methods)})


async def _check_body_expected(request: Request) -> None:
    """Refuse a body if the route takes none."""
    sent = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if sent and "requestBody" not in _described_operation(request) and await request.body():
        raise ApiError(422, "bad_input", "This address takes no body. Send the request without one.")


def _check_query_parameters(request: Request) -> None:
    """Refuse unknown parameters, such as misspelt ones."""
    if not request.query_params:
        return
    known = [
        parameter["name"]
        for parameter in _described_operation(request).get("parameters", ())
        if parameter["in"] == "query"
    ]
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        takes = f"It takes {', '.join(known)}." if known else "It takes none."
        raise ApiError(422, "bad_input", f"This address takes no parameter {unknown[0]!r}. {takes}")


def _operation_name(route: APIRoute) -> str:
    return re.sub(r"\W+", "_", route.name)
