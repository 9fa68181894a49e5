"""Describes a model to the rest of the system: figures of its file, abilities found by trying them, its chat template."""

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

PROBE_TOKENS = 8  # that are read; the second half of them then stands beyond the sliding window


@dataclass(frozen=True, slots=True)
class CacheTraits:
    cuts: bool  # cells can leave, return and be shifted
    wide_layers: tuple[int, ...] = ()  # those that see everything, if others do not


def is_recurrent(model: Model) -> bool:
    """A recurrent state holds all that went before; no part of it can be taken out."""
    return bool(model.c.llama_model_is_recurrent(model.handle) or model.c.llama_model_is_hybrid(model.handle))


def probe_cache(model: Model, shape: ContextConfig) -> CacheTraits:
    """M-RoPE and recurrent states cannot be cut."""
    c, handle = model.c, model.handle
    if is_recurrent(model) or c.llama_model_rope_type(handle) not in (
        bindings.ROPE_NORMAL,
        bindings.ROPE_NEOX,
    ):
        return CacheTraits(cuts=False)
    with contextlib.closing(KvCache(model, shape, 256, attention=bool(shape.sliding))) as cache:
        if not c.llama_memory_can_shift(cache.memory):
            return CacheTraits(cuts=False)
        return CacheTraits(cuts=True, wide_layers=_wide_layers(cache, shape.sliding) if shape.sliding else ())


def _wide_layers(cache: KvCache, sliding: int) -> tuple[int, ...]:
    """A few tokens, then one that is further away than a window is wide: some layers do not see the first ones."""
    assert cache.reader is not None
    reader, places = cache.reader, np.arange(PROBE_TOKENS, dtype=np.int32)
    layers, heads = reader.pairs.shape
    ids, nothing = np.zeros(1, np.int32), np.zeros(PROBE_TOKENS, np.bool_)
    cache.decode(np.zeros(PROBE_TOKENS, np.int32), places, LIVE, nothing, 0)
    cache.c.llama_memory_seq_add(cache.memory, LIVE, PROBE_TOKENS // 2, PROBE_TOKENS, sliding)
    cache.cells.rewind()
    reader.choose(Capture(raw=True))
    cache.decode(ids, np.array([PROBE_TOKENS + sliding], np.int32), LIVE, np.ones(1, np.bool_), 1)
    if cache.last_raw is None:
        return ()
    seen = cache.last_raw[-1, :, : PROBE_TOKENS // 2].reshape(layers, heads, -1)
    return tuple(np.flatnonzero((seen > 0).any(axis=(1, 2))).tolist())


CHATML_END = "<|im_end|>"
F = TypeVar("F", int, float)


def model_info_of(
    model: Model, header: GgufHeader, template: ModelTemplate, shape: ContextConfig, context: int
) -> ModelInfo:
    c, traits = model.c, probe_cache(model, shape)
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
            attention=not c.llama_model_is_recurrent(model.handle), cuts=traits.cuts, ahead=traits.cuts
        ),
        wide_layers=traits.wide_layers,
        file=str(model.path),
        size_bytes=header.size,
        parameters=int(c.llama_model_n_params(model.handle)),
        embedding=_figure(header, "embedding_length", 0),
        rope_base=_figure(header, "rope.freq_base", 10_000.0),
        rope_scale=1.0 / (_figure(header, "rope.scaling.factor", 1.0) or 1.0),
    )


def _figure(header: GgufHeader, name: str, usual: F) -> F:
    """A number that the file tells of its architecture."""
    value = header.values.get(f"{header.architecture}.{name}", usual)
    return type(usual)(value) if isinstance(value, int | float) else usual


def check_is_decoder(model: Model) -> None:
    """Refuse what cannot go on with a text token by token."""
    c = model.c
    if c.llama_model_has_encoder(model.handle) or not c.llama_model_has_decoder(model.handle):
        raise ModelUnusable(f"{model.path} needs an encoder. Use a model that only decodes.")
    if c.llama_model_is_diffusion(model.handle):
        raise ModelUnusable(f"{model.path} writes by diffusion, not token by token. Use another model.")


def end_texts(model: Model, template: ModelTemplate) -> tuple[str, ...]:
    """Where ChatML stands in and its end of a turn is no token of the model, the model writes it out as text."""
    written = template.origin == "chatml" and len(model.tokenize_ids(CHATML_END, special=True)) > 1
    return (CHATML_END,) if written else ()


def template_of(model: Model, header: GgufHeader, renderer: TemplateRenderer) -> ModelTemplate:
    """The template of the model's file, or what stands in for it."""
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
    """What of it the model can give. A layer or head that it has not is refused."""
    if capture and not info.abilities.attention:
        capture = replace(capture, reply=False, reading=False)
    if capture and info.wide_layers and capture.layers is None and capture.pairs is None:
        capture = replace(capture, layers=info.wide_layers)
    if capture:
        capture.chosen(info.layers, info.heads)
    return capture
