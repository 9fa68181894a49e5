"""Store finished replies with their attribution, and recover unfinished ones after a crash."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.chat.drafts import RETRY, unstored_message
from halo_weave.chat.open_window import INTERRUPTED, OpenWindow
from halo_weave.chat.reply import ReplyParser, generation_prompt, stored_reply
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.transcript import reply_sources
from halo_weave.chat.views import ReplySourceView
from halo_weave.core.attribution import Attribution
from halo_weave.core.tokens import ChunkKey
from halo_weave.core.working_set import LiveChunk, chunk_parts
from halo_weave.errors import BadInput, StoreError, UnknownWindow, WindowBusy
from halo_weave.store.records import Draft

log = logging.getLogger(__name__)


def store_reply(
    runtime: Runtime,
    open_window: OpenWindow,
    turn_id: int,
    live: Sequence[LiveChunk],
    tags: Mapping[ChunkKey, tuple[str, ...]],
    now: datetime,
) -> None:
    """Store the reply. Retry until the store accepts it: the disk may be full, or another process may hold the file."""
    stored = False
    while True:
        try:
            stored = stored or _append(open_window, turn_id, live, tags, now)
            _save_brightness(open_window)
            break
        except StoreError as error:
            runtime.report_unstored(open_window, unstored_message(str(error)))
            if time.monotonic() > runtime.unrestricted.shutdown_deadline:
                log.error(
                    "A reply of %d chunks in window %s was not stored.", len(live), open_window.record.id
                )
                raise
            time.sleep(RETRY)
    runtime.report_unstored(open_window, "")


def _append(
    open_window: OpenWindow,
    turn_id: int,
    live: Sequence[LiveChunk],
    tags: Mapping[ChunkKey, tuple[str, ...]],
    now: datetime,
) -> bool:
    if not live:
        open_window.store.drop_draft(turn_id)
    elif not (
        open_window.storage_error and open_window.store.turn(turn_id)
    ):  # a commit that was reported as failed may have been made
        open_window.store.append(
            open_window.record.id, live, tokenizer=open_window.engine.info.tokenizer, now=now, tags=tags
        )
    return True


def _save_brightness(open_window: OpenWindow) -> None:
    working_set = open_window.working_set
    try:
        open_window.store.save_brightness(
            open_window.record.id, working_set.chunks, working_set.brightness, working_set.traces
        )
    except BadInput:  # another window or process has deleted or pruned something since the window was opened
        open_window.drop_missing_chunks()
        open_window.store.save_brightness(
            open_window.record.id, working_set.chunks, working_set.brightness, working_set.traces
        )


def store_attribution(
    open_window: OpenWindow,
    turn_id: int,
    use: Attribution | None,
    resurrect_reasons: Mapping[ChunkKey, Mapping[str, Any]],
) -> tuple[ReplySourceView, ...] | None:
    """Store the attribution of a stored reply. If the store refuses, only the attribution is lost."""
    with suppress(StoreError):
        open_window.store.save_use(turn_id, use, resurrect_reasons)
        return reply_sources(open_window.store, [turn_id], open_window.window_names).get(turn_id)
    return None


def read_draft(runtime: Runtime, draft: Draft) -> ReplyParser:
    """Parse a draft with the delimiters of the model that answers in its window now.

    If another model wrote it, its thoughts may be taken for its answer.
    """
    settings = runtime.settings(runtime.store.window(draft.window))
    engine = runtime.model_for_settings(settings).engine
    opening = generation_prompt(engine, settings.effort)
    return stored_reply(draft.start, draft.tokens, engine.facts.marks, opening)


def recover_drafts(runtime: Runtime, held: str | None = None, only: str | None = None) -> list[str]:
    """Store replies that a killed process left unfinished as turns. Returns their windows.

    `held`: also drafts of this process in this window, whose end the store refused. `only`: drafts of this window only.
    """
    if not runtime.engine.info.abilities.speaks:  # a model separates thoughts and answer
        return []
    found = []
    for draft in runtime.store.drafts(now=runtime.now(), held=held):
        if only not in (None, draft.window):
            continue
        try:
            if _store_draft(runtime, draft):
                found.append(draft.window)
        except (StoreError, UnknownWindow, WindowBusy):
            continue  # it stays a draft for the next attempt, or for the server that writes the window now
        except BadInput:
            runtime.store.drop_draft(draft.turn_id)  # another process was faster
    return found


def _store_draft(runtime: Runtime, draft: Draft) -> bool:
    settings = runtime.settings(runtime.store.window(draft.window))
    reply = read_draft(runtime, draft)
    chunks = chunk_parts(
        reply.parts(runtime.model_for_settings(settings).engine.tokenize),
        draft.turn_id,
        draft.answers,
        min_chunk_tokens=settings.min_chunk_tokens,
        max_chunk_tokens=settings.max_chunk_tokens,
    )
    if not chunks:
        runtime.store.drop_draft(draft.turn_id)
        return False
    bright = settings.initial_brightness
    live = [LiveChunk(chunk, np.full(len(chunk), bright, np.float32)) for chunk in chunks]
    cut = {chunk.key: [INTERRUPTED, *reply.tags(chunk.start, chunk.stop)] for chunk in chunks}
    runtime.store.append(draft.window, live, tokenizer=draft.tokenizer, now=draft.saved, tags=cut)
    return True
