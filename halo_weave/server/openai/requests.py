"""Request bodies of the OpenAI API. Unknown fields are ignored, because clients send many."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from halo_weave.chat.turn_runner import storable_text
from halo_weave.core.json_grammar import any_object_grammar, grammar_from_schema
from halo_weave.errors import BadInput
from halo_weave.server.errors import OpenAiError

INCOGNITO = ":incognito"
_MAX_MESSAGES = 20_000
_MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value or []


def _whole_texts(values: list[str]) -> list[str]:
    return [text for text in map(storable_text, values) if text]


class _LenientModel(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Drop fields that are null: clients send null for the default."""
        return (
            {key: value for key, value in body.items() if value is not None}
            if isinstance(body, dict)
            else body
        )


class _Function(_LenientModel):
    name: str = Field(max_length=200)
    arguments: str | dict[str, Any] = "{}"


class ClientToolCall(_LenientModel):
    id: str = ""
    function: _Function

    @property
    def arguments(self) -> dict[str, Any]:
        arguments = self.function.arguments
        if isinstance(arguments, dict):
            return arguments
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = {"input": arguments}
        return parsed if isinstance(parsed, dict) else {"input": parsed}


class ClientMessage(_LenientModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ClientToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts = []
        for part in self.content:
            kind = part.get("type", "text")
            if kind not in ("text", "input_text", "output_text", "refusal"):
                raise OpenAiError(
                    400,
                    "unsupported_content",
                    f"This model reads text only, and a message has a part of type {str(kind)[:40]!r}. Remove it.",
                    param="messages",
                )
            texts.append(str(part.get("text") or part.get("refusal") or ""))
        return "\n".join(texts)


class _StreamOptions(_LenientModel):
    include_usage: bool = False


class SamplingRequest(_LenientModel):
    """Fields that all generating requests share."""

    model: str = ""
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=5, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        validation_alias=AliasChoices("repeat_penalty", "repetition_penalty", "rep_pen"),
    )
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[list[str], BeforeValidator(_as_list), AfterValidator(_whole_texts)] = Field(
        default=[], max_length=256
    )
    n: int = Field(default=1, ge=1, le=_MAX_CHOICES)

    @property
    def incognito(self) -> bool:
        return self.model.endswith(INCOGNITO)

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def max_reply_tokens(self) -> int | None:
        return self.max_tokens

    def sampling(self, context: int, default_tokens: int) -> dict[str, Any]:
        """The settings of the turn. `default_tokens`: the limit of the reply if the client sets none."""
        limit = self.max_reply_tokens or max(default_tokens, 1024)
        settings: dict[str, Any] = {"max_new_tokens": max(1, min(limit, context // 2, 32_768))}
        for name in ("temperature", "min_p"):
            if getattr(self, name) is not None:
                settings[name] = getattr(self, name)
        if self.repeat_penalty is not None:
            settings["repeat_penalty"] = min(max(self.repeat_penalty, 0.5), 2.0)
        if self.top_p is not None:
            settings["top_p"] = max(self.top_p, 0.01)
        if self.top_k is not None:
            settings["top_k"] = min(max(self.top_k, 0), 1000)
        if self.seed is not None and self.seed != -1:  # -1 means random
            settings["seed"] = self.seed % (2**32 - 1)
        return settings


class ChatRequest(SamplingRequest):
    messages: list[ClientMessage] = Field(min_length=1, max_length=_MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=256)
    tool_choice: str | dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def max_reply_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def grammar(self) -> str:
        return grammar_for(self.response_format)

    @property
    def declared_tools(self) -> str:
        """The client's tools as JSON; empty if none may be called."""
        if not self.tools or self.tool_choice == "none":
            return ""
        for tool in self.tools:
            function = tool.get("function")
            if (
                tool.get("type", "function") != "function"
                or not isinstance(function, dict)
                or not function.get("name")
            ):
                raise OpenAiError(
                    400,
                    "unsupported_tool",
                    "Only tools of the type 'function' with a name are supported.",
                    param="tools",
                )
        return json.dumps(self.tools)

    @property
    def forced_tool(self) -> str | None:
        """The tool that must be called; empty: any tool; None: the model decides."""
        match self.tool_choice:
            case "required" | "any":
                return ""
            case {"function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                return name
            case None | "auto" | "none" | {"type": "auto" | "none"}:
                return None
        raise OpenAiError(
            400,
            "invalid_value",
            "tool_choice can be none, auto, required, or a function by its name.",
            param="tool_choice",
        )

    @property
    def chat_names(self) -> list[str]:
        """The client's ids of the chat in the body. Several chats may have the same id."""
        metadata = self.metadata or {}
        named = {
            "prompt_cache_key": self.prompt_cache_key,
            "session_id": self.session_id,
            **{
                f"metadata.{key}": metadata.get(key)
                for key in ("chat_id", "conversation_id", "session_id", "thread_id")
            },
        }
        return [
            f"{kind}:{name}" for kind, name in named.items() if isinstance(name, str) and 0 < len(name) <= 200
        ]


def grammar_for(response_format: dict[str, Any] | None) -> str:
    """The grammar of a `response_format`, or of a `text.format` of the responses API."""
    kind = (response_format or {}).get("type", "text")
    if response_format is None or kind == "text":
        return ""
    try:
        if kind == "json_object":
            return any_object_grammar()
        if kind == "json_schema":
            inner = response_format.get("json_schema", response_format)
            schema = inner.get("schema") if isinstance(inner, dict) else None
            return grammar_from_schema(schema if schema is not None else {"type": "object"})
    except BadInput as error:
        raise OpenAiError(400, "unsupported_schema", str(error), param="response_format") from None
    raise OpenAiError(
        400,
        "unsupported_value",
        "response_format can be text, json_object or json_schema.",
        param="response_format",
    )


class TextRequest(SamplingRequest):
    """`/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(max_length=4_000_000)
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    suffix: str | None = None
    best_of: int | None = None
    max_tokens: int | None = Field(default=16, ge=0)


class EmbeddingRequest(_LenientModel):
    input: str | list[str] | list[int] | list[list[int]]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ResponseRequest(_LenientModel):
    """`/v1/responses`, with its basic fields."""

    input: str | list[dict[str, Any]]
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, max_length=200)
    store: bool = True
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=5, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """The same request as a chat request."""
        if self.tools:
            raise OpenAiError(
                400,
                "unsupported_tool",
                "/v1/responses does not support tools. Use /v1/chat/completions.",
                param="tools",
            )
        items: list[dict[str, Any]] = (
            [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        )
        messages = [item for item in items if item.get("type", "message") == "message"]
        leading = [{"role": "system", "content": self.instructions}] if self.instructions else []
        try:
            return ChatRequest.model_validate(self._fields([*leading, *messages]))
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise OpenAiError(
                400, "bad_input", f"input: the field {field} is invalid.", param="input"
            ) from None

    def _fields(self, messages: list[Any]) -> dict[str, Any]:
        return {
            "messages": messages,
            "model": self.model,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_output_tokens,
            "response_format": (self.text or {}).get("format"),
        }
