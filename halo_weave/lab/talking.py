"""Conversations said to a model: captured for replays, or with replies and their sources for models side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from halo_weave.core.heads import Calibration
from halo_weave.core.use import LEAST_SHARE
from halo_weave.errors import BadInput
from halo_weave.index.recall import Recall
from halo_weave.lab.capture import CaptureWriter
from halo_weave.lab.dialogues import dialogue_of, exchanges_of
from halo_weave.lab.forced import ForcedEngine
from halo_weave.ports import Engine
from halo_weave.settings import Settings
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave, events
from halo_weave.weave.taping import NewTape

Says = Sequence[tuple[str, str]]  # what the user says, and the reply if it is given
Progress = Callable[[str, int, int], None]


def says_of(path: Path) -> list[tuple[str, str]]:
    """A conversation in the form of LoCoMo, or a text file with a message on each line."""
    if path.suffix == ".json":
        return [(user.text, reply.text) for user, reply in exchanges_of(dialogue_of(path).turns)]
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise BadInput(f"There is nothing to say in {path}.")
    return [(line, "") for line in lines if line]


def talked(
    engine: Engine,
    calibration: Calibration,
    settings: Settings,
    says: Says,
    progress: Progress,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """A conversation in a memory of its own, captured in the folder if there is one: what `said_to` tells of it."""
    forced, place = ForcedEngine(engine), folder

    def new_tape(window: str, chosen: Settings, model: Engine, heads: Calibration) -> CaptureWriter:
        assert place is not None
        return CaptureWriter.open(
            place, place.name, model, heads, heads=chosen.capture, most=chosen.capture_megabytes
        )

    tape: NewTape | None = new_tape if folder else None
    with tempfile.TemporaryDirectory() as work:
        store = SqliteStore(Path(work) / "memory.sqlite")
        recall = Recall(store, None)
        with closing(
            Weave(
                forced,
                store,
                recall,
                defaults=settings.changed({"read_ahead": "off"}),
                calibration=calibration,
                new_tape=tape,
            )
        ) as weave:
            return said_to(weave, forced, says, progress)


def said_to(weave: Weave, forced: ForcedEngine, says: Says, progress: Progress) -> list[dict[str, Any]]:
    """For each message: the reply, and the chunks it took most from, in their own words."""
    window = weave.windows.create("lab").id
    told = []
    for number, (text, reply) in enumerate(says):
        progress("Talking", number, len(says))
        forced.reply = forced.tokenize(reply) if reply else None
        said, stats = [], {}
        for event in weave.turns.steps(window, text):
            if isinstance(event, events.TokenSpoken) and not event.thought:
                said.append(event.text)
            elif isinstance(event, events.Spoken) and event.use is not None:
                use = event.use
            elif isinstance(event, events.TurnEnded):
                stats = dict(event.stats)
        sources = [
            {
                "key": str(one.key),
                "share": round(one.share, 3),
                "text": weave.chunks.why(window, one.key).text,
            }
            for one in use.chunks[:3]
            if one.share >= LEAST_SHARE
        ]
        told.append(
            {
                "said": text,
                "reply": "".join(said).strip(),
                "sources": sources,
                "nothing": round(use.nothing, 3),
                "tokens": stats.get("tokens"),
                "tokens_per_second": stats.get("tokens_per_second"),
                "asleep": stats.get("asleep"),
            }
        )
    return told
