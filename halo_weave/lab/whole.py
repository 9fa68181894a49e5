"""A whole conversation said turn by turn through the product, with sleeping and waking; then every question."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.heads import Calibration
from halo_weave.core.tokens import ChunkKey
from halo_weave.index.akin import ensure_akin
from halo_weave.index.recall import Recall
from halo_weave.lab.dialogues import Dialogue, exchanges_of
from halo_weave.lab.forced import ForcedEngine
from halo_weave.places import akin_folder
from halo_weave.ports import Embedder, Engine, Vectors
from halo_weave.settings import Settings
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave, events

WINDOW = "lab"


class RememberedVectors:
    """An embedder that computes no text twice: the same conversation is said again and again."""

    def __init__(self, embedder: Embedder) -> None:
        self.inner, self.name, self.dimension = embedder, embedder.name, embedder.dimension
        self.file = embedder.file
        self._known: dict[tuple[str, bool], Vectors] = {}

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        new = list(dict.fromkeys(text for text in texts if (text, query) not in self._known))
        if new:
            self._known |= {
                (text, query): vector
                for text, vector in zip(new, self.inner.embed(new, query=query), strict=True)
            }
        found = [self._known[text, query] for text in texts]
        return np.stack(found) if found else np.zeros((0, self.dimension), np.float32)

    def vocabulary(self) -> Sequence[str]:
        return self.inner.vocabulary()

    def close(self) -> None:
        """The embedder is its owner's to close."""


def said_whole(
    dialogue: Dialogue,
    engine: Engine,
    calibration: Calibration,
    embedder: Embedder,
    settings: Settings,
    *,
    exchanges: int | None = None,
) -> dict[str, Any]:
    """What of the evidence of all questions is in the context when they are asked, and what was read anew until then.

    `exchanges`: only the first so many, and the questions about them.
    """
    forced, now = ForcedEngine(engine), dialogue.turns[0].said
    keys: dict[str, list[ChunkKey]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "memory.sqlite")
        ensure_akin(akin_folder(), embedder)
        recall = Recall(store, lambda: embedder, akin=akin_folder())
        weave = Weave(
            forced,
            store,
            recall,
            defaults=settings.changed({"read_ahead": "off"}),
            calibration=calibration,
            now=lambda: now,
        )
        with closing(weave):
            window = weave.windows.create(dialogue.name).id
            read = woken = 0
            for user, reply in list(exchanges_of(dialogue.turns))[:exchanges]:
                now = max(user.said, now)
                forced.reply = engine.tokenize(reply.text)
                for event in weave.turns.steps(window, user.text):
                    if isinstance(event, events.Heard):
                        keys |= {name: [one.key for one in event.chunks] for name in user.names}
                    elif isinstance(event, events.Spoken):
                        keys |= {name: [one.key for one in event.chunks] for name in reply.names}
                    elif isinstance(event, events.ChunksWoken):
                        woken += event.cost
                    elif isinstance(event, events.TurnEnded):
                        read += int(event.stats["computed"])
                recall.settle()
            now += timedelta(days=1)
            found = _asked(dialogue, weave, window, keys)
            weave.engine.forget(window)
    return {**found, "read_tokens": read, "woken_tokens": woken}


def _asked(dialogue: Dialogue, weave: Weave, window: str, keys: dict[str, list[ChunkKey]]) -> dict[str, Any]:
    """Each question as if it were the next thing said; nothing is changed by it."""
    live = {one.key for turn in weave.windows.context(window).turns for one in turn.chunks}
    each: list[int] = []  # for each question, whether all of its evidence is there
    live_already = cost = 0
    for one in dialogue.asked:
        if not one.evidence <= keys.keys():
            continue
        needed = {key for name in one.evidence for key in keys[name]}
        plan = weave.memory.preview(window, one.text).plan
        each.append(int(needed <= live.union(plan.keys)))
        live_already += needed <= live
        cost += plan.cost
    return {
        "questions": len(each),
        "found": sum(each),
        "each": each,
        "live": live_already,
        "asked_tokens": cost,
    }
