"""A tiny model that recites one reply, whatever it is asked: for templates whose models are too large to have here.

Nothing but the last token decides what comes next, so each token of the reply must be another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np

from tests.engines.tiny import byte_tokens

HEADS = 4


def write_reciting(
    path: Path, template: str, reply: Sequence[str], *, after: str, controls: Sequence[str] = ()
) -> Path:
    """`after`: how the template's generation prompt ends. `controls`: control tokens, the last of them ends a reply."""
    spelled = byte_tokens()
    ends = [*controls, "<|stop|>"] if not controls else list(controls)
    words = [piece for piece in reply if piece not in ends and len(piece.encode()) > 1]
    assert len(set(reply)) == len(reply), "a token cannot have two that come after it"
    tokens = [*spelled, *ends, *("".join(spelled[byte] for byte in word.encode()) for word in words)]
    ids = {
        **{piece: piece.encode()[0] for piece in reply if len(piece.encode()) == 1},
        **{text: 256 + i for i, text in enumerate(ends)},
        **{word: 256 + len(ends) + i for i, word in enumerate(words)},
    }
    first = next((ids[text] for text in ends if after.endswith(text)), after.encode()[-1])
    chain = [first, *(ids[piece] for piece in reply), 256 + len(ends) - 1]
    assert len(set(chain)) == len(chain)
    width = -(-len(tokens) // (HEADS * 4)) * HEADS * 4
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Reciting")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * len(ends) + [1] * len(words))
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256 + len(ends) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    embedding = np.eye(len(tokens), width, dtype=np.float32)
    output = np.zeros((len(tokens), width), np.float32)
    for token, following in pairwise(chain):
        output[following, token] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((width, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
