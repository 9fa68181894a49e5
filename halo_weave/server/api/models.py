"""Models and engines: the model in use, available models, changing the model, and the engines that windows can choose."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import Field

from halo_weave.chat.models import ListedEngine
from halo_weave.engines.engine_list import NamedEngine
from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models import catalogue, inventory
from halo_weave.models.memory_estimate import machine_cores, machine_memory
from halo_weave.server import requests, views
from halo_weave.server.api.turns import StopResult
from halo_weave.server.auth import CURRENT_USER, UNKNOWN_USER, Policy
from halo_weave.server.errors import ApiError
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import TEXT_PATTERN, Input, Output
from halo_weave.server.service import Service
from halo_weave.settings import RemoteScope


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["Models"])
    # With a key the server may have other users. They may use the memory, but not any file of this machine.
    any_path = not policy.key

    @router.get("/api/model", summary="Show the model in use and the progress of a change")
    def get_model() -> views.ModelView:
        return service.model()

    @router.get("/api/models", summary="List models to pull and models on this machine")
    def get_models() -> views.AvailableModels:
        service.unrestricted_weave  # noqa: B018 - checks that the owner asks: the list has file names of this machine
        memory, used = machine_memory(), (service.model().file, _embedder_in_use(service))
        listing = [
            views.AvailableModel(
                **asdict(model),
                in_use=model.path is not None and any(_same(model.path, file) for file in used),
            )
            for model in inventory.listed_models(memory)
        ]
        return views.AvailableModels(
            memory=memory,
            default=catalogue.default_model(memory, machine_cores())[0].name,
            models=listing,
            recommended=[entry.name for entry in catalogue.recommended(memory)],
            embedders=catalogue.HUB_EMBEDDERS,
            any_path=any_path,
        )

    @router.post("/api/model", summary="Change the model", status_code=202)
    def post_model(body: requests.ChooseModel) -> views.ModelView:
        """It is downloaded if necessary, loaded and calibrated in the background; the events of every window show the
        progress. The current model answers until then, and stays if the other one fails."""
        weave = service.unrestricted_weave
        try:
            model = inventory.find_model(body.model.strip(), any_path=any_path)
        except ModelNotFound as error:
            raise ApiError(404, "unknown_model", str(error)) from error
        if isinstance(model, catalogue.CatalogueEntry) and model.kind == "embedder":
            raise BadInput(f"{model.title} is an embedding model. Choose a chat model.")
        weave.models.choose(str(model) if isinstance(model, Path) else body.model.strip())
        return service.model()

    @router.post("/api/model/stop", summary="Stop changing the model")
    def post_model_stop() -> StopResult:
        """The current model stays. What was downloaded is kept for the next time."""
        return StopResult(stopped=service.unrestricted_weave.models.stop())

    @router.post("/api/model/retry", summary="Retry loading a missing model", status_code=202)
    def post_model_retry() -> views.Status:
        if (
            not service.is_owner and CURRENT_USER.get() != UNKNOWN_USER
        ):  # people are not known before the memory is open
            raise ApiError(403, "not_yours", "Only the owner of this server may do this.")
        service.begin()
        return service.status()

    return router


def check_embedder(name: str, *, any_path: bool) -> None:
    """Refuse missing files and chat models before anything begins."""
    try:
        model = inventory.find_model(name, any_path=any_path)
    except ModelNotFound as error:
        raise ApiError(404, "unknown_model", str(error)) from error
    if isinstance(model, catalogue.CatalogueEntry) and model.kind != "embedder":
        raise BadInput(f"{model.title} is a chat model. Choose an embedding model.")


def _embedder_in_use(service: Service) -> str:
    """The file of the embedder; for the default one, the downloaded file from which it was converted."""
    used, standard = service.status().embedder.file, catalogue.DEFAULT_EMBEDDER.path
    return str(standard) if used and Path(used).parent == standard.parent else used


def _same(path: str, other: str) -> bool:
    return bool(other) and Path(path).resolve() == Path(other).resolve()


_Text = Annotated[str, Field(max_length=2000, pattern=TEXT_PATTERN)]
_EngineName = Annotated[str, InPath(min_length=1, max_length=60, pattern=r"^[\w .:@-]+$")]


class EngineView(Output):
    name: str
    kind: str
    url: str
    model_name: str
    shadow_model: str
    has_key: bool = Field(description="Whether a key is known. The key itself is never shown.")
    configured: bool = Field(
        description="Whether it is configured in config.toml, and can only be changed there."
    )
    open: bool
    remote_host: str = Field(description="The machine that text is sent to; empty: it stays on this one.")
    attention_source: str = Field(description="Where the attention comes from, once it is open.")

    @classmethod
    def of(cls, engine: ListedEngine) -> EngineView:
        names = ("name", "kind", "url", "model_name", "shadow_model", "configured")
        own = {name: getattr(engine.engine, name) for name in names}
        return cls(
            **own,
            has_key=engine.has_key,
            open=engine.open,
            remote_host=engine.elsewhere,
            attention_source=engine.light,
        )


class Engines(Output):
    engines: list[EngineView]
    notice: str = Field(default="", description="What was wrong with engines.json; empty if nothing.")


class EngineDefinition(Input):
    kind: Literal["kobold", "openai", "llama"]
    url: _Text = ""
    model_name: _Text = Field(
        default="", description="Name of the model on the server; for llama a file or a name."
    )
    shadow_model: _Text = Field(
        default="", description="A small local model that supplies attention, or off; empty: the smallest."
    )
    key: _Text = Field(default="", description="Empty: keep the stored key.")


class WindowEngineView(Output):
    name: str = Field(description="Name of the engine; empty: the model of all windows.")
    known: bool = Field(description="Whether there is an engine of this name.")
    model: str = Field(description="Name of the model; empty if the engine is not open yet.")
    remote_host: str = Field(
        validation_alias="elsewhere",
        description="The machine that text is sent to; empty: it stays on this one.",
    )
    remote_scope: RemoteScope = Field(
        validation_alias="rule", description="Which part of the memory may be sent to the model."
    )
    private: bool
    attention_source: str = Field(validation_alias="light", description="Where the attention comes from.")
    malformed_rows: int = Field(
        validation_alias="malformed",
        description="Rows of attention that could not be used since the engine was opened.",
    )


def engine_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Models"])

    def listing() -> Engines:
        engines = service.unrestricted_weave.engines
        return Engines(engines=[EngineView.of(engine) for engine in engines.list()], notice=engines.notice)

    @router.get("/api/engines", summary="List engines")
    def get_engines() -> Engines:
        return listing()

    @router.put("/api/engines/{engine}", summary="Add or change an engine")
    def put_engine(engine: _EngineName, body: EngineDefinition) -> Engines:
        service.unrestricted_weave.engines.add(NamedEngine(engine, **body.model_dump()))
        return listing()

    @router.delete("/api/engines/{engine}", summary="Remove an engine")
    def delete_engine(engine: _EngineName) -> Engines:
        service.unrestricted_weave.engines.remove(engine)
        return listing()

    @router.get(
        "/api/windows/{window_id}/engine", summary="Show the engine of a window, and where its text is sent"
    )
    def get_window_engine(window_id: WindowId) -> WindowEngineView:
        return WindowEngineView.model_validate(service.weave.engines.where(window_id))

    return router
