"""llama.cpp's own samplers, chained as the settings say."""

from __future__ import annotations

import secrets
from typing import Self

from halo_weave.core.tokens import Ids
from halo_weave.errors import BadSetting
from halo_weave.llama.model import Model
from halo_weave.ports import Sampling

PENALTY_REACH = 64  # how many tokens back a repetition is punished
RANDOM_SEED = 0xFFFFFFFF  # llama.cpp reads this seed as "choose one"


class Sampler:
    """Owns a chain of samplers; `with` frees it."""

    def __init__(self, model: Model, sampling: Sampling, before: Ids) -> None:
        check(sampling)
        self.c = c = model.c
        self.chain: int | None = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        links = []
        if sampling.repeat_penalty != 1.0:
            links.append(
                c.llama_sampler_init_penalties(model.size, PENALTY_REACH, sampling.repeat_penalty, 0.0, 0.0)
            )
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
            for id in before[-PENALTY_REACH:].tolist():
                c.llama_sampler_accept(self.chain, id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.c.llama_sampler_free(self.chain)
        self.chain = None

    def sample(self, context: int | None) -> int:
        """Choose a token from the last logits, and remember it."""
        return int(self.c.llama_sampler_sample(self.chain, context, -1))


def check(sampling: Sampling) -> None:
    """What llama.cpp would take wrongly or abort on is refused here."""
    for name, value, fits, range in (
        ("temperature", sampling.temperature, 0.0 <= sampling.temperature < 100.0, "0 to 100"),
        ("top_p", sampling.top_p, 0.0 < sampling.top_p <= 1.0, "more than 0, up to 1"),
        ("top_k", sampling.top_k, 0 <= sampling.top_k < 2**31, "0 (off) or more"),
        ("min_p", sampling.min_p, 0.0 <= sampling.min_p <= 1.0, "0 (off) to 1"),
        ("repeat_penalty", sampling.repeat_penalty, 0.0 < sampling.repeat_penalty < 100.0, "more than 0"),
        ("seed", sampling.seed, sampling.seed is None or 0 <= sampling.seed < RANDOM_SEED, "0 to 4294967294"),
        ("max_new_tokens", sampling.max_new_tokens, sampling.max_new_tokens >= 1, "1 or more"),
    ):
        if not fits:
            raise BadSetting(f"{name} is {value}; it takes {range}.")
