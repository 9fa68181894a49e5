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

PENALTY_LAST_N = 64  # how many tokens back a repetition is punished
MAX_LOGIT_GAP = 20.0  # a logit so much below the largest one's: such a token is 500 million times less likely, and is left out
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # as abi.TokenChoice


class Sampler:
    """Owns a chain of samplers; `with` frees it.

    llama.cpp's samplers copy the whole vocabulary for every token, and sort much of it. So the likeliest token of all is
    taken without them, and otherwise they are shown only those that can be chosen.
    """

    def __init__(self, model: Model, sampling: Sampling, before: Ids) -> None:
        self.model, self.c = model, model.c
        # With a penalty or a grammar, any token may be chosen.
        as_they_are = sampling.repeat_penalty == 1 and not sampling.grammar
        self.plain = sampling.temperature == 0 and as_they_are
        self.far = MAX_LOGIT_GAP * max(1.0, sampling.temperature) if as_they_are else None
        c = model.c
        self.chain: int | None = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        links = []
        if sampling.repeat_penalty != 1.0:
            links.append(
                c.llama_sampler_init_penalties(model.size, PENALTY_LAST_N, sampling.repeat_penalty, 0.0, 0.0)
            )
        if sampling.grammar:
            rules = c.llama_sampler_init_grammar(model.vocabulary, sampling.grammar.encode(), b"root")
            if not rules:
                c.llama_sampler_free(self.chain)
                raise BadInput("The form that the reply should have cannot be used. Make the schema simpler.")
            links.append(rules)
        if sampling.temperature == 0.0:
            links.append(c.llama_sampler_init_greedy())
        else:
            if sampling.top_k:
                links.append(c.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1.0:
                links.append(c.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p:
                links.append(c.llama_sampler_init_min_p(sampling.min_p, 1))
            links.append(c.llama_sampler_init_temp(sampling.temperature))
            seed = secrets.randbits(31) if sampling.seed is None else sampling.seed
            links.append(c.llama_sampler_init_dist(seed))
        for link in links:
            c.llama_sampler_chain_add(self.chain, link)
        if sampling.repeat_penalty != 1.0:
            for id in before[-PENALTY_LAST_N:].tolist():
                c.llama_sampler_accept(self.chain, id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.c.llama_sampler_free(self.chain)
        self.chain = None

    def sample(self, context: int | None) -> int:
        """Choose a token from the last logits, and remember it."""
        if self.far is None:
            return int(self.c.llama_sampler_sample(self.chain, context, -1))
        logits = self.model.logits(context)
        if self.plain:
            return int(logits.argmax())
        near = np.flatnonzero(logits >= logits.max() - np.float32(self.far))
        if len(near):
            choices = np.empty(len(near), TOKEN_DATA)
            choices["id"], choices["logit"], choices["p"] = near, logits[near], 0
            shown = bindings.TokenChoices(choices.ctypes.data, len(near), -1, False)
            self.c.llama_sampler_apply(self.chain, ctypes.byref(shown))
            if shown.selected >= 0:
                chosen = shown.data + shown.selected * ctypes.sizeof(bindings.TokenChoice)
                return int(bindings.TokenChoice.from_address(chosen).id)
        return int(self.c.llama_sampler_sample(self.chain, context, -1))  # no logit is a number

    def top_tokens(self, context: int | None, count: int) -> list[tuple[bytes, float]]:
        """Pieces of the tokens that the model expected most, the most likely first, with their log-probabilities."""
        logits = self.model.logits(context).astype(np.float64)
        whole = np.logaddexp.reduce(logits)
        best = np.argpartition(logits, -count)[-count:]
        ids = best[np.argsort(-logits[best])].tolist()
        return [(self.model.piece(id), float(logits[id] - whole)) for id in ids]
