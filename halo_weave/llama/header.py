"""The header of a GGUF file, read before llama.cpp sees the file: a bad one gets a sentence, not an abort."""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from halo_weave.errors import ModelNotFound, ModelUnusable

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
TOKENIZER_KEYS = ("model", "pre", "tokens", "merges", "add_space_prefix")


@dataclass(frozen=True, slots=True)
class Header:
    architecture: str
    values: dict[str, Any]  # scalars and strings; of an array, its length
    tokenizer: str  # fingerprint of the vocabulary and how it is applied
    size: int  # bytes of the file

    def get(self, key: str) -> Any:
        """A value of this architecture, such as `pooling_type`, or None."""
        return self.values.get(f"{self.architecture}.{key}")

    @property
    def embeds(self) -> bool:
        """Made to embed text, not to write it."""
        return (
            bool(self.get("pooling_type"))
            or self.get("attention.causal") is False
            or "bert" in self.architecture
            or self.architecture in ("t5encoder", "gemma-embedding")
        )


def read_header(path: Path) -> Header:
    """Raises ModelNotFound or ModelUnusable with what is wrong."""
    if not path.is_file():
        raise ModelNotFound(
            f"There is no model at {path}. Give the path of a GGUF file, or try: halo-weave pull"
        )
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelUnusable(f"{path} is not a GGUF file. Use a model in llama.cpp's GGUF format.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return Reader(content, path).header()
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read: {error.strerror or error}.") from error
    except (struct.error, OverflowError, UnicodeDecodeError) as error:
        raise truncated(path) from error


def truncated(path: Path) -> ModelUnusable:
    return ModelUnusable(f"{path} is truncated or damaged. Copy or download it again.")


class Reader:
    """Walks through the header, which is one long run of lengths and values."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self.content, self.path, self.at = content, path, 4

    def header(self) -> Header:
        version = self.scalar("I")
        if version not in (2, 3):
            raise ModelUnusable(
                f"{self.path} has version {version} of the GGUF format (or the other byte order); 2 and 3 are known."
            )
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        values: dict[str, Any] = {}
        fingerprints: dict[str, bytes] = {}
        for _ in range(pairs):
            key = self.text()
            kind, start = self.scalar("I"), self.at
            values[key] = self.value(kind)
            if key.startswith("tokenizer.ggml."):
                fingerprints[key.removeprefix("tokenizer.ggml.")] = hashlib.sha256(
                    self.content[start : self.at]
                ).digest()
        self.check_extents(tensors, int(values.get("general.alignment", 32)))
        known = b"".join(key.encode() + fingerprints.get(key, b"") for key in TOKENIZER_KEYS)
        return Header(
            architecture=str(values.get("general.architecture", "")),
            values=values,
            tokenizer=hashlib.sha256(known).hexdigest()[:16],
            size=len(self.content),
        )

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.content, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise truncated(self.path)

    def text(self) -> str:
        length = self.scalar("Q")
        self.skip(length)
        return self.content[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise truncated(self.path)
        return self.scalar(SCALARS[kind])

    def array(self) -> int:
        kind, count = self.scalar("I"), int(self.scalar("Q"))
        if kind in SCALARS:
            self.skip(count * struct.calcsize("<" + SCALARS[kind]))
        else:
            if count > len(self.content):
                raise truncated(self.path)
            for _ in range(count):
                if kind == STRING:
                    self.skip(self.scalar("Q"))
                else:
                    self.value(kind)
        return count

    def check_extents(self, tensors: int, alignment: int) -> None:
        """Every tensor must end within the file."""
        end = 0
        for _ in range(tensors):
            self.skip(self.scalar("Q"))
            elements = 1
            for _ in range(self.scalar("I")):
                elements *= int(self.scalar("Q"))
            kind, offset = self.scalar("I"), self.scalar("Q")
            try:
                block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            except ValueError:  # a type newer than the table: llama.cpp will judge
                continue
            end = max(end, offset + elements // block * size)
        start = -(-self.at // max(1, alignment)) * max(1, alignment)
        if start + end > len(self.content):
            raise truncated(self.path)
