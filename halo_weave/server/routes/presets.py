"""Words and settings that windows share: the persona of all windows, and presets."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from halo_weave.records import NAME_LENGTH
from halo_weave.server import requests
from halo_weave.server.schema import SAID, Output
from halo_weave.server.service import Service
from halo_weave.server.wire import SettingValue
from halo_weave.weave.presets import Preset

PresetName = Annotated[str, Query(max_length=NAME_LENGTH, pattern=SAID)]


class PersonaTold(Output):
    system_prompt: str
    user_name: str
    ai_name: str


class PresetTold(Output):
    name: str
    settings: dict[str, SettingValue]
    words: dict[str, str] = Field(description="System prompt and names, as far as it has them.")


class PresetsTold(Output):
    presets: list[PresetTold]


def _words(asked: requests.PersonaChange | None) -> dict[str, Any]:
    return {about: text for about, text in requests.given(asked).items() if text is not None} if asked else {}


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Presets"])

    def told(preset: Preset) -> PresetTold:
        return PresetTold.model_validate(preset)

    @router.get("/api/persona", summary="The words of windows that have none of their own")
    def get_persona() -> PersonaTold:
        return PersonaTold.model_validate(service.weave.presets.persona())

    @router.patch("/api/persona", summary="Change the words of windows that have none of their own")
    def patch_persona(asked: requests.PersonaChange) -> PersonaTold:
        return PersonaTold.model_validate(service.weave.presets.change_persona(_words(asked)))

    @router.get("/api/presets", summary="All presets, by name")
    def get_presets() -> PresetsTold:
        return PresetsTold.model_validate({"presets": service.weave.presets.list()})

    @router.put("/api/presets", summary="Save a preset, in place of one of the same name")
    def put_preset(asked: requests.SavePreset) -> PresetTold:
        presets, name = service.weave.presets, asked.name
        if asked.settings is None and asked.words is None:
            return told(presets.save_from(name, asked.window))
        settings: dict[str, Any] = requests.given(asked.settings) if asked.settings else {}
        return told(presets.save(name, settings, _words(asked.words)))

    @router.post("/api/presets/rename", summary="Rename a preset")
    def post_rename(asked: requests.RenamePreset) -> PresetTold:
        return told(service.weave.presets.rename(asked.name, asked.to))

    @router.post("/api/presets/apply", summary="What the preset sets holds in a window, or in all")
    def post_apply(asked: requests.ApplyPreset) -> PresetTold:
        """What it does not set stays as it is."""
        return told(service.weave.presets.apply(asked.name, asked.window))

    @router.delete("/api/presets", summary="Delete a preset")
    def delete_preset(name: PresetName) -> PresetTold:
        """Windows that it was applied to stay as they are. The answer is what it was, to save it again."""
        return told(service.weave.presets.delete(name))

    return router
