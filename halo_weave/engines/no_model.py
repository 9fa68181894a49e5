"""The engine while no model is loaded: it estimates token counts and cannot generate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.base import (
    Capabilities,
    Capture,
    Engine,
    GenerationEvent,
    ModelInfo,
    Prompt,
    Sampling,
)
from halo_weave.engines.llama.cache_files import discard_window, erase_tokens
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt, Piece
from halo_weave.engines.templates.model_template import TemplateFacts
from halo_weave.errors import EngineError

ASSUMED_CONTEXT = 8192
BYTES_PER_TOKEN = 4  # typical length of a token


class NoModelEngine(Engine):
    """Allows windows to be shown and edited without a model. Deleted text is also removed from `cells`, the KV cache on disk."""

    def __init__(self, cells: Path) -> None:
        self._cells = cells

    _info = ModelInfo(
        name="",
        architecture="",
        layers=0,
        heads=0,
        kv_heads=0,
        vocabulary=0,
        trained_context=ASSUMED_CONTEXT,
        context=ASSUMED_CONTEXT,
        special={},
        tokenizer="",
        template="chatml",
        abilities=Capabilities(speaks=False, attention=False, cuts=False, token_ids=False, surprisal=False),
    )
    facts = TemplateFacts()

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        raw = text.encode(errors="replace")
        pieces = [raw[at : at + BYTES_PER_TOKEN] for at in range(0, len(raw), BYTES_PER_TOKEN)]
        return Tokens.of([0] * len(pieces), pieces)

    def pieces(self, ids: Ids) -> Tokens:
        raise EngineError("No model is loaded, so token ids cannot be converted to text.")

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return np.zeros(len(ids), np.bool_)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        """Render a conversation as ChatML."""
        pieces: list[Piece] = []
        for i, message in enumerate(messages):
            pieces += [
                Piece(f"<|im_start|>{message.role}\n", "header", i),
                Piece(message.content, "content", i),
                Piece("<|im_end|>\n", "footer", i),
            ]
        return ChatPrompt((*pieces, Piece("<|im_start|>assistant\n", "prompt", len(messages))))

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        raise EngineError("No model is loaded.")

    def forget(self, window: str) -> None:
        discard_window(self._cells, window)

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        erase_tokens(self._cells, spans, windows)
