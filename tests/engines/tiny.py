"""Tiny models with random weights, written as GGUF files: architectures that the default model does not show."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, CONTEXT, SPECIALS = 32, 2, 4, 8192, ["<|im_start|>", "<|im_end|>"]
STATE, CONV, RANK = 8, 4, 2


def byte_tokens() -> list[str]:
    """GPT-2 spells each byte as a printable character."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def write(path: Path, architecture: str, *, template: str | None = None) -> Path:
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS if architecture != "mamba" else 0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = byte_tokens() + SPECIALS
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * len(SPECIALS))
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    if template:
        writer.add_chat_template(template)

    def tensor(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, dtype=np.float32))

    tensor("token_embd.weight", len(tokens), WIDTH)
    norm("output_norm.weight")
    if architecture == "gemma2":
        writer.add_sliding_window(64)
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if architecture == "mamba":
        writer.add_ssm_conv_kernel(CONV)
        writer.add_ssm_inner_size(2 * WIDTH)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(RANK)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        if architecture == "mamba":
            inner = 2 * WIDTH
            tensor(block + "ssm_in.weight", 2 * inner, WIDTH)
            tensor(block + "ssm_conv1d.weight", inner, CONV)
            tensor(block + "ssm_conv1d.bias", inner)
            tensor(block + "ssm_x.weight", RANK + 2 * STATE, inner)
            tensor(block + "ssm_dt.weight", inner, RANK)
            tensor(block + "ssm_dt.bias", inner)
            writer.add_tensor(block + "ssm_a", -np.ones((inner, STATE), dtype=np.float32))
            writer.add_tensor(block + "ssm_d", np.ones(inner, dtype=np.float32))
            tensor(block + "ssm_out.weight", WIDTH, inner)
            continue
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"{block}{name}.weight", WIDTH, WIDTH)
        norm(block + "ffn_norm.weight")
        if architecture == "gemma2":
            norm(block + "post_attention_norm.weight")
            norm(block + "post_ffw_norm.weight")
        tensor(block + "ffn_gate.weight", 2 * WIDTH, WIDTH)
        tensor(block + "ffn_up.weight", 2 * WIDTH, WIDTH)
        tensor(block + "ffn_down.weight", WIDTH, 2 * WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
