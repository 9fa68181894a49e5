"""What the API tells of models: the one in use, a change of it, and those that there are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from halo_weave.server.schema import Output
from halo_weave.weave.events import ChangeStage
from halo_weave.weave.models import ModelState


class ModelChange(Output):
    """A model on its way, or the last one that was wanted."""

    model: str = Field(description="As it was asked for; empty: the one that the server starts with.")
    state: ChangeStage
    sentence: str
    progress: float | None = Field(description="0 to 1, as far as it is known.")


class ModelTold(Output):
    state: Literal["ready", "loading", "missing"]
    sentence: str = Field(description="What the state means, and what to do.")
    progress: float | None = Field(default=None, description="0 to 1, while weights are downloaded.")
    name: str = ""
    architecture: str = ""
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    trained_context: int = 0
    context: int = 0
    template: str = ""
    template_note: str = Field(default="", description="Why the model's own template is not used.")
    kv: str = ""
    file: str = ""
    size_bytes: int = 0
    parameters: int = Field(default=0, description="How many weights it has; 0: not known.")
    elsewhere: str = Field(
        default="", description="The machine that words are sent to; empty: they stay on this one."
    )
    light: str = Field(default="", description="Where it is seen what the model takes its words from.")
    note: str = Field(default="", description="What should be known of this model.")
    thinks: bool = Field(default=False, description="Whether it thinks before it answers.")
    efforts: list[str] = Field(default=[], description="How much it may think, as far as its template knows.")
    native_tools: bool = Field(default=False, description="Whether its template declares tools.")
    change: ModelChange | None = Field(
        default=None, description="A model on its way, or the last that was wanted."
    )

    @classmethod
    def of(cls, now: ModelState, note: str) -> ModelTold:
        """`note`: what should be known of the model."""
        info, change = now.info, now.change
        told: dict[str, Any] = {}
        if now.state == "ready":
            told = {name: getattr(info, name) for name in cls.model_fields if hasattr(info, name)}
            told["kv"] = "splice" if info.abilities.cuts else "exact"
        waiting = change.sentence if change else "The model is being loaded."
        return cls(
            state=now.state,
            sentence=f"{info.name} is ready." if now.state == "ready" else waiting,
            progress=change.progress if change and now.state == "loading" else None,
            light=now.light if now.state == "ready" else "",
            note=note,
            thinks=now.thinks,
            efforts=list(now.efforts),
            native_tools=now.native_tools,
            change=None if change is None else ModelChange.model_validate(change),
            **told,
        )


class ListedModelTold(Output):
    name: str = Field(description="As it is asked for.")
    title: str
    kind: Literal["chat", "text", "embedder"] | None = Field(description="Null: it cannot be read.")
    size: int = Field(description="Bytes of its files.")
    needs: int | None = Field(description="Bytes of memory, with the KV cache of one full window.")
    fits: bool | None = Field(description="Whether this machine has memory for it.")
    where: str = Field(description="`pulled`, `to pull`, or the program whose folder it lies in.")
    source: str
    path: str | None
    license: str
    problem: str = Field(description="Why it cannot be used, if so.")
    note: str
    in_use: bool = False


class ModelsTold(Output):
    memory: int = Field(description="Bytes that this machine has.")
    default: str = Field(description="The model that is used when none is named.")
    models: list[ListedModelTold]
    recommended: list[str] = Field(description="Models of the hub that should fit.")
    embedders: dict[str, str] = Field(description="Embedders of the hub, and what is known of each.")
    any_path: bool = Field(description="Whether the path of any file may be asked for.")
