"""Models: the one in use, those that are available, changing the model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models import catalogue, inventory
from halo_weave.models.memory_estimate import machine_cores, machine_memory
from halo_weave.server import requests, views
from halo_weave.server.api.turns import StopResult
from halo_weave.server.auth import Policy
from halo_weave.server.current_user import CURRENT_USER, UNKNOWN_USER
from halo_weave.server.errors import ApiError
from halo_weave.server.service import Service


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["Models"])
    # Whoever has a key is trusted with the memory, not with the files of this machine.
    any_path = not policy.key

    @router.get("/api/model", summary="Show the model in use and the progress of a change")
    def get_model() -> views.ModelView:
        return service.model()

    @router.get("/api/models", summary="List models to pull and models on this machine")
    def get_models() -> views.AvailableModels:
        service.whole  # noqa: B018 - files of this machine are told to whoever runs it
        memory, used = machine_memory(), (service.model().file, _embedder_in_use(service))
        told = [
            views.AvailableModel(
                **asdict(one), in_use=one.path is not None and any(_same(one.path, file) for file in used)
            )
            for one in inventory.listed_models(memory)
        ]
        return views.AvailableModels(
            memory=memory,
            default=catalogue.default_model(memory, machine_cores())[0].name,
            models=told,
            recommended=[one.name for one in catalogue.recommended(memory)],
            embedders=catalogue.HUB_EMBEDDERS,
            any_path=any_path,
        )

    @router.post("/api/model", summary="Change the model", status_code=202)
    def post_model(asked: requests.ChooseModel) -> views.ModelView:
        """It is pulled if it is not here, loaded and calibrated in the background; the events of every window show the progress.

        The model in use speaks until then, and goes on if the other one cannot be had.
        """
        weave = service.whole
        try:
            found = inventory.find_model(asked.model.strip(), any_path=any_path)
        except ModelNotFound as error:
            raise ApiError(404, "unknown_model", str(error)) from error
        if isinstance(found, catalogue.CatalogueEntry) and found.kind == "embedder":
            raise BadInput(f"{found.title} is an embedding model. Choose one to talk with.")
        weave.models.choose(str(found) if isinstance(found, Path) else asked.model.strip())
        return service.model()

    @router.post("/api/model/stop", summary="Stop changing the model")
    def post_model_stop() -> StopResult:
        """The model in use stays. What was downloaded is kept for the next time."""
        return StopResult(stopped=service.whole.models.stop())

    @router.post("/api/model/retry", summary="Retry loading a missing model", status_code=202)
    def post_model_retry() -> views.Status:
        if (
            not service.runs_it and CURRENT_USER.get() != UNKNOWN_USER
        ):  # before the memory is open nobody is known
            raise ApiError(403, "not_yours", "This is for whoever runs the server.")
        service.begin()
        return service.status()

    return router


def check_embedder(name: str, *, any_path: bool) -> None:
    """Refuse what is not there, and models to talk with, before anything begins."""
    try:
        found = inventory.find_model(name, any_path=any_path)
    except ModelNotFound as error:
        raise ApiError(404, "unknown_model", str(error)) from error
    if isinstance(found, catalogue.CatalogueEntry) and found.kind != "embedder":
        raise BadInput(f"{found.title} is a model to talk with. Choose an embedding model.")


def _embedder_in_use(service: Service) -> str:
    """Its file; of the standard one, the file that was pulled, since it is made of that."""
    used, standard = service.status().embedder.file, catalogue.DEFAULT_EMBEDDER.path
    return str(standard) if used and Path(used).parent == standard.parent else used


def _same(one: str, other: str) -> bool:
    return bool(other) and Path(one).resolve() == Path(other).resolve()
