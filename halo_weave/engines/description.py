"""A model as it is described to the rest of the system: its file's figures, its abilities, its chat template."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from halo_weave.engines.cache import Shape
from halo_weave.engines.probing import probe
from halo_weave.errors import ModelUnusable
from halo_weave.llama.header import Header
from halo_weave.llama.model import Model
from halo_weave.llama.names import human_name
from halo_weave.ports import Abilities, Capture, ModelInfo
from halo_weave.templates.model import ModelTemplate
from halo_weave.templates.renderer import TemplateRenderer

CHATML_END = "<|im_end|>"
F = TypeVar("F", int, float)


def describe(model: Model, header: Header, template: ModelTemplate, shape: Shape, context: int) -> ModelInfo:
    c, traits = model.c, probe(model, shape)
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
        abilities=Abilities(
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


def _figure(header: Header, name: str, usual: F) -> F:
    """A number that the file tells of its architecture."""
    value = header.values.get(f"{header.architecture}.{name}", usual)
    return type(usual)(value) if isinstance(value, int | float) else usual


def check_that_it_writes(model: Model) -> None:
    """Refuse what cannot go on with a text token by token."""
    c = model.c
    if c.llama_model_has_encoder(model.handle) or not c.llama_model_has_decoder(model.handle):
        raise ModelUnusable(f"{model.path} needs an encoder. Use a model that only decodes.")
    if c.llama_model_is_diffusion(model.handle):
        raise ModelUnusable(f"{model.path} writes by diffusion, not token by token. Use another model.")


def written_ends(model: Model, template: ModelTemplate) -> tuple[str, ...]:
    """Where ChatML stands in and its end of a turn is no token of the model, the model writes it out as text."""
    written = template.origin == "chatml" and len(model.tokenize_ids(CHATML_END, special=True)) > 1
    return (CHATML_END,) if written else ()


def template_of(model: Model, header: Header, renderer: TemplateRenderer) -> ModelTemplate:
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


def readable(info: ModelInfo, capture: Capture | None) -> Capture | None:
    """What of it the model can give. A layer or head that it has not is refused."""
    if capture and not info.abilities.attention:
        capture = replace(capture, reply=False, reading=False)
    if capture and info.wide_layers and capture.layers is None and capture.pairs is None:
        capture = replace(capture, layers=info.wide_layers)
    if capture:
        capture.chosen(info.layers, info.heads)
    return capture
