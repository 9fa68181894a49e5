"""Strategies measured on a folder of conversations, piece by piece, so that a long measurement can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halo_weave.core.brightness import Strategy
from halo_weave.core.heads import Calibration
from halo_weave.core.strategies import STRATEGIES
from halo_weave.lab import figures
from halo_weave.lab.dialogues import Dialogue, windows_of
from halo_weave.lab.figures import Records
from halo_weave.lab.trial import VOTES, Chance, Talk, tried, votes_of_replies
from halo_weave.lab.whole import said_whole
from halo_weave.ports import Embedder, Engine
from halo_weave.settings import Settings
from halo_weave.weave.prompt import Scribe

CHANCE = "random"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    windows: int = 4  # of each conversation
    questions: int = 12  # of each window, at most
    tokens: int = 2_000  # of each window, about
    budgets: tuple[int, ...] = (1_000, 2_000, 4_000)
    strategies: tuple[str, ...] = (Settings().strategy, "first_in_first_out")  # said whole
    exchanges: int | None = None  # of each conversation that is said whole; None: all


def measure_windows(
    talks: Iterable[Dialogue],
    engine: Engine,
    calibration: Calibration,
    extent: Extent,
    records: Records,
    say: Say,
    time_left: Callable[[], bool],
) -> bool:
    """Attribution and keeping. False: there was no time for all of it."""
    scribe = Scribe(engine)
    for dialogue in talks:
        for number, part in enumerate(windows_of(dialogue.turns, engine, extent.tokens, extent.windows)):
            name = f"window {dialogue.name} {number + 1} of {extent.windows}"
            if name in records.known:
                continue
            if not time_left():
                return False
            strategies: dict[str, Strategy] = {
                name: strategy(calibration=calibration) for name, strategy in STRATEGIES.items()
            }
            strategies |= {CHANCE: Chance(), VOTES: votes_of_replies()}
            talk = Talk.begin(engine, calibration, scribe, strategies)
            records.add(name, tried(talk, part, dialogue.asked, extent.questions))
            top = figures.attribution(records.of("window")).get("default", {}).get("top1")
            say(f"{name}: {len(part)} turns, top 1 so far {top}")
    return True


def measure_whole(
    talks: Sequence[Dialogue],
    engine: Engine,
    calibration: Calibration,
    embedder: Embedder,
    extent: Extent,
    records: Records,
    say: Say,
    time_left: Callable[[], bool],
) -> bool:
    """End to end. False: there was no time for all of it."""
    for dialogue in talks:
        for budget in extent.budgets:
            for strategy in extent.strategies:
                name = f"whole {dialogue.name} {budget} {strategy}"
                if name in records.known:
                    continue
                if not time_left():
                    return False
                settings = replace(Settings(), max_context_tokens=budget, strategy=strategy)
                found: dict[str, Any] = said_whole(
                    dialogue, engine, calibration, embedder, settings, exchanges=extent.exchanges
                )
                about = {"dialogue": dialogue.name, "budget": str(budget), "strategy": strategy}
                records.add(name, about | found)
                say(f"{name}: {found['found']} of {found['questions']} questions have all their evidence")
    return True
