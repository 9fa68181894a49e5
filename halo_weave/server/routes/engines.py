"""Engines that windows can choose, and where the words of a window go."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import Field

from halo_weave.engine_list import NamedEngine
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import WHOLE, Input, Output
from halo_weave.server.service import Service
from halo_weave.settings import Leaving
from halo_weave.weave.elsewhere import ListedEngine

_Text = Annotated[str, Field(max_length=2000, pattern=WHOLE)]
_EngineName = Annotated[str, InPath(min_length=1, max_length=60, pattern=r"^[\w .:@-]+$")]


class EngineTold(Output):
    name: str
    kind: str
    url: str
    model_name: str
    reader: str
    has_key: bool = Field(description="Whether a key is known. The key itself is never told.")
    configured: bool = Field(description="Whether it stands in config.toml, and can only be changed there.")
    open: bool
    elsewhere: str = Field(description="The machine that words are sent to; empty: they stay on this one.")
    light: str = Field(description="Which eyes are in use, once it is open.")

    @classmethod
    def of(cls, one: ListedEngine) -> EngineTold:
        names = ("name", "kind", "url", "model_name", "reader", "configured")
        own = {name: getattr(one.engine, name) for name in names}
        return cls(**own, has_key=one.has_key, open=one.open, elsewhere=one.elsewhere, light=one.light)


class EnginesTold(Output):
    engines: list[EngineTold]
    notice: str = Field(default="", description="What was wrong with the file of engines; empty: nothing.")


class PutEngine(Input):
    kind: Literal["kobold", "openai", "llama"]
    url: _Text = ""
    model_name: _Text = Field(default="", description="As the server knows it; for llama a file or a name.")
    reader: _Text = Field(
        default="", description="A small model that reads along, or off; empty: the smallest."
    )
    key: _Text = Field(default="", description="Empty: the one that was told before.")


class WhereTold(Output):
    name: str = Field(description="Of the engine; empty: the model of all windows.")
    known: bool = Field(description="Whether there is an engine of this name.")
    model: str = Field(description="Empty: it is not open yet.")
    elsewhere: str = Field(description="The machine that words are sent to; empty: they stay on this one.")
    rule: Leaving = Field(description="What of memory the model may read.")
    private: bool
    light: str = Field(description="Which eyes are in use.")
    malformed: int = Field(
        description="Rows of attention that could not be used since the engine was opened."
    )


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["The model"])

    def told() -> EnginesTold:
        engines = service.whole.engines
        return EnginesTold(engines=[EngineTold.of(one) for one in engines.list()], notice=engines.notice)

    @router.get("/api/engines", summary="The engines that windows can choose")
    def get_engines() -> EnginesTold:
        return told()

    @router.put("/api/engines/{engine}", summary="Add an engine, or change one")
    def put_engine(engine: _EngineName, asked: PutEngine) -> EnginesTold:
        service.whole.engines.add(NamedEngine(engine, **asked.model_dump()))
        return told()

    @router.delete("/api/engines/{engine}", summary="Remove an engine")
    def delete_engine(engine: _EngineName) -> EnginesTold:
        service.whole.engines.remove(engine)
        return told()

    @router.get("/api/windows/{window_id}/engine", summary="What answers in a window, and where its words go")
    def get_where(window_id: WindowId) -> WhereTold:
        return WhereTold.model_validate(service.weave.engines.where(window_id))

    return router
