"""The lab: captures of a window, replay, comparison of strategies, digest."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from halo_weave.chat.capture import StoredCapture, captures_of
from halo_weave.core.strategies import STRATEGIES
from halo_weave.errors import BadInput
from halo_weave.lab.replay import compare_strategies, replay
from halo_weave.paths import captures_folder
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import KeyText, Number, Output
from halo_weave.server.service import Service

BudgetQuery = Annotated[int | None, Query(ge=0, le=10**6, description="Default: as in the capture.")]
CaptureNameQuery = Annotated[
    str, Query(max_length=200, description="Name of the capture; empty: the last one.")
]
MAX_MEGABYTES = 200  # largest capture that a request may replay


class CaptureView(Output):
    name: str
    model: str
    heads: str = Field(description="The captured attention heads: mean, retrieval or all.")
    turns: int
    megabytes: float


class Captures(Output):
    captures: list[CaptureView]


class StrategyResult(Output):
    turns: int
    pruned: int
    resurrected: int
    resurrected_tokens: int = Field(description="Tokens of the resurrected chunks.")
    live: int = Field(description="Chunks that are live at the end.")
    median_age: float | None = Field(description="Median age of pruned chunks, in turns.")
    rows: int
    rows_per_second: int | None


class ReplayedPrune(Output):
    turn: int = Field(description="Index of the turn in the capture, from 0 on.")
    key: str
    brightness: float
    age: int
    reason: str
    text: str


class StrategyComparison(Output):
    strategies: dict[str, StrategyResult]
    agreement: dict[str, float] = Field(
        description="For each two strategies: the chunks that both keep live, as a share of those that either does; mean over turns."
    )
    pruned: dict[str, list[ReplayedPrune]]
    live: dict[str, list[int]] = Field(description="How many chunks are live after each turn.")


class ReplayedTurn(Output):
    turn: Number = Field(description="The newest turn that is live.")
    brightness: dict[str, float] = Field(description="Brightness of the live chunks after the turn, by key.")
    pruned: list[str]
    resurrected: list[str]


class Replay(Output):
    turns: list[ReplayedTurn]


class DigestExcerpt(Output):
    key: KeyText
    text: str
    speaker: str
    said: datetime
    share: float = Field(description="Sum of its shares in the window's replies.")
    replies: list[Number] = Field(description="Turns of the replies that used it.")


class Digest(Output):
    excerpts: list[DigestExcerpt] = Field(description="In chronological order.")


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows/{window_id}", tags=["Lab"])

    def captures_in(window_id: str) -> list[StoredCapture]:
        service.weave.windows.get(window_id)
        return captures_of(captures_folder(service.weave.memory.folder), window_id)

    @router.get("/captures", summary="List captures of a window")
    def get_captures(window_id: WindowId) -> Captures:
        return Captures(
            captures=[
                CaptureView(
                    name=capture.folder.name,
                    model=capture.about["model"],
                    heads=capture.about["heads"],
                    turns=capture.turns,
                    megabytes=round(capture.bytes / 1e6, 2),
                )
                for capture in captures_in(window_id)
            ]
        )

    @router.delete("/captures", summary="Delete the captures of a window", status_code=204)
    def delete_captures(window_id: WindowId) -> None:
        service.weave.windows.drop_captures(window_id)

    def capture_named(window_id: str, name: str) -> StoredCapture:
        captures = [capture for capture in captures_in(window_id) if name in ("", capture.folder.name)]
        if not captures:
            raise BadInput("This window has no capture. Turn its setting `capture` on and send a message.")
        if captures[-1].bytes > MAX_MEGABYTES * 1_000_000:
            raise BadInput("This capture is large. Compare it in the terminal: halo-weave lab compare")
        return captures[-1]

    def checked_strategies(strategies: list[str]) -> list[str]:
        if unknown := [name for name in strategies if name not in STRATEGIES]:
            raise BadInput(f"There is no strategy {unknown[0]!r}. Use one of: {', '.join(STRATEGIES)}.")
        return strategies

    @router.get("/replay", summary="Replay a capture with a strategy")
    def get_replay(
        window_id: WindowId,
        strategy: Annotated[
            str, Query(max_length=100, description="Empty: the strategy of the capture.")
        ] = "",
        budget: BudgetQuery = None,
        name: CaptureNameQuery = "",
    ) -> Replay:
        checked_strategies([strategy] if strategy else [])
        results = replay(capture_named(window_id, name), strategy=strategy or None, budget=budget)
        return Replay(
            turns=[
                ReplayedTurn(
                    turn=max((key.turn_id for key in bright), default=0),  # type: ignore[arg-type]
                    brightness={str(key): value for key, value in bright.items() if isfinite(value)},
                    pruned=[str(chunk.key) for chunk in results.pruned if chunk.turn == number],
                    resurrected=[str(key) for turn, key in results.resurrected if turn == number],
                )
                for number, bright in enumerate(results.brightness)
            ]
        )

    @router.get("/compare", summary="Compare strategies on a capture")
    def get_compare(
        window_id: WindowId,
        strategies: Annotated[
            str, Query(max_length=500, description="Names, separated by commas; empty: all.")
        ] = "",
        budget: BudgetQuery = None,
        name: CaptureNameQuery = "",
    ) -> StrategyComparison:
        chosen = checked_strategies([name for name in strategies.split(",") if name] or list(STRATEGIES))
        results, summary = compare_strategies(capture_named(window_id, name), chosen, budget)
        return StrategyComparison(
            strategies=summary["strategies"],
            agreement=summary["agreement"],
            pruned={
                strategy: [
                    ReplayedPrune(
                        turn=pruned.turn,
                        key=str(pruned.key),
                        brightness=pruned.brightness,
                        age=pruned.age,
                        reason=pruned.why,
                        text=result.texts.get(pruned.key, ""),
                    )
                    for pruned in result.pruned
                ]
                for strategy, result in results.items()
            },
            live={
                strategy: [len(turn) for turn in result.brightness] for strategy, result in results.items()
            },
        )

    @router.get("/digest", summary="Show the chunks that replies used most")
    def get_digest(window_id: WindowId, tokens: Annotated[int, Query(ge=1, le=100_000)] = 400) -> Digest:
        return Digest.model_validate({"excerpts": service.weave.windows.digest(window_id, tokens)})

    return router
