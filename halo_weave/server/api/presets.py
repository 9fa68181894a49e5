"""The persona of all windows, and presets of texts and settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from halo_weave.chat.presets import Preset
from halo_weave.server import requests
from halo_weave.server.schema import NON_BLANK_PATTERN, Output
from halo_weave.server.service import Service
from halo_weave.server.views import SettingValue
from halo_weave.store.records import NAME_LENGTH

PresetName = Annotated[str, Query(max_length=NAME_LENGTH, pattern=NON_BLANK_PATTERN)]


class Persona(Output):
    system_prompt: str
    user_name: str
    ai_name: str


class PresetView(Output):
    name: str
    settings: dict[str, SettingValue]
    persona: dict[str, str] = Field(
        validation_alias="words", description="The system prompt and names that the preset has."
    )


class Presets(Output):
    presets: list[PresetView]


def _texts(body: requests.PersonaChange | None) -> dict[str, Any]:
    return (
        {name: text for name, text in requests.given_fields(body).items() if text is not None} if body else {}
    )


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Presets"])

    def view_of(preset: Preset) -> PresetView:
        return PresetView.model_validate(preset)

    @router.get("/api/persona", summary="Show the system prompt and names that all windows share")
    def get_persona() -> Persona:
        return Persona.model_validate(service.weave.presets.persona())

    @router.patch("/api/persona", summary="Change the system prompt and names that all windows share")
    def patch_persona(body: requests.PersonaChange) -> Persona:
        return Persona.model_validate(service.weave.presets.change_persona(_texts(body)))

    @router.get("/api/presets", summary="List presets")
    def get_presets() -> Presets:
        return Presets.model_validate({"presets": service.weave.presets.list()})

    @router.put("/api/presets", summary="Save a preset; one of the same name is replaced")
    def put_preset(body: requests.SavePreset) -> PresetView:
        presets, name = service.weave.presets, body.name
        if body.settings is None and body.persona is None:
            return view_of(presets.save_from(name, body.window))
        settings: dict[str, Any] = requests.given_fields(body.settings) if body.settings else {}
        return view_of(presets.save(name, settings, _texts(body.persona)))

    @router.post("/api/presets/rename", summary="Rename a preset")
    def post_rename(body: requests.RenamePreset) -> PresetView:
        return view_of(service.weave.presets.rename(body.name, body.to))

    @router.post("/api/presets/apply", summary="Apply a preset to one window or to all")
    def post_apply(body: requests.ApplyPreset) -> PresetView:
        """Settings and texts that the preset does not have stay unchanged."""
        return view_of(service.weave.presets.apply(body.name, body.window))

    @router.delete("/api/presets", summary="Delete a preset")
    def delete_preset(name: PresetName) -> PresetView:
        """Windows that it was applied to stay as they are. The response is the deleted preset, to save it again."""
        return view_of(service.weave.presets.delete(name))

    return router
