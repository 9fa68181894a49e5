"""Documents attached to a message: read as text and stored as turns of their own."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Protocol

from halo_weave.chat.open_window import ChunkOrigin, OpenWindow
from halo_weave.chat.prompt import TurnAnnotation
from halo_weave.chat.runtime import Runtime
from halo_weave.core.pruning import Prune, PrunePlan, PruneReason
from halo_weave.core.tokens import Chunk, Role
from halo_weave.core.working_set import chunk_turn
from halo_weave.errors import BadInput, DocumentRefused
from halo_weave.sandbox.process import ProcessStopped, SandboxedProcess
from halo_weave.settings import Settings
from halo_weave.store.records import DOCUMENT

_TASK = Path(__file__).with_name("document_task.py")
_MEMORY = 512 << 20  # memory of the sandboxed process in bytes, beside the file itself
_UNPACKED = 64 << 20  # bytes that the text of a DOCX may have
_LONGEST_NAME = 120
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_UNREADABLE = 0.02  # a file with a larger share of control characters is not text
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def document_name(path: str) -> str:
    """The name of a file without its folders, on one line, without invisible characters that could disguise its type."""
    name = PurePosixPath(PureWindowsPath(path).as_posix()).name
    name = " ".join(_INVISIBLE.sub(" ", name.encode(errors="replace").decode()).split())
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 21]}…{name[-20:]}"
    return name or "file"


def document_text(name: str, data: bytes, *, characters: int, seconds: float) -> str:
    """The text of a file, at most so many characters. Raises DocumentRefused."""
    if not data.strip():
        raise DocumentRefused(f"{name} is empty. Attach another file.")
    if data.startswith(_OLD_OFFICE):
        raise DocumentRefused(
            f"{name} is protected by a password, or of an old version of Office. Save it as DOCX without a password."
        )
    if b"%PDF-" in data[:1024]:
        text = _confined(name, "pdf", data, characters, seconds)
    elif data.startswith(b"PK\x03\x04"):
        text = _confined(name, "docx", data, characters, seconds)
    else:
        text = _plain(name, data)
    text = _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")
    if not text.strip():
        raise DocumentRefused(
            f"There is no text in {name}. If its pages are pictures, only their text can be read."
        )
    if len(text) > characters:
        raise DocumentRefused(
            f"{name} has more text than may be attached. Attach a part of it, or raise document_tokens in the settings."
        )
    return text


def _plain(name: str, data: bytes) -> str:
    marks = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    form = marks.get(data[:2], "utf-8-sig")
    try:
        text = data.decode(form)
    except UnicodeDecodeError:
        if b"\0" in data[:4096] or len(_CONTROLS.findall(data[:4096].decode("latin-1"))) > 40:
            raise DocumentRefused(
                f"{name} is not a text, a PDF or a DOCX. Only those can be attached."
            ) from None
        raise DocumentRefused(
            f"{name} is not in UTF-8, so its letters cannot be read reliably. Save it as UTF-8, then attach it."
        ) from None
    if len(_CONTROLS.findall(text[:65_536])) > _UNREADABLE * len(text[:65_536]):
        raise DocumentRefused(f"{name} is not a text, a PDF or a DOCX. Only those can be attached.")
    return text


def _confined(name: str, kind: str, data: bytes, characters: int, seconds: float) -> str:
    question = {
        "kind": kind,
        "data": base64.b64encode(data).decode("ascii"),
        "characters": characters,
        "unpacked": _UNPACKED,
    }
    setup = _folders(name) if kind == "pdf" else []
    try:
        with SandboxedProcess(_TASK, setup, memory_bytes=_MEMORY + 8 * len(data)) as process:
            answer: dict[str, str] = process.ask(question, seconds)
    except ProcessStopped as error:
        raise DocumentRefused(f"{name} could not be read: its reading {error} Attach it as text.") from None
    except OSError as error:
        raise DocumentRefused(
            f"{name} could not be read: no process could be started for it: {error.strerror or error}."
        ) from error
    if "error" in answer:
        raise DocumentRefused(f"{name} {answer['error']}")
    return answer["text"]


def _folders(name: str) -> list[str]:
    """The folders to import pypdf from."""
    spec = find_spec("pypdf")
    if spec is None or spec.origin is None:
        raise DocumentRefused(f"{name} is a PDF. Reading those needs: pip install 'halo-weave[documents]'")
    return [str(Path(spec.origin).parents[1])]


MAX_DOCUMENTS = 20  # documents per message
CHARACTERS = 16  # characters per token, at most: limits how much of a file is read


@dataclass(frozen=True, slots=True)
class Document:
    """A file's name and its text."""

    name: str
    text: str
    tokens: int = 0  # tokens of the text


class Documents:
    """`weave.documents`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def most_bytes(self, window_id: str | None = None) -> int:
        """The size limit of a file, in bytes."""
        return self._limits(window_id).document_megabytes * 1_000_000

    def read(self, name: str, data: bytes, window_id: str | None = None) -> Document:
        """The text of a file and its token count. Nothing is stored. Raises DocumentRefused."""
        limits, name = self._limits(window_id), document_name(name)
        if len(data) > self.most_bytes(window_id):
            raise DocumentRefused(
                f"{name} is larger than {limits.document_megabytes} MB. Attach a part of it, or raise document_megabytes "
                "in the settings."
            )
        text = document_text(
            name, data, characters=CHARACTERS * limits.document_tokens, seconds=limits.document_seconds
        )
        return self.counted(name, text, window_id)

    def counted(self, name: str, text: str, window_id: str | None = None) -> Document:
        """A text that was extracted before, with its token count."""
        limits, name = self._limits(window_id), document_name(name)
        runtime = self._runtime
        model = runtime.default_model if window_id is None else runtime.model_for_window(window_id)
        tokens = len(model.engine.tokenize(text))
        if tokens > limits.document_tokens:
            raise DocumentRefused(
                f"{name} has {tokens:,} tokens, and {limits.document_tokens:,} may be attached. Attach a part of it, or "
                "raise document_tokens in the settings."
            )
        if not text.strip():
            raise DocumentRefused(f"There is no text in {name}. Attach another file.")
        return Document(name, text, tokens)

    def checked(self, documents: Sequence[Document], window_id: str) -> tuple[Document, ...]:
        """Check the documents of a message."""
        if len(documents) > MAX_DOCUMENTS:
            raise BadInput(
                f"A message may have {MAX_DOCUMENTS} documents. Send some of them with the next one."
            )
        return tuple(self.counted(document.name, document.text, window_id) for document in documents)

    def _limits(self, window_id: str | None) -> Settings:
        runtime = self._runtime
        return runtime.settings(None if window_id is None else runtime.window(window_id))


class _WithDocuments(Protocol):
    """The part of a request that attaching needs: the documents, and the turn that they follow."""

    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def after(self) -> int | None: ...


def attach(
    runtime: Runtime,
    open_window: OpenWindow,
    request: _WithDocuments,
    message_tokens: int,
    *,
    fits_whole: bool,
) -> Iterator[PrunePlan]:
    """Store the documents, one transaction each.

    `fits_whole`: the model's context has room for all of them and the message of `message_tokens` tokens. If not, only the
    first chunks of each stay live; the others are pruned at once, and can be resurrected like any other chunk. Yields the
    prune plans.
    """
    documents = request.documents
    room = max(0, open_window.recall_room(message_tokens)) // 2  # the other half is for recall
    for index, document in enumerate(documents):
        tokens, now = open_window.engine.tokenize(document.text), runtime.now()
        ids = runtime.store.reserve(len(tokens))
        chunks = chunk_turn(
            tokens,
            ids.user_turn,
            Role.USER,
            ids.start,
            min_chunk_tokens=open_window.settings.min_chunk_tokens,
            max_chunk_tokens=open_window.settings.max_chunk_tokens,
        )
        live = [open_window.working_set.new_chunk(chunk) for chunk in chunks]
        runtime.store.append(
            open_window.record.id,
            live,
            tokenizer=open_window.engine.info.tokenizer,
            now=now,
            speaker=document.name,
            tags={chunk.key: (DOCUMENT,) for chunk in chunks},
            after=request.after if not index else None,
        )
        with open_window.lock:
            for chunk in chunks:
                open_window.record_origin(
                    chunk, ChunkOrigin(open_window.record.id, document.name, now, tags=(DOCUMENT,))
                )
            open_window.working_set.add(live)
        surplus = () if fits_whole else _surplus_chunks(chunks, room // len(documents))
        if surplus:
            prunes = (
                Prune(
                    chunk.key, len(chunk), open_window.working_set.at(chunk.key).peak, PruneReason.NO_ROOM, 0
                )
                for chunk in surplus
            )
            yield PrunePlan(open_window.context_budget, 0, tuple(prunes))


def document_cost(open_window: OpenWindow, documents: Sequence[Document]) -> int:
    """Tokens of the documents with their frames."""
    frame = open_window.working_set.frame_tokens.get(Role.USER, 0)
    said = open_window.record.created if open_window.settings.timestamps else None
    annotations = (
        TurnAnnotation.quotation(said, Role.USER, document=document.name) for document in documents
    )
    return sum(
        document.tokens + frame + open_window.prompt_builder.annotation_tokens(annotation)
        for document, annotation in zip(documents, annotations, strict=True)
    )


def _surplus_chunks(chunks: Sequence[Chunk], room: int) -> Sequence[Chunk]:
    """The chunks from the first one on that does not fit. The first chunk of a document always stays."""
    size = 0
    for index, chunk in enumerate(chunks):
        size += len(chunk)
        if index and size > room:
            return chunks[index:]
    return ()
