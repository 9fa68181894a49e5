"""ctypes declarations for the part of the C API of llama.cpp that is used here, and a check that they match the library."""

from __future__ import annotations

import ctypes as c
from typing import Any

from halo_weave.errors import LibraryUnusable

FLASH_ATTENTION_OFF = 0
TENSOR_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
POOLING_UNSPECIFIED, POOLING_MEAN, POOLING_CLS, POOLING_LAST = -1, 1, 2, 3
ROPE_NORMAL, ROPE_NEOX = 0, 2
VOCABULARY_WPM = 3
LOG_ERROR, LOG_CONTINUED = 4, 5

EvalCallback = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool, c.c_void_p)
LogCallback = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


class ModelParams(c.Structure):
    _fields_ = (
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int),
        ("load_mode", c.c_int),
        ("lazy_mode", c.c_int),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    )


Fields = tuple[tuple[str, Any], ...]
FIRST_CONTEXT_FIELDS: Fields = (
    ("n_ctx", c.c_uint32),
    ("n_batch", c.c_uint32),
    ("n_ubatch", c.c_uint32),
    ("n_seq_max", c.c_uint32),
    ("n_rs_seq", c.c_uint32),
    ("n_outputs_max", c.c_uint32),
    ("n_outputs_max_per_seq", c.c_uint32),
    ("n_threads", c.c_int32),
    ("n_threads_batch", c.c_int32),
    ("ctx_type", c.c_int),
    ("rope_scaling_type", c.c_int),
    ("pooling_type", c.c_int),
    ("attention_type", c.c_int),
    ("flash_attn_type", c.c_int),
    ("rope_freq_base", c.c_float),
    ("rope_freq_scale", c.c_float),
    ("yarn_ext_factor", c.c_float),
    ("yarn_attn_factor", c.c_float),
    ("yarn_beta_fast", c.c_float),
    ("yarn_beta_slow", c.c_float),
    ("yarn_orig_ctx", c.c_uint32),
    ("defrag_thold", c.c_float),
    ("cb_eval", c.c_void_p),
    ("cb_eval_user_data", c.c_void_p),
    ("type_k", c.c_int),
    ("type_v", c.c_int),
)
LAST_CONTEXT_FIELDS: Fields = (
    ("abort_callback", c.c_void_p),
    ("abort_callback_data", c.c_void_p),
    ("embeddings", c.c_bool),
    ("offload_kqv", c.c_bool),
    ("no_perf", c.c_bool),
    ("op_offload", c.c_bool),
    ("swa_full", c.c_bool),
    ("kv_unified", c.c_bool),
    ("samplers", c.c_void_p),
    ("n_samplers", c.c_size_t),
    ("ctx_other", c.c_void_p),
)


class _ContextParams(c.Structure):
    """llama_context_params of llama-cpp-python 0.3.36."""

    _fields_ = FIRST_CONTEXT_FIELDS + LAST_CONTEXT_FIELDS


class _ContextParamsWithExpertCache(c.Structure):
    """llama_context_params of xllamacpp 2026.10.11549, with one more field."""

    _fields_ = (*FIRST_CONTEXT_FIELDS, ("moe_cache_size", c.c_size_t), *LAST_CONTEXT_FIELDS)


CONTEXT_PARAMS: tuple[type[c.Structure], ...] = (_ContextParamsWithExpertCache, _ContextParams)


class _SamplerChainParams(c.Structure):
    _fields_ = (("no_perf", c.c_bool),)


class Batch(c.Structure):
    _fields_ = (
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    )


class TokenChoice(c.Structure):
    """A token that a sampler may choose (llama_token_data)."""

    _fields_ = (("id", c.c_int32), ("logit", c.c_float), ("p", c.c_float))


class TokenChoices(c.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", c.c_void_p),
        ("size", c.c_size_t),
        ("selected", c.c_int64),  # index in `data`
        ("sorted", c.c_bool),
    )


FLOATS = c.POINTER(c.c_float)
HANDLE = c.c_void_p  # a handle: model, vocabulary, context, memory, sampler or tensor

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LogCallback, c.c_void_p)),
    "llama_supports_gpu_offload": (c.c_bool, ()),
    # Models
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_load_from_file": (HANDLE, (c.c_char_p, ModelParams)),
    "llama_model_free": (None, (HANDLE,)),
    "llama_model_get_vocab": (HANDLE, (HANDLE,)),
    "llama_model_rope_type": (c.c_int, (HANDLE,)),
    "llama_model_n_ctx_train": (c.c_int32, (HANDLE,)),
    "llama_model_n_embd": (c.c_int32, (HANDLE,)),
    "llama_model_n_embd_out": (c.c_int32, (HANDLE,)),
    "llama_model_n_layer": (c.c_int32, (HANDLE,)),
    "llama_model_n_head": (c.c_int32, (HANDLE,)),
    "llama_model_n_head_kv": (c.c_int32, (HANDLE,)),
    "llama_model_n_swa": (c.c_int32, (HANDLE,)),
    "llama_model_n_params": (c.c_uint64, (HANDLE,)),
    "llama_model_meta_val_str": (c.c_int32, (HANDLE, c.c_char_p, c.c_char_p, c.c_size_t)),
    "llama_model_has_encoder": (c.c_bool, (HANDLE,)),
    "llama_model_has_decoder": (c.c_bool, (HANDLE,)),
    "llama_model_is_recurrent": (c.c_bool, (HANDLE,)),
    "llama_model_is_hybrid": (c.c_bool, (HANDLE,)),
    "llama_model_is_diffusion": (c.c_bool, (HANDLE,)),
    # Vocabulary
    "llama_vocab_type": (c.c_int, (HANDLE,)),
    "llama_vocab_n_tokens": (c.c_int32, (HANDLE,)),
    "llama_vocab_is_eog": (c.c_bool, (HANDLE, c.c_int32)),
    "llama_vocab_is_control": (c.c_bool, (HANDLE, c.c_int32)),
    "llama_vocab_bos": (c.c_int32, (HANDLE,)),
    "llama_vocab_eos": (c.c_int32, (HANDLE,)),
    "llama_vocab_eot": (c.c_int32, (HANDLE,)),
    "llama_vocab_sep": (c.c_int32, (HANDLE,)),
    "llama_vocab_nl": (c.c_int32, (HANDLE,)),
    "llama_vocab_pad": (c.c_int32, (HANDLE,)),
    "llama_vocab_mask": (c.c_int32, (HANDLE,)),
    "llama_vocab_get_add_bos": (c.c_bool, (HANDLE,)),
    "llama_tokenize": (
        c.c_int32,
        (HANDLE, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool),
    ),
    "llama_token_to_piece": (c.c_int32, (HANDLE, c.c_int32, c.c_char_p, c.c_int32, c.c_int32, c.c_bool)),
    # Contexts
    "llama_context_default_params": (_ContextParams, ()),
    "llama_init_from_model": (HANDLE, (HANDLE, _ContextParams)),
    "llama_free": (None, (HANDLE,)),
    "llama_n_ctx": (c.c_uint32, (HANDLE,)),
    "llama_pooling_type": (c.c_int, (HANDLE,)),
    "llama_encode": (c.c_int32, (HANDLE, Batch)),
    "llama_decode": (c.c_int32, (HANDLE, Batch)),
    "llama_get_logits_ith": (FLOATS, (HANDLE, c.c_int32)),
    "llama_get_embeddings_seq": (FLOATS, (HANDLE, c.c_int32)),
    # The KV cache
    "llama_get_memory": (HANDLE, (HANDLE,)),
    "llama_memory_clear": (None, (HANDLE, c.c_bool)),
    "llama_memory_seq_rm": (c.c_bool, (HANDLE, c.c_int32, c.c_int32, c.c_int32)),
    "llama_memory_seq_cp": (None, (HANDLE, c.c_int32, c.c_int32, c.c_int32, c.c_int32)),
    "llama_memory_seq_add": (None, (HANDLE, c.c_int32, c.c_int32, c.c_int32, c.c_int32)),
    "llama_memory_can_shift": (c.c_bool, (HANDLE,)),
    "llama_state_seq_get_size": (c.c_size_t, (HANDLE, c.c_int32)),
    "llama_state_seq_get_data": (c.c_size_t, (HANDLE, c.c_void_p, c.c_size_t, c.c_int32)),
    "llama_state_seq_set_data": (c.c_size_t, (HANDLE, c.c_void_p, c.c_size_t, c.c_int32)),
    # Samplers
    "llama_sampler_chain_default_params": (_SamplerChainParams, ()),
    "llama_sampler_chain_init": (HANDLE, (_SamplerChainParams,)),
    "llama_sampler_chain_add": (None, (HANDLE, HANDLE)),
    "llama_sampler_init_greedy": (HANDLE, ()),
    "llama_sampler_init_dist": (HANDLE, (c.c_uint32,)),
    "llama_sampler_init_top_k": (HANDLE, (c.c_int32,)),
    "llama_sampler_init_top_p": (HANDLE, (c.c_float, c.c_size_t)),
    "llama_sampler_init_min_p": (HANDLE, (c.c_float, c.c_size_t)),
    "llama_sampler_init_temp": (HANDLE, (c.c_float,)),
    "llama_sampler_init_penalties": (HANDLE, (c.c_int32, c.c_int32, c.c_float, c.c_float, c.c_float)),
    "llama_sampler_init_grammar": (HANDLE, (HANDLE, c.c_char_p, c.c_char_p)),
    "llama_sampler_sample": (c.c_int32, (HANDLE, HANDLE, c.c_int32)),
    "llama_sampler_apply": (None, (HANDLE, c.POINTER(TokenChoices))),
    "llama_sampler_accept": (None, (HANDLE, c.c_int32)),
    "llama_sampler_free": (None, (HANDLE,)),
    # Tensors, seen by the attention callback
    "ggml_get_name": (c.c_char_p, (HANDLE,)),
    "ggml_nelements": (c.c_int64, (HANDLE,)),
    "ggml_nrows": (c.c_int64, (HANDLE,)),
    "ggml_nbytes": (c.c_size_t, (HANDLE,)),
    "ggml_backend_tensor_get": (None, (HANDLE, c.c_void_p, c.c_size_t, c.c_size_t)),
}

KNOWN_MODEL_PARAMS: dict[str, Any] = {
    "devices": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
}
KNOWN_CONTEXT_PARAMS: dict[str, Any] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": None,
    "cb_eval_user_data": None,
    "type_k": 1,
    "type_v": 1,
    "abort_callback": None,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}


def declare_functions(library: Any, name: str) -> None:
    """Declare the signature of each function. `name`: the library's name for error messages."""
    missing = [function for function in FUNCTIONS if not hasattr(library, function)]
    if missing:
        raise LibraryUnusable(
            f"{name} lacks {missing[0]} ({len(missing)} functions in all). {INSTALL_ADVICE}"
        )
    params = _find_layout(library, name)
    for function, (result, arguments) in FUNCTIONS.items():
        pointer = getattr(library, function)
        pointer.restype = params if result is _ContextParams else result
        pointer.argtypes = tuple(params if kind is _ContextParams else kind for kind in arguments)


def _find_layout(library: Any, name: str) -> type[c.Structure]:
    """The struct that matches the library's context parameters. Raises if its default values are not those known here."""
    wrong = _misread(library, "llama_model_default_params", ModelParams, KNOWN_MODEL_PARAMS)
    for params in () if wrong else CONTEXT_PARAMS:
        wrong = _misread(library, "llama_context_default_params", params, KNOWN_CONTEXT_PARAMS)
        if not wrong:
            return params
    raise LibraryUnusable(
        f"{name} is a release of llama.cpp that Halo Weave does not support ({wrong}). {INSTALL_ADVICE}"
    )


def _misread(library: Any, function: str, layout: type[c.Structure], known: dict[str, Any]) -> str:
    """The first default value that differs from the known one, as text; empty if all are the same.

    The struct is padded, since the function of another release may write a larger struct.
    """
    padded = type("Padded", (c.Structure,), {"_fields_": (("params", layout), ("padding", c.c_uint8 * 1024))})
    pointer = getattr(library, function)
    pointer.argtypes, pointer.restype = (), padded
    params = pointer().params
    for field, value in known.items():
        if getattr(params, field) != value:
            return f"{function}: {field} is {getattr(params, field)}, not {value}"
    return ""


INSTALL_ADVICE = (
    "Try: pip install xllamacpp==2026.10.11549, or llama-cpp-python==0.3.36 with "
    "HALO_WEAVE_LIBLLAMA=llama-cpp-python, or name a shared library of that release with HALO_WEAVE_LIBLLAMA."
)
