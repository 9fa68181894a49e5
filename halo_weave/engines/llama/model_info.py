"""Describes a loaded model: metadata of its file, abilities found by probing, its chat template."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import numpy as np

from halo_weave.engines.base import Capabilities, Capture, ModelInfo
from halo_weave.engines.llama import bindings
from halo_weave.engines.llama.kv_cache import LIVE, ContextConfig, KvCache
from halo_weave.engines.llama.model import Model
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.errors import ModelUnusable
from halo_weave.models.gguf_header import GgufHeader
from halo_weave.models.inventory import human_name

PROBE_TOKENS = 8  # tokens of the probe for a sliding window; afterwards its first half is outside the window


@dataclass(frozen=True, slots=True)
class CacheTraits:
    cuts: bool  # cells can be removed, restored and shifted
    wide_layers: tuple[int, ...] = ()  # layers with full attention, if the others have a sliding window


def is_recurrent(model: Model) -> bool:
    """Whether the model has a recurrent state. It depends on all tokens so far, so none of them can be removed."""
    return bool(model.c.llama_model_is_recurrent(model.handle) or model.c.llama_model_is_hybrid(model.handle))


def probe_cache(model: Model, config: ContextConfig) -> CacheTraits:
    """Find out what the model's KV cache can do. With M-RoPE or a recurrent state, cells cannot be removed or shifted."""
    c, handle = model.c, model.handle
    if is_recurrent(model) or c.llama_model_rope_type(handle) not in (
        bindings.ROPE_NORMAL,
        bindings.ROPE_NEOX,
    ):
        return CacheTraits(cuts=False)
    with contextlib.closing(KvCache(model, config, 256, attention=bool(config.sliding_window))) as cache:
        if not c.llama_memory_can_shift(cache.memory):
            return CacheTraits(cuts=False)
        return CacheTraits(
            cuts=True, wide_layers=_wide_layers(cache, config.sliding_window) if config.sliding_window else ()
        )


def _wide_layers(cache: KvCache, sliding: int) -> tuple[int, ...]:
    """The layers with full attention: a token that is further away than the sliding window still attends to the first ones."""
    assert cache.attention_capture is not None
    attention_capture, places = cache.attention_capture, np.arange(PROBE_TOKENS, dtype=np.int32)
    layers, heads = attention_capture.pairs.shape
    ids, nothing = np.zeros(1, np.int32), np.zeros(PROBE_TOKENS, np.bool_)
    cache.decode(np.zeros(PROBE_TOKENS, np.int32), places, LIVE, nothing, 0)
    cache.c.llama_memory_seq_add(cache.memory, LIVE, PROBE_TOKENS // 2, PROBE_TOKENS, sliding)
    cache.cells.rewind()
    attention_capture.choose(Capture(raw=True))
    cache.decode(ids, np.array([PROBE_TOKENS + sliding], np.int32), LIVE, np.ones(1, np.bool_), 1)
    if cache.last_attention_by_head is None:
        return ()
    attention = cache.last_attention_by_head[-1, :, : PROBE_TOKENS // 2].reshape(layers, heads, -1)
    return tuple(np.flatnonzero((attention > 0).any(axis=(1, 2))).tolist())


CHATML_END = "<|im_end|>"
F = TypeVar("F", int, float)


def model_info_of(
    model: Model, header: GgufHeader, template: ModelTemplate, config: ContextConfig, context: int
) -> ModelInfo:
    c, traits = model.c, probe_cache(model, config)
    return ModelInfo(
        name=human_name(model.path, header),
        architecture=header.architecture,
        layers=int(c.llama_model_n_layer(model.handle)),
        heads=int(c.llama_model_n_head(model.handle)),
        kv_heads=int(c.llama_model_n_head_kv(model.handle)),
        vocabulary=model.size,
        trained_context=model.trained_context,
        context=context,
        special=model.special(),
        tokenizer=header.tokenizer,
        template=template.origin,
        template_note=template.reason,
        chat_template=template.source,
        template_words=template.words,
        adds_bos=template.adds_bos,
        abilities=Capabilities(
            attention=not c.llama_model_is_recurrent(model.handle), cuts=traits.cuts, prefetch=traits.cuts
        ),
        wide_layers=traits.wide_layers,
        file=str(model.path),
        size_bytes=header.size,
        parameters=int(c.llama_model_n_params(model.handle)),
        embedding=_figure(header, "embedding_length", 0),
        rope_base=_figure(header, "rope.freq_base", 10_000.0),
        rope_scale=1.0 / (_figure(header, "rope.scaling.factor", 1.0) or 1.0),
    )


def _figure(header: GgufHeader, name: str, default: F) -> F:
    """A number of the architecture's metadata."""
    value = header.values.get(f"{header.architecture}.{name}", default)
    return type(default)(value) if isinstance(value, int | float) else default


def check_is_decoder(model: Model) -> None:
    """Refuse a model that does not generate text token by token."""
    c = model.c
    if c.llama_model_has_encoder(model.handle) or not c.llama_model_has_decoder(model.handle):
        raise ModelUnusable(f"{model.path} needs an encoder. Use a model that only decodes.")
    if c.llama_model_is_diffusion(model.handle):
        raise ModelUnusable(f"{model.path} writes by diffusion, not token by token. Use another model.")


def end_texts(model: Model, template: ModelTemplate) -> tuple[str, ...]:
    """Strings that end a reply. If ChatML is the substitute template and its end marker is no token, models write it as text."""
    written = template.origin == "chatml" and len(model.tokenize_ids(CHATML_END, special=True)) > 1
    return (CHATML_END,) if written else ()


def template_of(model: Model, header: GgufHeader, renderer: TemplateRenderer) -> ModelTemplate:
    """The chat template of the model's file, or ChatML as a substitute."""
    specials = {
        f"{name}_token": model.piece(id).decode("utf-8", errors="replace")
        for name, id in model.special().items()
        if name in ("bos", "eos", "sep", "pad", "mask")
    }
    source = header.values.get("tokenizer.chat_template")
    return ModelTemplate(
        source if isinstance(source, str) else None,
        renderer,
        specials={"bos_token": "", "eos_token": "", **specials},
        adds_bos=model.adds_bos,
        now=datetime.now(),
    )


def supported_capture(info: ModelInfo, capture: Capture | None) -> Capture | None:
    """The part of `capture` that the model supports. A layer or head that it does not have is refused."""
    if capture and not info.abilities.attention:
        capture = replace(capture, reply=False, reading=False)
    if capture and info.wide_layers and capture.layers is None and capture.pairs is None:
        capture = replace(capture, layers=info.wide_layers)
    if capture:
        capture.chosen(info.layers, info.heads)
    return capture
