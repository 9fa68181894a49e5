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
    has_key: bool = Field(description="Whether a key is known. The key itself is never told.")
    configured: bool = Field(description="Whether it stands in config.toml, and can only be changed there.")
    open: bool
    elsewhere: str = Field(description="The machine that words are sent to; empty: they stay on this one.")
    light: str = Field(description="Which eyes are in use, once it is open.")

    @classmethod
    def of(cls, one: ListedEngine) -> EngineView:
        names = ("name", "kind", "url", "model_name", "shadow_model", "configured")
        own = {name: getattr(one.engine, name) for name in names}
        return cls(**own, has_key=one.has_key, open=one.open, elsewhere=one.elsewhere, light=one.light)


class EngineViews(Output):
    engines: list[EngineView]
    notice: str = Field(default="", description="What was wrong with the file of engines; empty: nothing.")


class EngineDefinition(Input):
    kind: Literal["kobold", "openai", "llama"]
    url: _Text = ""
    model_name: _Text = Field(default="", description="As the server knows it; for llama a file or a name.")
    shadow_model: _Text = Field(
        default="", description="A small model that reads along, or off; empty: the smallest."
    )
    key: _Text = Field(default="", description="Empty: the one that was told before.")


class WindowEngineView(Output):
    name: str = Field(description="Of the engine; empty: the model of all windows.")
    known: bool = Field(description="Whether there is an engine of this name.")
    model: str = Field(description="Empty: it is not open yet.")
    elsewhere: str = Field(description="The machine that words are sent to; empty: they stay on this one.")
    rule: RemoteScope = Field(description="What of memory the model may read.")
    private: bool
    light: str = Field(description="Which eyes are in use.")
    malformed: int = Field(
        description="Rows of attention that could not be used since the engine was opened."
    )


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["The model"])

    def told() -> EngineViews:
        engines = service.whole.engines
        return EngineViews(engines=[EngineView.of(one) for one in engines.list()], notice=engines.notice)

    @router.get("/api/engines", summary="The engines that windows can choose")
    def get_engines() -> EngineViews:
        return told()

    @router.put("/api/engines/{engine}", summary="Add an engine, or change one")
    def put_engine(engine: _EngineName, asked: EngineDefinition) -> EngineViews:
        service.whole.engines.add(NamedEngine(engine, **asked.model_dump()))
        return told()

    @router.delete("/api/engines/{engine}", summary="Remove an engine")
    def delete_engine(engine: _EngineName) -> EngineViews:
        service.whole.engines.remove(engine)
        return told()

    @router.get("/api/windows/{window_id}/engine", summary="What answers in a window, and where its words go")
    def get_where(window_id: WindowId) -> WindowEngineView:
        return WindowEngineView.model_validate(service.weave.engines.where(window_id))

    return router
