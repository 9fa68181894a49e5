"""A loaded model and its vocabulary: tokenizing, detokenizing, metadata, contexts."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.llama import bindings
from halo_weave.engines.llama.library import Library
from halo_weave.errors import BadInput, EngineError, ModelUnusable
from halo_weave.models.gguf_header import GgufHeader

_MADV_DONTNEED = 4


def physical_cores() -> int:
    """The number of physical cores that this process may use. More threads than that slow each other down."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on every system
        return max(1, os.cpu_count() or 1)
    siblings = set()
    for number in allowed:
        try:
            siblings.add(
                Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text()
            )
        except OSError:
            return len(allowed)
    return max(1, len(siblings))


def _release_pages(path: Path) -> None:
    """Release the memory-mapped pages of the weights file. Pages that are still used are loaded again on their next access.

    llama.cpp copies most weights to a layout that is faster on this processor. Without this call both copies stay in memory.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # only Linux lists the mappings of a process
        return
    libc = ctypes.CDLL(None)
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == os.path.realpath(path):
            first, last = (int(end, 16) for end in fields[0].split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED)


class Model:
    """Weights and vocabulary. Methods that tokenize may be called from any thread. `with` or `close` frees the model."""

    def __init__(self, path: Path, header: GgufHeader, library: Library, *, gpu_layers: int = -1) -> None:
        self.path, self.header, self.library = path, header, library
        self.c = library.c
        self.known_pieces: dict[int, bytes] = {}
        self.known_controls: dict[int, bool] = {}
        self.logits_view: tuple[int, npt.NDArray[np.float32]] = 0, np.zeros(0, np.float32)
        self.lock = threading.Lock()  # the vocabulary must not be used while it is freed
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        library.log_errors.clear()
        self.handle: int | None = self.c.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelUnusable(
                f"llama.cpp cannot load {path} (architecture {header.architecture or 'unknown'})"
                f"{library.error_detail()}. Use another model or a newer build of llama.cpp."
            )
        _release_pages(path)
        self.vocabulary = self.c.llama_model_get_vocab(self.handle)
        self.size = self.c.llama_vocab_n_tokens(self.vocabulary)
        if not self.size:
            self.close()
            raise ModelUnusable(f"{path} has no vocabulary, so it cannot read text.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model. All its contexts must be closed before."""
        with self.lock:
            if self.handle:
                self.c.llama_model_free(self.handle)
                self.handle = None

    def check_open(self) -> None:
        if not self.handle:
            raise EngineError("The model is closed.")

    def text(self, key: str) -> str | None:
        """A value of the model's metadata, as text."""
        buffer = ctypes.create_string_buffer(1 << 16)
        length = self.c.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace") if length >= 0 else None

    def context(self, **settings: Any) -> int:
        """A new llama_context with these parameters. The caller must free it."""
        params = self.c.llama_context_default_params()
        for name, value in settings.items():
            setattr(params, name, value)
        self.library.log_errors.clear()
        context = self.c.llama_init_from_model(self.handle, params)
        if not context:
            raise EngineError(
                f"llama.cpp could not allocate a context for {settings.get('n_ctx')} tokens{self.library.error_detail()}. "
                "Set a smaller context, or free some memory."
            )
        return int(context)

    def logits(self, context: int | None, index: int = -1) -> npt.NDArray[np.float32]:
        """The logits of a token of the last decode, by default of the last one; valid until the next decode."""
        pointer = self.c.llama_get_logits_ith(context, index)
        address = ctypes.addressof(pointer.contents)
        known_address, view = self.logits_view
        if address != known_address:  # creating the view takes longer than reading it
            view = np.ctypeslib.as_array(pointer, shape=(self.size,))
            self.logits_view = address, view
        return view

    def tokenize_ids(self, text: str, *, special: bool = False, add_special: bool = False) -> Ids:
        """Token ids. `special`: recognise control tokens in the text. `add_special`: add BOS, EOS and the like."""
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        room = len(raw) + 8
        ids = np.empty(room, dtype=np.int32)
        target = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        with self.lock:
            self.check_open()
            count = self.c.llama_tokenize(self.vocabulary, raw, len(raw), target, room, add_special, special)
        if count < 0:
            raise EngineError(f"A text of {len(raw)} bytes could not be tokenized.")
        return ids[:count].copy()

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Tokens whose pieces join to exactly the text, even if the tokenizer adds a space or normalises characters."""
        raw = text.encode("utf-8", errors="surrogatepass")
        ids = self.tokenize_ids(text, special=special)
        if raw and not len(ids):  # the vocabulary has no token for it: the model reads a space
            ids = self.tokenize_ids(" ")
        tokens = self.pieces(ids)
        return tokens if tokens.raw == raw else _aligned(tokens, raw)

    def pieces(self, ids: Ids) -> Tokens:
        return Tokens.of(ids, [self.piece(id) for id in ids.tolist()])

    def piece(self, id: int) -> bytes:
        piece = self.known_pieces.get(id)
        if piece is None:
            if not 0 <= id < self.size:
                raise BadInput(f"{id} is not a token id of {self.path.name}, which has {self.size} tokens.")
            buffer = ctypes.create_string_buffer(256)
            with self.lock:
                self.check_open()
                length = self.c.llama_token_to_piece(self.vocabulary, id, buffer, len(buffer), 0, True)
                if length < 0:
                    buffer = ctypes.create_string_buffer(-length)
                    length = self.c.llama_token_to_piece(self.vocabulary, id, buffer, len(buffer), 0, True)
            piece = self.known_pieces[id] = buffer.raw[:length]
        return piece

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these are control tokens or not in the vocabulary."""
        numbers = ids.tolist()
        with self.lock:
            self.check_open()
            for id in set(numbers) - self.known_controls.keys():
                inside = 0 <= id < self.size
                self.known_controls[id] = not inside or self.c.llama_vocab_is_control(self.vocabulary, id)
        return np.array([self.known_controls[id] for id in numbers], np.bool_)

    def ends_generation(self, id: int) -> bool:
        return bool(self.c.llama_vocab_is_eog(self.vocabulary, id))

    def special(self) -> dict[str, int]:
        """The special tokens that the model has, by name."""
        names = ("bos", "eos", "eot", "sep", "nl", "pad", "mask")
        found = {name: int(getattr(self.c, f"llama_vocab_{name}")(self.vocabulary)) for name in names}
        return {name: id for name, id in found.items() if id >= 0}

    @property
    def adds_bos(self) -> bool:
        return bool(self.c.llama_vocab_get_add_bos(self.vocabulary))

    @property
    def trained_context(self) -> int:
        return int(self.c.llama_model_n_ctx_train(self.handle))

    @property
    def bert_like(self) -> bool:
        return bool(self.c.llama_vocab_type(self.vocabulary) == bindings.VOCABULARY_WPM)


def _aligned(tokens: Tokens, raw: bytes) -> Tokens:
    """The same ids, with pieces that join to `raw`.

    For tokenizers that add a space, normalise characters or lack some: text without a token is added to the next piece.
    """
    ends, at = [], 0
    for piece in tokens.pieces():
        for form in (piece, piece.strip()):
            start = raw.find(form, at, at + len(form) + 16)
            if form and start >= 0:
                at = start + len(form)
                break
        ends.append(at)
    if ends:
        ends[-1] = len(raw)
    return Tokens(tokens.ids.copy(), raw if ends else b"", np.array(ends, dtype=np.int32))
