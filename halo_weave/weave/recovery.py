"""Replies that were stored before they were finished: read as what they say, and turned into turns when nobody writes them."""

from __future__ import annotations

import numpy as np

from halo_weave.core.window import Live, chunk_parts
from halo_weave.errors import BadInput, StoreError, UnknownWindow, WindowBusy
from halo_weave.records import Draft
from halo_weave.weave.desk import CUT
from halo_weave.weave.reply import ReplyReader, generation_prompt, stored_reply
from halo_weave.weave.system import System


def read_draft(system: System, draft: Draft) -> ReplyReader:
    """What the reply says so far, told apart by the marks of the model that answers in its window here and now.

    That may be another one than wrote it; then its thoughts may be taken for its answer.
    """
    settings = system.settings(system.store.window(draft.window))
    engine = system.model_of(settings).engine
    opening = generation_prompt(engine, settings.effort)
    return stored_reply(draft.start, draft.tokens, engine.facts.marks, opening)


def recover(system: System, held: str | None = None, only: str | None = None) -> list[str]:
    """Replies that a killed process left unfinished become turns, as far as they were stored. Returns their windows.

    `held`: also those of this process in a window where nothing is being said, because the store refused the end.
    `only`: of this window alone.
    """
    if not system.engine.info.abilities.speaks:  # a model tells its thoughts and its answer apart
        return []
    found = []
    for draft in system.store.drafts(now=system.now(), held=held):
        if only not in (None, draft.window):
            continue
        try:
            if _stored(system, draft):
                found.append(draft.window)
        except (StoreError, UnknownWindow, WindowBusy):
            continue  # it stays a draft, for the next time, or for the server that writes the window now
        except BadInput:
            system.store.drop_draft(draft.turn_id)  # another process was faster
    return found


def _stored(system: System, draft: Draft) -> bool:
    settings = system.settings(system.store.window(draft.window))
    reply = read_draft(system, draft)
    chunks = chunk_parts(
        reply.parts(system.model_of(settings).engine.tokenize),
        draft.turn_id,
        draft.answers,
        min_chunk_tokens=settings.min_chunk_tokens,
        max_chunk_tokens=settings.max_chunk_tokens,
    )
    if not chunks:
        system.store.drop_draft(draft.turn_id)
        return False
    bright = settings.initial_brightness
    live = [Live(chunk, np.full(len(chunk), bright, np.float32)) for chunk in chunks]
    cut = {chunk.key: [CUT, *reply.tags(chunk.start, chunk.stop)] for chunk in chunks}
    system.store.append(draft.window, live, tokenizer=draft.tokenizer, now=draft.saved, tags=cut)
    return True
