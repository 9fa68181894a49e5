"""Sampler chains of llama.cpp, built from the sampling settings."""

from __future__ import annotations

import ctypes
import secrets
from typing import Self

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import Sampling
from halo_weave.engines.llama import bindings
from halo_weave.engines.llama.model import Model
from halo_weave.errors import BadInput

PENALTY_LAST_N = 64  # the repeat penalty applies to this many last tokens
MAX_LOGIT_GAP = 20.0  # tokens whose logit is this far below the largest are 500 million times less likely, and are ignored
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # as bindings.TokenChoice


class Sampler:
    """Owns a chain of samplers; `with` frees it.

    llama.cpp's samplers copy the whole vocabulary for every token and sort much of it. For speed, greedy sampling is done
    here, and otherwise the samplers get only the tokens that have a chance.
    """

    def __init__(self, model: Model, sampling: Sampling, before: Ids) -> None:
        self.model, self.c = model, model.c
        # With a repeat penalty or a grammar, even an unlikely token may be chosen.
        unmodified = sampling.repeat_penalty == 1 and not sampling.grammar
        self.greedy = sampling.temperature == 0 and unmodified
        self.max_gap = MAX_LOGIT_GAP * max(1.0, sampling.temperature) if unmodified else None
        c = model.c
        self.chain: int | None = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        samplers = []
        if sampling.repeat_penalty != 1.0:
            samplers.append(
                c.llama_sampler_init_penalties(model.size, PENALTY_LAST_N, sampling.repeat_penalty, 0.0, 0.0)
            )
        if sampling.grammar:
            grammar = c.llama_sampler_init_grammar(model.vocabulary, sampling.grammar.encode(), b"root")
            if not grammar:
                c.llama_sampler_free(self.chain)
                raise BadInput("llama.cpp cannot use the grammar of the reply. Make the JSON schema simpler.")
            samplers.append(grammar)
        if sampling.temperature == 0.0:
            samplers.append(c.llama_sampler_init_greedy())
        else:
            if sampling.top_k:
                samplers.append(c.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1.0:
                samplers.append(c.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p:
                samplers.append(c.llama_sampler_init_min_p(sampling.min_p, 1))
            samplers.append(c.llama_sampler_init_temp(sampling.temperature))
            seed = secrets.randbits(31) if sampling.seed is None else sampling.seed
            samplers.append(c.llama_sampler_init_dist(seed))
        for sampler in samplers:
            c.llama_sampler_chain_add(self.chain, sampler)
        if sampling.repeat_penalty != 1.0:
            for id in before[-PENALTY_LAST_N:].tolist():
                c.llama_sampler_accept(self.chain, id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.c.llama_sampler_free(self.chain)
        self.chain = None

    def sample(self, context: int | None) -> int:
        """Sample a token from the last logits. The chain takes note of it."""
        if self.max_gap is None:
            return int(self.c.llama_sampler_sample(self.chain, context, -1))
        logits = self.model.logits(context)
        if self.greedy:
            return int(logits.argmax())
        candidates = np.flatnonzero(logits >= logits.max() - np.float32(self.max_gap))
        if len(candidates):
            token_data = np.empty(len(candidates), TOKEN_DATA)
            token_data["id"], token_data["logit"], token_data["p"] = candidates, logits[candidates], 0
            token_array = bindings.TokenChoices(token_data.ctypes.data, len(candidates), -1, False)
            self.c.llama_sampler_apply(self.chain, ctypes.byref(token_array))
            if token_array.selected >= 0:
                chosen = token_array.data + token_array.selected * ctypes.sizeof(bindings.TokenChoice)
                return int(bindings.TokenChoice.from_address(chosen).id)
        return int(self.c.llama_sampler_sample(self.chain, context, -1))  # the logits are NaN

    def top_tokens(self, context: int | None, count: int) -> list[tuple[bytes, float]]:
        """The pieces and log-probabilities of the most likely tokens, the most likely first."""
        logits = self.model.logits(context).astype(np.float64)
        log_sum = np.logaddexp.reduce(logits)
        best = np.argpartition(logits, -count)[-count:]
        ids = best[np.argsort(-logits[best])].tolist()
        return [(self.model.piece(id), float(logits[id] - log_sum)) for id in ids]
