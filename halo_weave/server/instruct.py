"""Prompts with the marks of KoboldAI's instruct mode, written as the model's own template writes a conversation.

KoboldAI Lite leaves the form of turns to the server: it sends `{{[INPUT]}}` before what the user says, `{{[OUTPUT]}}` before what
the model says, `{{[SYSTEM]}}` before what frames it.
"""

from __future__ import annotations

import re

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.ports import Engine
from halo_weave.templates.messages import ChatMessage

_MARK = re.compile(r"\{\{\[(INPUT|OUTPUT|SYSTEM)\]\}\}")
_END = re.compile(r"\{\{\[(?:INPUT|OUTPUT|SYSTEM)_END\]\}\}")


def has_marks(text: str) -> bool:
    return _MARK.search(text) is not None


def ids_of_marked(engine: Engine, text: str) -> Ids:
    """The tokens of such a prompt. What stands before the first mark frames it; the last output is gone on with."""
    before, *found = _MARK.split(_END.sub("", text))
    system, messages = [before.strip()], list[ChatMessage]()
    begun = ""
    for place, (kind, said) in enumerate(zip(found[::2], found[1::2], strict=True)):
        words = said.strip()
        if kind == "SYSTEM":
            system.append(words)
        elif kind == "OUTPUT" and place == len(found) // 2 - 1:
            begun = said.lstrip()
        elif words:
            messages.append(ChatMessage("user" if kind == "INPUT" else "assistant", words))
    frame = "\n\n".join(part for part in system if part)
    talk = [ChatMessage("system", frame), *messages] if frame else messages
    pieces = engine.chat(talk or [ChatMessage("user", "")]).pieces
    parts = [engine.tokenize(piece.text, special=not piece.said).ids for piece in pieces if piece.text]
    if begun:
        parts.append(engine.tokenize(begun).ids)
    return np.concatenate(parts).astype(np.int32)
