"""A finished reply goes to the store, however long that takes; then where it came from."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from halo_weave.core.tokens import ChunkKey
from halo_weave.core.use import ReplyUse
from halo_weave.core.window import Live
from halo_weave.errors import BadInput, StoreError
from halo_weave.weave.desk import Desk
from halo_weave.weave.drafts import RETRY, unstored
from halo_weave.weave.seen import Reminder
from halo_weave.weave.system import System
from halo_weave.weave.transcript import remembered

log = logging.getLogger(__name__)


def store_reply(
    system: System,
    desk: Desk,
    turn_id: int,
    live: Sequence[Live],
    tags: Mapping[ChunkKey, tuple[str, ...]],
    now: datetime,
) -> None:
    """What was shown is kept until the store takes it: the disk may be full, another process may hold the file."""
    stored = False
    while True:
        try:
            stored = stored or _append(desk, turn_id, live, tags, now)
            _save_brightness(desk)
            break
        except StoreError as error:
            system.note_unstored(desk, unstored(str(error)))
            if time.monotonic() > system.give_up:
                log.error("A reply of %d chunks in window %s was not stored.", len(live), desk.record.id)
                raise
            time.sleep(RETRY)
    system.note_unstored(desk, "")


def _append(
    desk: Desk,
    turn_id: int,
    live: Sequence[Live],
    tags: Mapping[ChunkKey, tuple[str, ...]],
    now: datetime,
) -> bool:
    if not live:
        desk.store.drop_draft(turn_id)
    elif not (desk.unstored and desk.store.turn(turn_id)):  # a refused commit may have been made
        desk.store.append(desk.record.id, live, tokenizer=desk.engine.info.tokenizer, now=now, tags=tags)
    return True


def _save_brightness(desk: Desk) -> None:
    window = desk.window
    try:
        desk.store.save_brightness(desk.record.id, window.chunks, window.brightness, window.traces)
    except BadInput:  # another window or process has deleted something meanwhile, or put it to sleep
        desk.follow_store()
        desk.store.save_brightness(desk.record.id, window.chunks, window.brightness, window.traces)


def store_use(
    desk: Desk, turn_id: int, use: ReplyUse | None, woken: Mapping[ChunkKey, Mapping[str, Any]]
) -> tuple[Reminder, ...] | None:
    """What was said is stored already; if the store refuses now, only where it came from is lost."""
    with suppress(StoreError):
        desk.store.save_use(turn_id, use, woken)
        return remembered(desk.store, [turn_id], desk.names).get(turn_id)
    return None
