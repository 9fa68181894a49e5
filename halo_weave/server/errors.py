"""Errors as HTTP responses: a status, a code for programs and a sentence for people."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from halo_weave import errors
from halo_weave.chat.events import INTERNAL_ERROR_MESSAGE
from halo_weave.server.schema import (
    ID_PATTERN,
    KEY_PATTERN,
    NON_BLANK_PATTERN,
    TEXT_PATTERN,
    TIME_PATTERN,
    Output,
)
from halo_weave.store.records import WINDOW_ID

_log = logging.getLogger(__name__)

# The nearest class in the error's method resolution order decides.
_STATUS_BY_ERROR: dict[type[Exception], tuple[int, str]] = {
    errors.BadInput: (422, "bad_input"),
    errors.BadSetting: (422, "bad_setting"),
    errors.UnknownChunk: (404, "unknown_chunk"),
    errors.UnknownWindow: (404, "unknown_window"),
    errors.WindowBusy: (409, "window_busy"),
    errors.NotesChanged: (409, "notes_changed"),
    errors.EmbedderOff: (409, "embedder_off"),
    errors.UnknownMemory: (404, "unknown_memory"),
    errors.UnknownPreset: (404, "unknown_preset"),
    errors.UnknownPerson: (404, "unknown_person"),
    errors.NotYours: (403, "not_yours"),
    errors.DocumentRefused: (422, "document_refused"),
    errors.ModelError: (503, "model_unusable"),
    errors.ModelLoading: (503, "model_loading"),
    errors.ModelNotFound: (503, "model_missing"),
    errors.EngineError: (500, "engine_failed"),
    errors.ServerFailed: (502, "server_failed"),
    errors.StoreError: (500, "store_failed"),
    errors.StoreBusy: (503, "store_busy"),
    errors.StoreUnreachable: (503, "store_unreachable"),
    errors.StoreFull: (507, "store_full"),
    errors.ImportRefused: (422, "import_refused"),
    errors.HaloWeaveError: (500, "failed"),
}
_BY_STATUS = {
    400: ("bad_input", "The request could not be read. Send what /api/openapi.json describes."),
    404: ("not_found", "There is nothing at this address. /api/openapi.json lists all addresses."),
    405: ("method_not_allowed", "This address does not support that method. See /api/openapi.json."),
    408: ("too_slow", "The request arrived too slowly. Send it again."),
    413: ("too_large", "The request is larger than this address allows."),
}
# What a pattern of the API description requires, as text.
_EXPECTED = {
    NON_BLANK_PATTERN: "write something; blanks alone are not enough",
    TEXT_PATTERN: "leave out the character NUL: it cannot be stored",
    KEY_PATTERN: "write a chunk key like 12.0.user",
    ID_PATTERN: "use a number, as text",
    WINDOW_ID: "this is not the id of a window",
    TIME_PATTERN: "write a time like 2026-01-31 or 2026-01-31T12:00Z",
}

# Messages for the validator's error types.
_MESSAGES = {
    "list_type": "use a list",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "use a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "use a number"),
    "greater_than_equal": "use at least {ge}",
    "less_than_equal": "use at most {le}",
    "greater_than": "use more than {gt}",
    "less_than": "use less than {lt}",
    **dict.fromkeys(("literal_error", "enum"), "use {expected}"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "use true or false"),
    "string_type": "use text",
    **dict.fromkeys(("string_too_short", "too_short"), "this cannot be empty"),
    "string_too_long": "use at most {max_length} characters",
    "too_long": "send at most {max_length} of them",
}


class ErrorDetail(Output):
    code: str = Field(examples=["unknown_window"])
    message: str = Field(examples=["There is no window 'x'."])


class ErrorResponse(Output):
    """Every error has this shape."""

    error: ErrorDetail


class ApiError(errors.HaloWeaveError):
    """A request that the server refuses."""

    def __init__(self, status: int, code: str, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.code, self.headers = status, code, headers or {}


class OpenAiError(ApiError):
    """A refused request under `/v1`. `param`: the invalid field."""

    def __init__(self, status: int, code: str, sentence: str, *, param: str | None = None) -> None:
        super().__init__(status, code, sentence)
        self.param = param


def json_bytes(value: Any) -> bytes:
    """JSON as bytes. Unpaired surrogates become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "replace"
    )


def error_response(error: errors.HaloWeaveError, path: str = "") -> Response:
    """The HTTP response for an error."""
    if isinstance(error, ApiError):
        param = error.param if isinstance(error, OpenAiError) else None
        return _json_response(error.status, error.code, str(error), error.headers, path=path, param=param)
    status, code = status_and_code(error)
    if status == 500:
        _log.error("%s", error, exc_info=error)
    return _json_response(status, code, str(error), path=path)


def _json_response(
    status: int,
    code: str,
    sentence: str,
    headers: dict[str, str] | None = None,
    *,
    path: str = "",
    param: str | None = None,
) -> Response:
    body: dict[str, Any] = {"error": {"code": code, "message": sentence}}
    if path.startswith("/v1/"):  # its clients expect OpenAI's shape of errors
        status = 400 if status == 422 else status
        body = {"error": _openai_body(status, code, sentence, param)}
    return Response(json_bytes(body), status, headers, media_type="application/json")


def _openai_body(status: int, code: str, sentence: str, param: str | None) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    default = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": sentence, "type": kinds.get(status, default), "param": param, "code": code}


def openai_error(error: errors.HaloWeaveError) -> tuple[int, dict[str, Any]]:
    """An error in OpenAI's shape, for a stream that has begun."""
    status, code = (error.status, error.code) if isinstance(error, ApiError) else status_and_code(error)
    param = error.param if isinstance(error, OpenAiError) else None
    return status, _openai_body(status, code, str(error), param)


def status_and_code(error: errors.HaloWeaveError) -> tuple[int, str]:
    """Status and code of an error."""
    return next(
        _STATUS_BY_ERROR[ancestor] for ancestor in type(error).__mro__ if ancestor in _STATUS_BY_ERROR
    )


def _validation_message(error: RequestValidationError) -> str:
    """A message that names each invalid field of a request."""
    messages = []
    for detail in error.errors()[:5]:
        # The first part is body, query, path or header.
        field = ".".join(str(part) for part in detail["loc"][1:])[:200]
        message = _field_message(detail)
        if field and not detail["type"].startswith("json"):
            messages.append(f"{field}: {message}")
        else:
            messages.append(message[:1].upper() + message[1:])
    return "; ".join(messages) + "."


def _field_message(error: dict[str, Any]) -> str:
    """The message for one error of the validator: what to do."""
    context = error.get("ctx") or {}
    match error["type"]:
        case "string_pattern_mismatch" if context.get("pattern") == NON_BLANK_PATTERN and "\0" in str(
            error.get("input")
        ):
            return _EXPECTED[TEXT_PATTERN]
        case "string_pattern_mismatch":
            return _EXPECTED.get(context.get("pattern", ""), "this does not have the described form")
        case "missing" if len(error["loc"]) < 2:
            return "send a JSON object as the body"
        case "missing":
            return "this is needed"
        case _ if error.get("input", "") is None:
            return "this cannot be empty"
        case "extra_forbidden":
            return "there is no such field"
        case "json_invalid":
            return f"The body is not valid JSON: {context.get('error', 'it cannot be read')}"
        case "model_attributes_type" | "model_type" | "dict_type" if len(error["loc"]) < 2:
            return "send a JSON object, with content type application/json"
        case "model_attributes_type" | "model_type" | "dict_type":
            return "use a JSON object"
        case known if known in _MESSAGES:
            return _MESSAGES[known].format_map({name: _number(value) for name, value in context.items()})
        case _:
            return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        return value
    return f"{int(value) if value == int(value) else value:,}"


def install_error_handlers(app: FastAPI) -> None:
    """Give every error response the same shape, also those of the framework."""

    @app.exception_handler(errors.HaloWeaveError)
    async def known(request: Request, error: errors.HaloWeaveError) -> Response:
        return error_response(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = [str(part) for part in error.errors()[0]["loc"][1:]]
        param = ".".join(first) or None
        return _json_response(
            422, "bad_input", _validation_message(error), path=request.url.path, param=param
        )

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        code, sentence = _BY_STATUS.get(error.status_code, ("failed", str(error.detail)))
        return _json_response(
            error.status_code, code, sentence, dict(error.headers or {}), path=request.url.path
        )

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return _json_response(400, "gone", "The client disconnected before it had sent the whole request.")

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return _json_response(500, "internal", INTERNAL_ERROR_MESSAGE, path=request.url.path)
