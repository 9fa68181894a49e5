"""Documents: files that are attached to a message. Each becomes a turn of its own, right before the message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from halo_weave.core.pruning import Prune, PrunePlan, SleepReason
from halo_weave.core.tokens import Chunk, Role
from halo_weave.core.window import chunk_turn
from halo_weave.documents.reader import document_name, document_text
from halo_weave.errors import BadInput, DocumentRefused
from halo_weave.records import DOCUMENT
from halo_weave.settings import Settings
from halo_weave.weave.desk import Desk
from halo_weave.weave.prompt import Origin
from halo_weave.weave.readings import About
from halo_weave.weave.room import wake_room
from halo_weave.weave.system import System

MOST = 20  # documents of one message
CHARACTERS = 16  # of a token, at most: more are not read of a file


@dataclass(frozen=True, slots=True)
class Document:
    """A file's name and its text."""

    name: str
    text: str
    tokens: int = 0  # that the text takes


class WeaveDocuments:
    """`weave.documents`."""

    def __init__(self, system: System) -> None:
        self._system = system

    def most_bytes(self, window_id: str | None = None) -> int:
        """How large a file may be."""
        return self._limits(window_id).document_megabytes * 1_000_000

    def read(self, name: str, data: bytes, window_id: str | None = None) -> Document:
        """A file's text and how many tokens it takes. Nothing is stored. Raises DocumentRefused."""
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
        """A text that was read before, with its tokens."""
        limits, name = self._limits(window_id), document_name(name)
        system = self._system
        model = system.model if window_id is None else system.model_in(window_id)
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
        """Documents as they can be said with a message."""
        if len(documents) > MOST:
            raise BadInput(f"A message may have {MOST} documents. Send some of them with the next one.")
        return tuple(self.counted(one.name, one.text, window_id) for one in documents)

    def _limits(self, window_id: str | None) -> Settings:
        system = self._system
        return system.settings(None if window_id is None else system.window(window_id))


class _Bringing(Protocol):
    """What is said with documents."""

    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def after(self) -> int | None: ...


def attach(system: System, desk: Desk, asked: _Bringing, user: int, *, whole: bool) -> Iterator[PrunePlan]:
    """Documents are stored before they are shown, one transaction each.

    `whole`: the model has room for all of them, next to so many tokens of the user's. If not, all but the openings
    sleeps at once, and wakes up like anything else when it is spoken of: the plans say what.
    """
    documents = asked.documents
    room = max(0, wake_room(desk, user)) // 2  # the other half is for what wakes up
    for place, document in enumerate(documents):
        tokens, now = desk.engine.tokenize(document.text), system.now()
        ids = system.store.reserve(len(tokens))
        chunks = chunk_turn(
            tokens,
            ids.user_turn,
            Role.USER,
            ids.start,
            min_chunk_tokens=desk.settings.min_chunk_tokens,
            max_chunk_tokens=desk.settings.max_chunk_tokens,
        )
        live = [desk.window.born(chunk) for chunk in chunks]
        system.store.append(
            desk.record.id,
            live,
            tokenizer=desk.engine.info.tokenizer,
            now=now,
            speaker=document.name,
            tags={chunk.key: (DOCUMENT,) for chunk in chunks},
            after=asked.after if not place else None,
        )
        with desk.guard:
            for chunk in chunks:
                desk.note(chunk, About(desk.record.id, document.name, now, tags=(DOCUMENT,)))
            desk.window.add(live)
        goes = () if whole else _beyond(chunks, room // len(documents))
        if goes:
            prunes = (
                Prune(chunk.key, len(chunk), desk.window.at(chunk.key).peak, SleepReason.NO_ROOM, 0)
                for chunk in goes
            )
            yield PrunePlan(desk.live_limit, 0, tuple(prunes))


def document_cost(desk: Desk, documents: Sequence[Document]) -> int:
    """Tokens that documents take with their frames."""
    frame = desk.window.frame_tokens.get(Role.USER, 0)
    said = desk.record.created if desk.settings.timestamps else None
    names = (Origin.quotation(said, Role.USER, document=one.name) for one in documents)
    return sum(
        one.tokens + frame + desk.scribe.origin_tokens(name)
        for one, name in zip(documents, names, strict=True)
    )


def _beyond(chunks: Sequence[Chunk], room: int) -> Sequence[Chunk]:
    """What follows the opening, as far as it does not fit."""
    size = 0
    for place, chunk in enumerate(chunks):
        size += len(chunk)
        if place and size > room:
            return chunks[place:]
    return ()
