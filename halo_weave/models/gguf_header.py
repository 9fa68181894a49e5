"""Reads and checks the header of a GGUF file before llama.cpp opens it, because llama.cpp aborts on some malformed files."""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halo_weave.errors import ModelNotFound, ModelUnusable

SCALARS = {  # GGUF's codes for types of single values
    kind: struct.Struct("<" + form)
    for kind, form in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
COUNT, KIND = SCALARS[10], SCALARS[4]
STRING, ARRAY = 8, 9
TOKENS = "tokenizer.ggml.tokens"
TOKENIZER_KEYS = ("model", "pre", "tokens", "merges", "add_space_prefix")
MAX_DIMENSIONS = 4  # types of ggml
MAX_LAYERS = 512  # values of llama.cpp
MAX_PAIRS, MAX_TENSORS, MAX_STRINGS = 1 << 16, 1 << 18, 1 << 22
MAX_TEXT_BYTES = 4 << 20  # bytes
MAX_LIST_LENGTH = 4096  # length of a short array, such as one number for each layer

# Values that llama.cpp uses before it checks them: outside these ranges it aborts, or allocates all memory.
RANGES = {
    "block_count": (1, MAX_LAYERS),
    "context_length": (1, 1 << 30),
    "embedding_length": (1, 1 << 20),
    "feed_forward_length": (0, 1 << 24),
    "attention.head_count": (0, 1 << 16),
    "attention.head_count_kv": (0, 1 << 16),
    "attention.key_length": (1, 1 << 16),
    "attention.value_length": (1, 1 << 16),
    "attention.sliding_window": (0, 1 << 30),
    "attention.layer_norm_epsilon": (0, 1),
    "attention.layer_norm_rms_epsilon": (0, 1),
    "attention.group_norm_epsilon": (0, 1),
    "rope.dimension_count": (0, 1 << 16),
    "expert_count": (0, 1 << 16),
    "expert_used_count": (0, 1 << 16),
    "leading_dense_block_count": (0, MAX_LAYERS),
    "pooling_type": (-1, 16),
    "vocab_size": (1, 1 << 24),
    "ssm.conv_kernel": (1, 1 << 16),
    "ssm.inner_size": (1, 1 << 24),
    "ssm.state_size": (1, 1 << 16),
    "ssm.time_step_rank": (1, 1 << 16),
    "ssm.group_count": (0, 1 << 16),
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    architecture: str
    values: dict[str, Any]  # scalars and strings; for an array, its length
    tokenizer: str  # fingerprint of the vocabulary and how it is applied
    size: int  # bytes of the file
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # short arrays of numbers

    def get(self, key: str) -> Any:
        """A value of this architecture, such as `pooling_type`; None: missing."""
        return self.values.get(f"{self.architecture}.{key}")

    def per_layer(self, key: str) -> list[int]:
        """A whole number for each layer, also if the file has one number for all."""
        layers = int(self.get("block_count") or 0)
        listed = self.lists.get(f"{self.architecture}.{key}")
        if listed is not None:
            return [int(number) for number in listed[:layers]] + [0] * (layers - len(listed))
        return [int(self.get(key) or 0)] * layers

    @property
    def is_embedder(self) -> bool:
        """Whether it is an embedding model, which cannot generate text."""
        return (
            bool(self.get("pooling_type"))
            or self.get("attention.causal") is False
            or "bert" in self.architecture
            or self.architecture in ("t5encoder", "gemma-embedding")
        )


def read_header(path: Path) -> GgufHeader:
    """Read and check the header. Raises ModelNotFound or ModelUnusable."""
    if not path.is_file():
        raise ModelNotFound(
            f"There is no model at {path}. Give the path of a GGUF file, or try: halo-weave pull"
        )
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelUnusable(f"{path} is not a GGUF file. Use a model in llama.cpp's GGUF format.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                header = GgufHeaderReader(content, path).header()
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror or error}.") from error
    except (struct.error, OverflowError, UnicodeDecodeError) as error:
        raise _truncated(path) from error
    _check_values(header, path)
    return header


def _truncated(path: Path) -> ModelUnusable:
    return ModelUnusable(f"{path} is truncated or damaged. Copy or download it again.")


def _malformed(path: Path, what: str) -> ModelUnusable:
    return ModelUnusable(
        f"{path} is damaged or malicious: {what}. Download it again from a source that you trust."
    )


class GgufHeaderReader:
    """Reads the header, a sequence of lengths and values."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self.content, self.path, self.at = content, path, 4
        self.tensors: dict[str, tuple[list[int], int, int]] = {}  # shape, type, offset in the file

    def header(self) -> GgufHeader:
        version = self.scalar(KIND)
        if version not in (2, 3):
            raise ModelUnusable(
                f"{self.path} has version {version} of the GGUF format (or the other byte order); 2 and 3 are supported."
            )
        tensors, pairs = self.scalar(COUNT), self.scalar(COUNT)
        if pairs > MAX_PAIRS or tensors > MAX_TENSORS:
            raise _truncated(self.path)
        values: dict[str, Any] = {}
        lists: dict[str, tuple[Any, ...]] = {}
        fingerprints: dict[str, bytes] = {}
        for _ in range(pairs):
            key = self.text().decode("utf-8")
            kind, start = self.scalar(KIND), self.at
            if kind == ARRAY:
                values[key], numbers = self.array(distinct=key == TOKENS)
                if numbers is not None:
                    lists[key] = numbers
            elif kind == STRING:
                values[key] = self.text().decode("utf-8", errors="replace")
            elif kind in SCALARS:
                values[key] = self.scalar(SCALARS[kind])
            else:
                raise _truncated(self.path)
            if key.startswith("tokenizer.ggml."):
                fingerprints[key.removeprefix("tokenizer.ggml.")] = hashlib.sha256(
                    self.content[start : self.at]
                ).digest()
        alignment = lists.get("general.alignment", values.get("general.alignment", 32))
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise _malformed(self.path, f"its alignment is {str(alignment)[:40]!r}")
        self.check_extents(tensors, alignment)
        vocabulary = b"".join(key.encode() + fingerprints.get(key, b"") for key in TOKENIZER_KEYS)
        return GgufHeader(
            architecture=str(values.get("general.architecture", "")),
            values=values,
            tokenizer=hashlib.sha256(vocabulary).hexdigest()[:16],
            size=len(self.content),
            lists=lists,
        )

    def scalar(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.content, self.at)
        self.at += form.size
        return value

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise _truncated(self.path)

    def text(self) -> bytes:
        length = self.scalar(COUNT)
        if length > MAX_TEXT_BYTES:
            raise _truncated(self.path)
        self.skip(length)
        return self.content[self.at - length : self.at]

    def array(self, *, distinct: bool) -> tuple[int, tuple[Any, ...] | None]:
        """The length of an array, and its numbers if it is short. The tokens of a vocabulary must be unique."""
        kind, count = self.scalar(KIND), int(self.scalar(COUNT))
        if kind in SCALARS:
            start, form = self.at, SCALARS[kind]
            self.skip(count * form.size)
            if count > MAX_LIST_LENGTH:
                return count, None
            return count, tuple(value for (value,) in form.iter_unpack(self.content[start : self.at]))
        if kind != STRING or count > MAX_STRINGS:  # llama.cpp knows no arrays of arrays
            raise _truncated(self.path)
        at, end, length_of = self.at, len(self.content), COUNT.unpack_from
        seen: set[bytes] = set()
        empty = 0
        for _ in range(count):  # the vocabulary: hundreds of thousands
            length = length_of(self.content, at)[0]
            at += 8 + length
            if at > end:
                raise _truncated(self.path)
            if distinct:
                seen.add(self.content[at - length : at])
                empty += not length
        self.at = at
        if distinct and len(seen) + max(0, empty - 1) < count:
            raise _malformed(self.path, "its vocabulary has a token twice")
        return count, None

    def check_extents(self, tensors: int, alignment: int) -> None:
        """Check that every tensor ends within the file."""
        # Imported here because most commands read no model.
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        end = 0
        for _ in range(tensors):
            name = self.text().decode("utf-8", errors="replace")
            dimensions = self.scalar(KIND)
            if dimensions > MAX_DIMENSIONS:
                raise _malformed(self.path, f"a tensor has {dimensions:,} dimensions")
            shape = [int(self.scalar(COUNT)) for _ in range(dimensions)][::-1]
            kind, offset = self.scalar(KIND), int(self.scalar(COUNT))
            self.tensors[name] = shape, kind, offset
            try:
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            except (ValueError, KeyError):  # a type newer than the table: left to llama.cpp
                continue
            end = max(end, offset + math.prod(shape) // block * size)
        start = -(-self.at // alignment) * alignment
        if start + end > len(self.content):
            raise _truncated(self.path)
        self.tensors = {name: (shape, kind, start + at) for name, (shape, kind, at) in self.tensors.items()}


def _check_values(header: GgufHeader, path: Path) -> None:
    """Refuse values at which llama.cpp would abort."""
    if header.values.get("tokenizer.ggml.model") in ("no_vocab", "none"):
        raise ModelUnusable(f"{path} has no vocabulary, so it cannot read text. Use another model.")
    tokens = header.values.get(TOKENS, 0)
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        if header.values.get(key, tokens) != tokens:
            raise _malformed(path, f"{key} does not have a value for each token")
    for key, value in header.values.items():
        if key.startswith(f"{header.architecture}."):
            numbers = header.lists.get(key, (value,))
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise _malformed(path, f"{key[:80]} is not a number")
    for key, (low, high) in RANGES.items():
        name = f"{header.architecture}.{key}"
        numbers = header.lists.get(name, (header.values[name],) if name in header.values else ())
        for number in numbers:
            if isinstance(number, bool | str) or not low <= number <= high:
                raise _malformed(path, f"{key} is {str(number)[:40]!r}")
