"""Answers about what was said in a window, and where the words of a reply came from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AliasPath, BeforeValidator, Field

from halo_weave.core.tokens import Role
from halo_weave.server.schema import KeyText, Number, Output


class RememberedTold(Output):
    """What a reply took from a chunk, or that the chunk woke up for the question and was not used."""

    key: KeyText
    start: Number
    tokens: int
    text: str
    said: datetime
    window: str = Field(description="Where it was said.")
    window_name: str
    speaker: str
    share: float | None = Field(description="Of the reply; null if it is not known.")
    woken: dict[str, Any] | None = Field(description="Why it woke up; null if it was live already.")


class SpeechTold(Output):
    turn_id: Number
    role: Role
    said: datetime
    window: str = Field(description="Where it was said.")
    window_name: str
    speaker: str
    cut: bool = Field(description="The program ended before this reply did; what was stored of it is here.")
    unfinished: bool = Field(
        description="This reply reached its longest length, or filled the model's context. It can be continued."
    )
    siblings: int = Field(description="How many turns there are at this place, on all branches.")
    sibling: int = Field(description="Which of them this is, in order of time, from 1 on.")
    document: bool = Field(description="A file that was attached; its name is the speaker.")
    remembered: list[RememberedTold] | None = Field(
        description="Of a reply, what it was reminded of; null if that is not known."
    )


class SaidChunkTold(Output):
    key: KeyText
    start: Number
    tokens: int
    text_pieces: list[str]
    tool: bool
    thought: bool


class SaidTurnTold(SpeechTold):
    chunks: list[SaidChunkTold]


class SaidTold(Output):
    total: int = Field(description="Turns that were said in the window.")
    offset: int = Field(description="Of the first that is here.")
    turns: list[SaidTurnTold]


class DeletedTold(Output):
    key: KeyText
    role: Role = Field(validation_alias=AliasPath("key", "role"))
    turn_id: Number = Field(validation_alias=AliasPath("key", "turn_id"))
    start: Number = Field(validation_alias=AliasPath("chunk", "start"))
    tokens: Annotated[int, BeforeValidator(len)] = Field(validation_alias="chunk")
    slept: datetime = Field(validation_alias="deleted", description="When it was deleted.")
    said: datetime
    window: str
    window_name: str = ""
    speaker: str
    text: str = Field(validation_alias=AliasPath("chunk", "text"))


class DeletedPage(Output):
    total: int
    items: list[DeletedTold]


class ChunkShareTold(Output):
    key: KeyText
    start: Number = Field(description="The position that offsets count from.")
    share: float


class TokenSourceTold(Output):
    place: int = Field(description="Of the chunk in `chunks`.")
    offset: int = Field(description="Of the token within it.")
    share: float


class UseTold(Output):
    """What a reply took from chunks before its exchange; with `nothing` the shares add up to 1."""

    chunks: list[ChunkShareTold] = Field(description="The largest share first.")
    nothing: float = Field(
        description="Came from nothing in particular, from the question or the reply itself."
    )
    tokens: list[list[TokenSourceTold]] = Field(
        description="Where each token of the reply came from, strongest first."
    )


class ReplyUseTold(Output):
    start: Number = Field(description="The position of the reply's first token.")
    use: UseTold | None = Field(description="Null if it is not known.")
