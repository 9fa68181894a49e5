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
CaptureNameQuery = Annotated[str, Query(max_length=200, description="Of the capture; the last one if empty.")]
MAX_MEGABYTES = 200  # largest capture that a request may replay


class CaptureView(Output):
    name: str
    model: str
    heads: str = Field(description="Whose attention: mean, retrieval or all.")
    turns: int
    megabytes: float


class Captures(Output):
    captures: list[CaptureView]


class StrategyResult(Output):
    turns: int
    pruned: int
    resurrected: int
    resurrected_tokens: int = Field(description="Computed again, or restored from the cache.")
    live: int = Field(description="Chunks that are live at the end.")
    median_age: float | None = Field(description="In turns, of what was pruned.")
    rows: int
    rows_per_second: int | None


class ReplayedPrune(Output):
    turn: int = Field(description="Of the capture, from 0 on.")
    key: str
    brightness: float
    age: int
    reason: str
    text: str


class StrategyComparison(Output):
    strategies: dict[str, StrategyResult]
    agreement: dict[str, float] = Field(
        description="For each two: what both keep live of what either does, mean over turns."
    )
    pruned: dict[str, list[ReplayedPrune]]
    live: dict[str, list[int]] = Field(description="How many chunks are live after each turn.")


class ReplayedTurn(Output):
    turn: Number = Field(description="The newest turn that is live.")
    brightness: dict[str, float] = Field(description="Of what is live after it, by key.")
    pruned: list[str]
    resurrected: list[str]


class Replay(Output):
    turns: list[ReplayedTurn]


class DigestExcerpt(Output):
    key: KeyText
    text: str
    speaker: str
    said: datetime
    share: float = Field(description="Of the window's replies, added up.")
    replies: list[Number] = Field(description="The turns of those that used it.")


class Digest(Output):
    excerpts: list[DigestExcerpt] = Field(description="In the order in which they were said.")


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows/{window_id}", tags=["Lab"])

    def tapes(window_id: str) -> list[StoredCapture]:
        service.weave.windows.get(window_id)
        return captures_of(captures_folder(service.weave.memory.folder), window_id)

    @router.get("/captures", summary="List captures of a window")
    def get_captures(window_id: WindowId) -> Captures:
        return Captures(
            captures=[
                CaptureView(
                    name=one.folder.name,
                    model=one.about["model"],
                    heads=one.about["heads"],
                    turns=one.turns,
                    megabytes=round(one.bytes / 1e6, 2),
                )
                for one in tapes(window_id)
            ]
        )

    @router.delete("/captures", summary="Delete the captures of a window", status_code=204)
    def delete_captures(window_id: WindowId) -> None:
        service.weave.windows.drop_captures(window_id)

    def recording(window_id: str, name: str) -> StoredCapture:
        found = [one for one in tapes(window_id) if name in ("", one.folder.name)]
        if not found:
            raise BadInput("Nothing was captured of this window. Turn its setting `capture` on and talk.")
        if found[-1].bytes > MAX_MEGABYTES * 1_000_000:
            raise BadInput("This capture is large. Compare it in the terminal: halo-weave lab compare")
        return found[-1]

    def known(strategies: list[str]) -> list[str]:
        if unknown := [one for one in strategies if one not in STRATEGIES]:
            raise BadInput(f"There is no strategy {unknown[0]!r}. There are: {', '.join(STRATEGIES)}.")
        return strategies

    @router.get("/replay", summary="Replay a capture with a strategy")
    def get_replay(
        window_id: WindowId,
        strategy: Annotated[str, Query(max_length=100, description="The captured one if empty.")] = "",
        budget: BudgetQuery = None,
        name: CaptureNameQuery = "",
    ) -> Replay:
        known([strategy] if strategy else [])
        done = replay(recording(window_id, name), strategy=strategy or None, budget=budget)
        return Replay(
            turns=[
                ReplayedTurn(
                    turn=max((key.turn_id for key in bright), default=0),  # type: ignore[arg-type]
                    brightness={str(key): value for key, value in bright.items() if isfinite(value)},
                    pruned=[str(one.key) for one in done.pruned if one.turn == number],
                    resurrected=[str(key) for turn, key in done.resurrected if turn == number],
                )
                for number, bright in enumerate(done.brightness)
            ]
        )

    @router.get("/compare", summary="Compare strategies on a capture")
    def get_compare(
        window_id: WindowId,
        strategies: Annotated[str, Query(max_length=500, description="With commas.")] = "",
        budget: BudgetQuery = None,
        name: CaptureNameQuery = "",
    ) -> StrategyComparison:
        chosen = known([one for one in strategies.split(",") if one] or list(STRATEGIES))
        done, told = compare_strategies(recording(window_id, name), chosen, budget)
        return StrategyComparison(
            strategies=told["strategies"],
            agreement=told["agreement"],
            pruned={
                strategy: [
                    ReplayedPrune(
                        turn=pruned.turn,
                        key=str(pruned.key),
                        brightness=pruned.brightness,
                        age=pruned.age,
                        reason=pruned.why,
                        text=one.texts.get(pruned.key, ""),
                    )
                    for pruned in one.pruned
                ]
                for strategy, one in done.items()
            },
            live={strategy: [len(turn) for turn in one.brightness] for strategy, one in done.items()},
        )

    @router.get("/digest", summary="Show the chunks that replies used most")
    def get_digest(window_id: WindowId, tokens: Annotated[int, Query(ge=1, le=100_000)] = 400) -> Digest:
        return Digest.model_validate({"excerpts": service.weave.windows.digest(window_id, tokens)})

    return router
