"""Convert a published BERT sentence embedder (safetensors) to GGUF, without torch."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from halo_weave.errors import ModelNotFound, ModelUnusable

DTYPES = {"F32": "<f4", "F16": "<f2"}


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The float tensors of a file, as views on it. The file: length of the header, header in JSON, data."""
    raw = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    length = int.from_bytes(raw[:8].tobytes(), "little")
    if len(raw) < 8 or length > len(raw) - 8:
        raise ModelUnusable(f"{path} is not a safetensors file, or is cut off. Try: halo-weave pull")
    try:
        header = json.loads(raw[8 : 8 + length].tobytes())
    except ValueError as error:
        raise ModelUnusable(f"{path} is not a safetensors file. Try: halo-weave pull") from error
    data = raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in DTYPES:
            continue
        first, last = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        if last > len(data) or last - first != math.prod(entry["shape"]) * dtype.itemsize:
            raise ModelUnusable(f"{path} is cut off at tensor {name}. Try: halo-weave pull")
        tensors[name] = data[first:last].view(dtype).reshape(entry["shape"])
    return tensors


def _vocabulary(path: Path) -> tuple[list[bytes], list[int]]:
    """Word pieces and their types as llama.cpp expects them: the beginning of a word is marked, not its continuation."""
    pieces, types = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            pieces.append(line.encode())
            unused = line.startswith("[unused")
            types.append(int(gguf.TokenType.UNUSED if unused else gguf.TokenType.CONTROL))
        else:
            pieces.append((line[2:] if line.startswith("##") else "\u2581" + line).encode())
            types.append(int(gguf.TokenType.NORMAL))
    return pieces, types


def convert(folder: Path, target: Path, *, name: str) -> Path:
    """Convert a folder with model.safetensors, config.json and vocab.txt to `target`, in half precision.

    The file is written under another name and renamed when it is complete.
    """
    for required in ("model.safetensors", "config.json", "vocab.txt"):
        if not (folder / required).is_file():
            raise ModelNotFound(f"no {required} in {folder}. Try: halo-weave pull")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = read_safetensors(folder / "model.safetensors")
    pieces, types = _vocabulary(folder / "vocab.txt")
    if len(pieces) != config["vocab_size"]:
        raise ModelUnusable(f"vocab.txt has {len(pieces)} entries, the model {config['vocab_size']}.")

    unfinished = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(unfinished, "bert")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_token_type_count(config["type_vocab_size"])
    ids = {piece: i for i, piece in enumerate(pieces)}
    writer.add_unk_token_id(ids[b"[UNK]"])
    writer.add_sep_token_id(ids[b"[SEP]"])
    writer.add_pad_token_id(ids[b"[PAD]"])
    writer.add_bos_token_id(ids[b"[CLS]"])
    writer.add_mask_token_id(ids[b"[MASK]"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for source, tensor in tensors.items():
        target_name = names.get_name(source.removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        if target_name is None:  # llama.cpp does not use it
            continue
        # Biases, norms and small tables stay in full precision, which costs nothing.
        full_precision = tensor.ndim == 1 or target_name in ("position_embd.weight", "token_types.weight")
        kind = gguf.GGMLQuantizationType.F32 if full_precision else gguf.GGMLQuantizationType.F16
        values = np.asarray(tensor, dtype=np.float32)
        writer.add_tensor(target_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, target)
    return target
