"""The model: which one is in use, which ones there are, and changing it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.llama import catalogue, inventory
from halo_weave.llama.footprint import machine_cores, machine_memory
from halo_weave.server import modelwire, requests, wire
from halo_weave.server.asking import UNKNOWN, WHO
from halo_weave.server.refusals import Refusal
from halo_weave.server.routes.turns import Stopped
from halo_weave.server.security import Policy
from halo_weave.server.service import Service


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["The model"])
    # Whoever has a key is trusted with the memory, not with the files of this machine.
    any_path = not policy.key

    @router.get("/api/model", summary="The model in use, and how far a change is")
    def get_model() -> modelwire.ModelTold:
        return service.model()

    @router.get("/api/models", summary="What can be pulled, what was, and what lies on this machine")
    def get_models() -> modelwire.ModelsTold:
        service.whole  # noqa: B018 - files of this machine are told to whoever runs it
        memory, used = machine_memory(), (service.model().file, _embedder_in_use(service))
        told = [
            modelwire.ListedModelTold(
                **asdict(one), in_use=one.path is not None and any(_same(one.path, file) for file in used)
            )
            for one in inventory.listed_models(memory)
        ]
        return modelwire.ModelsTold(
            memory=memory,
            default=catalogue.default_model(memory, machine_cores())[0].name,
            models=told,
            recommended=[one.name for one in catalogue.recommended(memory)],
            embedders=catalogue.HUB_EMBEDDERS,
            any_path=any_path,
        )

    @router.post("/api/model", summary="Change the model", status_code=202)
    def post_model(asked: requests.ChooseModel) -> modelwire.ModelTold:
        """It is pulled if it is not here, loaded and calibrated in the background, told of in the events of every window.

        The model in use speaks until then, and goes on if the other one cannot be had.
        """
        weave = service.whole
        try:
            found = inventory.find(asked.model.strip(), any_path=any_path)
        except ModelNotFound as error:
            raise Refusal(404, "unknown_model", str(error)) from error
        if isinstance(found, catalogue.CatalogueEntry) and found.kind == "embedder":
            raise BadInput(f"{found.title} is an embedding model. Choose one to talk with.")
        weave.models.choose(str(found) if isinstance(found, Path) else asked.model.strip())
        return service.model()

    @router.post("/api/model/stop", summary="Leave the model that is on its way")
    def post_stop() -> Stopped:
        """The model in use stays. What was downloaded is kept for the next time."""
        return Stopped(stopped=service.whole.models.stop())

    @router.post("/api/model/retry", summary="Try again to load the model, if it is missing", status_code=202)
    def post_retry() -> wire.Status:
        if not service.runs_it and WHO.get() != UNKNOWN:  # before the memory is open nobody is known
            raise Refusal(403, "not_yours", "This is for whoever runs the server.")
        service.begin()
        return service.status()

    return router


def check_embedder(name: str, *, any_path: bool) -> None:
    """Refuse what is not there, and models to talk with, before anything begins."""
    try:
        found = inventory.find(name, any_path=any_path)
    except ModelNotFound as error:
        raise Refusal(404, "unknown_model", str(error)) from error
    if isinstance(found, catalogue.CatalogueEntry) and found.kind != "embedder":
        raise BadInput(f"{found.title} is a model to talk with. Choose an embedding model.")


def _embedder_in_use(service: Service) -> str:
    """Its file; of the standard one, the file that was pulled, since it is made of that."""
    used, standard = service.status().embedder.file, catalogue.EMBEDDER.path
    return str(standard) if used and Path(used).parent == standard.parent else used


def _same(one: str, other: str) -> bool:
    return bool(other) and Path(one).resolve() == Path(other).resolve()
