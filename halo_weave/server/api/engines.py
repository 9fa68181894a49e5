"""Engines that windows can choose, and where the text of a window is sent."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import Field

from halo_weave.chat.models import ListedEngine
from halo_weave.engines.engine_list import NamedEngine
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import TEXT_PATTERN, Input, Output
from halo_weave.server.service import Service
from halo_weave.settings import RemoteScope

_Text = Annotated[str, Field(max_length=2000, pattern=TEXT_PATTERN)]
_EngineName = Annotated[str, InPath(min_length=1, max_length=60, pattern=r"^[\w .:@-]+$")]


class EngineView(Output):
    name: str
    kind: str
    url: str
    model_name: str
    shadow_model: str
    has_key: bool = Field(description="Whether a key is known. The key itself is never shown.")
    configured: bool = Field(description="Whether it stands in config.toml, and can only be changed there.")
    open: bool
    remote_host: str = Field(description="The machine that text is sent to; empty: it stays on this one.")
    attention_source: str = Field(description="Where the attention comes from, once it is open.")

    @classmethod
    def of(cls, one: ListedEngine) -> EngineView:
        names = ("name", "kind", "url", "model_name", "shadow_model", "configured")
        own = {name: getattr(one.engine, name) for name in names}
        return cls(
            **own, has_key=one.has_key, open=one.open, remote_host=one.elsewhere, attention_source=one.light
        )


class Engines(Output):
    engines: list[EngineView]
    notice: str = Field(default="", description="What was wrong with the file of engines; empty: nothing.")


class EngineDefinition(Input):
    kind: Literal["kobold", "openai", "llama"]
    url: _Text = ""
    model_name: _Text = Field(default="", description="As the server knows it; for llama a file or a name.")
    shadow_model: _Text = Field(
        default="", description="A small model that reads along, or off; empty: the smallest."
    )
    key: _Text = Field(default="", description="Empty: the one that was given before.")


class WindowEngineView(Output):
    name: str = Field(description="Of the engine; empty: the model of all windows.")
    known: bool = Field(description="Whether there is an engine of this name.")
    model: str = Field(description="Empty: it is not open yet.")
    remote_host: str = Field(
        validation_alias="elsewhere",
        description="The machine that text is sent to; empty: it stays on this one.",
    )
    remote_scope: RemoteScope = Field(
        validation_alias="rule", description="What of memory the model may read."
    )
    private: bool
    attention_source: str = Field(validation_alias="light", description="Where the attention comes from.")
    malformed_rows: int = Field(
        validation_alias="malformed",
        description="Rows of attention that could not be used since the engine was opened.",
    )


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Models"])

    def told() -> Engines:
        engines = service.whole.engines
        return Engines(engines=[EngineView.of(one) for one in engines.list()], notice=engines.notice)

    @router.get("/api/engines", summary="List engines")
    def get_engines() -> Engines:
        return told()

    @router.put("/api/engines/{engine}", summary="Add or change an engine")
    def put_engine(engine: _EngineName, asked: EngineDefinition) -> Engines:
        service.whole.engines.add(NamedEngine(engine, **asked.model_dump()))
        return told()

    @router.delete("/api/engines/{engine}", summary="Remove an engine")
    def delete_engine(engine: _EngineName) -> Engines:
        service.whole.engines.remove(engine)
        return told()

    @router.get(
        "/api/windows/{window_id}/engine", summary="Show the engine of a window, and where its text is sent"
    )
    def get_window_engine(window_id: WindowId) -> WindowEngineView:
        return WindowEngineView.model_validate(service.weave.engines.where(window_id))

    return router
