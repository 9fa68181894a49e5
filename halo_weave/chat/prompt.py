"""Build the prompt: the live chunks in the model's chat template, with a label for each token."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.tokens import Chunk, ChunkKey, Ids, Positions, Role, Tokens
from halo_weave.core.working_set import WorkingSet
from halo_weave.engines.base import (
    ANONYMOUS_LABELS,
    PROCESS_LABELS,
    UNSENT_LABELS,
    Engine,
    Prompt,
    Segment,
    retokenized_labels,
)
from halo_weave.engines.templates.messages import ChatMessage, Piece

# Tokens without a position have negative labels: the template's own text around the system prompt, such as its tools, from -1
# on; from `PROCESS_LABELS` on the system prompt itself and frames. So no label depends on how far the ids of a memory have advanced.
SYSTEM_LABELS = -1
SYSTEM_PIECE = 1 << 18  # labels reserved for each piece, so that none depends on the length of another
MOST_GIVEN = 1 << 16  # parts whose labels are remembered; a part that was forgotten is computed again
NAMELESS_LABELS = ANONYMOUS_LABELS - (1 << 59)  # so that they differ from those in a cache on disk
_COMING = -1  # id of the turn that is not sent yet
LONGEST_NAME = 48  # bytes of a window's name in a quotation

_Slot = Literal[
    "header", "footer", "before", "after", "between", "left", "right", "rewritten"
]  # parts of a frame with labels of their own


@dataclass(frozen=True, slots=True)
class TurnAnnotation:
    """The text that the model reads around a turn, so that it knows where the turn comes from.

    A quotation is text that was not said in this chat: it is never shown as a turn of its own speaker.
    """

    before: str
    after: str = ""
    quoted: bool = False

    @classmethod
    def quotation(
        cls, said: datetime | None, role: Role, *, chat: str = "", document: str = "", speaker: str = ""
    ) -> TurnAnnotation:
        """Annotation for text of another chat or of a file.

        `said`: None leaves out the date. `speaker`: a name instead of "I" or "you".
        """
        where = [f"on {said.astimezone():%Y-%m-%d}"] if said else []
        where += [f'in the chat "{_shortened(chat)}"'] if chat else []
        if document:
            line = ", ".join([*where, f'the file "{_shortened(document)}" says'])
            return cls(f'{line[0].upper()}{line[1:]}: "', '"', quoted=True)
        who = _shortened(speaker) if speaker else "you" if role is Role.ASSISTANT else "I"
        verb = "answered" if role is Role.ASSISTANT else "said"
        # The origin comes last: models begin their replies with what they have seen at the beginning of lines.
        return cls('"', f'" ({" ".join([who, verb, "this", *where])})', quoted=True)

    @classmethod
    def said(cls, speaker: str, day: datetime | None) -> TurnAnnotation | None:
        """Annotation for a user's turn of this chat: the speaker if several people write, and the day if the turn is
        the day's first."""
        told = f"[{day.astimezone():%A, %d %B %Y}]\n" if day else ""
        told += f"{_shortened(speaker)}: " if speaker else ""
        return cls(told) if told else None


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The system prompt with an estimate of its tokens, frame included."""

    text: str
    tokens: int
    tools: str = ""  # tools that the template declares beside it, as JSON

    def __len__(self) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class WindowPrompt(Prompt):
    """A prompt of a window. The template may leave out some live tokens, such as white space at the end of a turn."""

    unread: npt.NDArray[np.intp] = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # index of each among the chunk tokens of the prompt
    unread_before: int = 0  # number of them before the turn that is answered
    opening: str = ""  # the generation prompt
    order: npt.NDArray[np.intp] = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # the window's first tokens in the order of the prompt, if the orders differ

    def whole(self, row: AttentionRow | None) -> AttentionRow | None:
        """A row over all live tokens, in the window's order; 0 for tokens that are not in the prompt."""
        if row is None:
            return row
        if len(self.unread):
            at = self.unread[self.unread <= len(row.tokens)]
            raw = None if row.raw is None else np.insert(row.raw, at, 0, axis=-1)
            row = replace(row, tokens=np.insert(row.tokens, at, 0), raw=raw)
        moved = len(self.order)
        if not moved:
            return row
        if len(row.tokens) < moved:
            return None
        order = np.concatenate([self.order, np.arange(moved, len(row.tokens))])
        return replace(
            row,
            tokens=row.tokens[order],
            raw=None if row.raw is None else np.ascontiguousarray(row.raw[..., order]),
        )

    def later(self, row: AttentionRow | None, live: int) -> AttentionRow | None:
        """A row over all tokens that are live by now; 0 for those after its token."""
        row = self.whole(row)
        if row is None or row.tokens.size > live:
            return row
        more = live - row.tokens.size
        raw = None if row.raw is None else np.pad(row.raw, ((0, 0), (0, more)))
        return replace(row, tokens=np.pad(row.tokens, (0, more)), raw=raw)

    def whole_surprisal(self, surprisal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Surprisal of all tokens from `read_from` on; NaN for tokens that are not in the prompt."""
        if not len(self.unread):
            return surprisal
        read = sum(len(segment.labels) for segment in self.segments if segment.kind == "chunk")
        at = self.unread[self.unread_before :] - (read - len(surprisal))
        return np.insert(surprisal, np.clip(at, 0, len(surprisal)), np.nan)


class PromptBuilder:
    """Writes prompts for one engine. Frames are tokenized once."""

    def __init__(self, engine: Engine, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools`: the AI's tools, as templates declare them."""
        self._engine, self.tools = engine, tools
        self.declared = json.dumps(list(tools)) if tools else ""
        self._frame = lru_cache(4096)(lambda text: engine.tokenize(text, special=True))
        self._plain = lru_cache(4096)(engine.tokenize)
        self.system = lru_cache(64)(self._system)
        self.given = lru_cache(MOST_GIVEN)(self._given)
        self._next_given, self._next_nameless, self._guard = PROCESS_LABELS, NAMELESS_LABELS, Lock()
        self.controls = lru_cache(4096)(self._controls)
        self._agree = lru_cache(4096)(self._agreed)
        self._sizes: dict[Role, int] = {}

    def _system(self, text: str, tools: str = "") -> SystemPrompt:
        """The system prompt; without text, only the tokens that begin a context are counted."""
        told = [ChatMessage("system", text)] if text else []
        pieces = self._engine.chat([*told, *_SAMPLE], tools=parse_tool_declarations(tools)).pieces
        own = [piece for piece in pieces if piece.part == "begin" or (told and piece.message == 0)]
        size = sum(len(self._plain(p.text) if p.said else self._frame(p.text)) for p in own)
        return SystemPrompt(text, size, tools)

    def _given(self, part: tuple[object, ...], count: int) -> int:
        """The first of `count` labels, counting down, that no other part has. Remembered in `given` by the part."""
        with self._guard:
            self._next_given -= count
            return self._next_given + count

    def nameless(self, count: int) -> int:
        """The first of `count` labels that no other frame has and that no cache on disk knows."""
        with self._guard:
            self._next_nameless -= count
            return self._next_nameless + count

    def readable(self, tokens: Tokens) -> bool:
        """Whether the ids are this model's tokens of their text, without control tokens. Imported files may contain
        anything."""
        return self._agree(tokens.ids.tobytes(), tokens.raw, tokens.ends.tobytes())

    def _controls(self, ids: bytes) -> npt.NDArray[np.bool_] | None:
        """Which of the tokens are control tokens; None: none is."""
        found = self._engine.controls(np.frombuffer(ids, np.int32))
        return found if found.any() else None

    def _agreed(self, ids: bytes, raw: bytes, ends: bytes) -> bool:
        if self.controls(ids) is not None:
            return False
        tokens = Tokens(np.frombuffer(ids, np.int32), raw, np.frombuffer(ends, np.int32))
        return self._engine.pieces(tokens.ids) == tokens or self._engine.tokenize(tokens.text) == tokens

    def frame_tokens(self) -> dict[Role, int]:
        """Estimated tokens of a turn's frame."""
        if not self._sizes:
            pieces = self._engine.chat(_SAMPLE).pieces
            size = {(p.message, p.part): len(self._frame(p.text)) for p in pieces if not p.said}
            answer = max(size.get((1, "header"), 0), size.get((3, "prompt"), 0)) + size.get((1, "footer"), 0)
            user = size.get((2, "header"), 0) + size.get((2, "footer"), 0)
            self._sizes = {Role.USER: user, Role.ASSISTANT: answer, Role.SYSTEM: user}
        return dict(self._sizes)

    def annotation_tokens(self, annotation: TurnAnnotation | None) -> int:
        """Estimated tokens of an annotation; one more separates adjacent quotations."""
        if annotation is None:
            return 0
        return len(self._plain(annotation.before)) + len(self._plain(annotation.after)) + annotation.quoted

    def prompt(
        self,
        working_set: WorkingSet,
        system: SystemPrompt,
        annotations: Mapping[int, TurnAnnotation],
        retokenized: frozenset[int] = frozenset(),
        *,
        effort: str | None = None,
        recently_resurrected: Collection[ChunkKey] = (),
        said_at: Mapping[int, datetime] | None = None,
        own_turns: frozenset[int] = frozenset(),
        owner: str | None = None,
    ) -> WindowPrompt:
        """Build the prompt of the live chunks and the reply in progress.

        `annotations`: annotations of turns, by turn id. `retokenized`: start positions of chunks that were tokenized again.
        `recently_resurrected`: a remote engine is told which messages consist of these chunks. `said_at`: when turns were
        said, by turn id; quotations are in this order. `own_turns`: ids of the turns that were said in this window; other
        windows of the same `owner` may copy their KV cells.

        Control tokens occur only in frames. In a chunk, their text is tokenized as ordinary text.
        """
        reply = working_set.reply
        if reply is None:
            raise AssertionError("prompt() needs a reply in progress: call WorkingSet.begin_reply first.")
        ordered = in_reading_order(working_set.chunks, annotations, said_at or {}, reply.answers)
        turns = _turns_of(ordered, annotations)
        pieces = self._pieces(turns, system, effort)
        live = {chunk.start: self._labels(chunk, retokenized) for turn in turns for chunk in turn.chunks}
        writer = _Writer(self, live, own_turns)
        for piece in pieces:
            if piece.part == "prompt":
                writer.frame(piece.text, reply.turn_id, "header")
            else:
                writer.write(piece, turns, bool(system.text))
        none = np.zeros(0, np.int64)
        read = np.concatenate([none, *(s.labels for s in writer.segments if s.kind == "chunk")])
        all_live = np.concatenate([none, *live.values()])
        missing = ~np.isin(all_live, read) if len(read) < len(all_live) else np.zeros(len(all_live), bool)
        unread = np.flatnonzero(missing) - np.arange(int(missing.sum()))
        if reply.ids:
            labels = np.arange(reply.start, reply.start + len(reply.ids), dtype=np.int64)
            writer.segments.append(Segment("chunk", labels, np.array(reply.ids, np.int32), lendable=True))
        read_from = next((first for turn_id, first in writer.firsts if turn_id == reply.answers), None)
        before = sum(
            len(chunk) for turn in turns for chunk in turn.chunks if chunk.key.turn_id != reply.answers
        )
        written = _messages(turns, system)
        return WindowPrompt(
            writer.segments,
            reply.start + len(reply.ids),
            read_from,
            unread,
            int(missing[:before].sum()),
            "".join(piece.text for piece in pieces if piece.part == "prompt"),
            _moved(working_set.chunks, ordered),
            messages=written if not reply.ids else (*written, ChatMessage("assistant", reply.tokens.text)),
            recently_resurrected=frozenset(
                turn.message for turn in turns if all(c.key in recently_resurrected for c in turn.chunks)
            ),
            tools=parse_tool_declarations(system.tools),
            effort=effort,
            owner=owner,
        )

    def ahead(
        self,
        chunks: Sequence[Chunk],
        system: SystemPrompt,
        annotations: Mapping[int, TurnAnnotation],
        retokenized: frozenset[int] = frozenset(),
        *,
        message_annotation: TurnAnnotation | None = None,
        effort: str | None = None,
        words: Tokens | None = None,
        said_at: Mapping[int, datetime] | None = None,
        own_turns: frozenset[int] = frozenset(),
        owner: str | None = None,
    ) -> Prompt:
        """The beginning of the next prompt, whatever is sent: these chunks, and the frame of a message.

        With `words`, which were typed and are not sent yet, the whole prompt for them. `message_annotation`: the annotation of the
        message.
        """
        turns = _turns_of(in_reading_order(chunks, annotations, said_at or {}), annotations)
        live = {chunk.start: self._labels(chunk, retokenized) for turn in turns for chunk in turn.chunks}
        lead = message_annotation.before if message_annotation else ""
        coming = _Message((_Literal(_COMING, "before", lead),), ChatMessage("user", f"{lead}a"))
        if words:
            typed = Chunk(ChunkKey(_COMING, 0, Role.USER), max((c.stop for c in chunks), default=0), words)
            coming = _message_of([(_COMING, (typed,), message_annotation)], Role.USER)
            live[typed.start] = _labels(UNSENT_LABELS, len(words))
        turns.append(coming)
        writer = _Writer(self, live, own_turns)
        last = len(turns) - 1 + bool(system.text)
        for piece in self._pieces(turns, system, effort):
            ends = piece.part == "prompt" or (piece.message == last and piece.part != "header")
            if piece.part == "prompt" and words:
                writer.frame(piece.text, _COMING, "header")
            elif not ends or words or (piece.part == "content" and piece.start >= 0):
                writer.write(piece, turns, bool(system.text))
            if ends and not words:
                break
        read_from = next((first for turn_id, first in writer.firsts if turn_id == _COMING), None)
        return Prompt(writer.segments, 0, read_from, owner=owner)

    def _pieces(self, turns: Sequence[_Message], system: SystemPrompt, effort: str | None) -> Sequence[Piece]:
        tools = parse_tool_declarations(system.tools)
        return self._engine.chat(_messages(turns, system), effort=effort, tools=tools).pieces

    def _labels(self, chunk: Chunk, retokenized: frozenset[int]) -> Positions:
        if chunk.start in retokenized:
            labels = retokenized_labels(chunk.start, chunk.span, len(chunk))
            if labels is not None:
                return labels
            return _labels(self.given(("chunk", chunk.start), len(chunk)), len(chunk))
        return np.arange(chunk.start, chunk.start + len(chunk), dtype=np.int64)

    def frame_ids(self, text: str) -> Ids:
        """Tokens of the template's own text, with control tokens."""
        return self._frame(text).ids

    def said_ids(self, text: str) -> Ids:
        """Tokens of text that somebody said: control tokens in it are read as ordinary text."""
        return self._plain(text.encode(errors="surrogateescape").decode(errors="replace")).ids


def _messages(turns: Sequence[_Message], system: SystemPrompt) -> tuple[ChatMessage, ...]:
    told = (ChatMessage("system", system.text),) if system.text else ()
    return (*told, *(turn.message for turn in turns))


def in_reading_order(
    chunks: Sequence[Chunk],
    annotations: Mapping[int, TurnAnnotation],
    said_at: Mapping[int, datetime],
    answered_turn: int | None = None,
) -> list[Chunk]:
    """Chunks in the order in which the model reads them: turns of this chat by position, quotations by date.

    A quotation comes before the first message of the user that was said later, and always before the message that is
    `answered_turn`. An import gives old text new positions: only its dates say when it was said.
    """
    turns = [list(own) for _, own in groupby(chunks, key=lambda chunk: chunk.key.turn_id)]
    quotes, here = list[list[Chunk]](), list[list[Chunk]]()
    for turn in turns:
        id = turn[0].key.turn_id
        (quotes if id in said_at and id in annotations and annotations[id].quoted else here).append(turn)

    def when(turn: list[Chunk]) -> tuple[datetime, int]:
        return said_at[turn[0].key.turn_id], turn[0].start

    quotes.sort(key=when, reverse=True)  # the earliest last
    ordered: list[Chunk] = []
    for turn in here:
        key = turn[0].key
        while quotes and key.role is Role.USER:
            if key.turn_id != answered_turn and not (
                key.turn_id in said_at and when(quotes[-1]) < when(turn)
            ):
                break
            ordered += quotes.pop()
        ordered += turn
    return [*ordered, *(chunk for turn in reversed(quotes) for chunk in turn)]


def _moved(window: Sequence[Chunk], ordered: Sequence[Chunk]) -> npt.NDArray[np.intp]:
    """Indexes of the window's chunk tokens in reading order; None if both orders are the same."""
    if all(one is other for one, other in zip(window, ordered, strict=True)):
        return np.zeros(0, np.intp)
    starts, at = dict[ChunkKey, int](), 0
    for chunk in ordered:
        starts[chunk.key] = at
        at += len(chunk)
    places = np.concatenate([starts[chunk.key] + np.arange(len(chunk)) for chunk in window])
    same = np.flatnonzero(places != np.arange(len(places)))
    return places[: int(same[-1]) + 1].astype(np.intp)


def _turns_of(chunks: Iterable[Chunk], annotations: Mapping[int, TurnAnnotation]) -> list[_Message]:
    """The messages of the live turns. Adjacent quotations become one user message."""
    turns = [
        (turn_id, role, tuple(own))
        for (turn_id, role), own in groupby(chunks, key=lambda chunk: (chunk.key.turn_id, chunk.key.role))
    ]
    messages: list[_Message] = []
    for quoted, group in groupby(
        turns, key=lambda turn: turn[0] in annotations and annotations[turn[0]].quoted
    ):
        parts = [(turn_id, role, own, annotations.get(turn_id)) for turn_id, role, own in group]
        if quoted:
            messages.append(
                _message_of([(id, own, annotation) for id, _, own, annotation in parts], Role.USER)
            )
        else:
            messages += [_message_of([(id, own, annotation)], role) for id, role, own, annotation in parts]
    return messages


def _message_of(
    turns: Sequence[tuple[int, tuple[Chunk, ...], TurnAnnotation | None]], role: Role
) -> _Message:
    """One message from several turns. Bytes that are invalid UTF-8 on their own are kept: a chunk may end within a
    character."""
    parts: list[_Literal | Chunk] = []
    for place, (turn_id, chunks, annotation) in enumerate(turns):
        if place:
            parts.append(_Literal(turn_id, "between", "\n"))
        if annotation and annotation.before:
            parts.append(_Literal(turn_id, "before", annotation.before))
        parts += chunks
        if annotation and annotation.after:
            parts.append(_Literal(turn_id, "after", annotation.after))
    text = b"".join(part.raw if isinstance(part, _Literal) else part.tokens.raw for part in parts)
    # Only the window's own system prompt has the system role; a turn of that role came with an import.
    speaker: Literal["user", "assistant"] = "assistant" if role is Role.ASSISTANT else "user"
    return _Message(tuple(parts), ChatMessage(speaker, text.decode(errors="surrogateescape")))


_SAMPLE = (ChatMessage("user", "a"), ChatMessage("assistant", "b"), ChatMessage("user", "c"))


@dataclass(frozen=True, slots=True)
class _Literal:
    """Text of ours around the text of a turn."""

    turn_id: int
    slot: _Slot
    text: str

    @property
    def raw(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of the prompt and its parts: one turn, or several quoted ones."""

    parts: tuple[_Literal | Chunk, ...]
    message: ChatMessage

    @property
    def chunks(self) -> list[Chunk]:
        return [part for part in self.parts if isinstance(part, Chunk)]

    @property
    def first(self) -> int:
        """The id of its first turn."""
        return _turn_of(self.parts[0])

    @property
    def last(self) -> int:
        return _turn_of(self.parts[-1])


def _turn_of(part: _Literal | Chunk) -> int:
    return part.turn_id if isinstance(part, _Literal) else part.key.turn_id


class _Writer:
    """Turns pieces of the template into segments whose labels are the same from turn to turn."""

    def __init__(
        self, prompt_builder: PromptBuilder, live: Mapping[int, Positions], own: frozenset[int]
    ) -> None:
        self.prompt_builder, self.live = prompt_builder, live  # the labels of the live chunks, by their start
        self.own = own  # ids of the turns that were said in this window
        self.segments: list[Segment] = []
        self.firsts: list[tuple[int, int]] = []  # the first label of each turn's chunks
        self._system = 0  # number of system pieces so far
        self._used: dict[tuple[int, _Slot], int] = {}

    def write(self, piece: Piece, turns: Sequence[_Message], after_system: bool) -> None:
        """Write a piece of one of the turns, or of what comes before them."""
        number = piece.message - after_system
        if piece.part == "begin" or number < 0:
            self.system(piece)
        elif piece.part == "content":
            self.content(turns[number], piece)
        elif piece.part == "footer":
            self.frame(piece.text, turns[number].last, "footer")
        else:
            self.frame(piece.text, turns[number].first, "header")

    def system(self, piece: Piece) -> None:
        """Write a system piece. The template's own text has the same labels in every process."""
        first = SYSTEM_LABELS - self._system * SYSTEM_PIECE
        ids = (
            self.prompt_builder.said_ids(piece.text)
            if piece.said
            else self.prompt_builder.frame_ids(piece.text)
        )
        if piece.said or len(ids) > SYSTEM_PIECE or first - SYSTEM_PIECE < PROCESS_LABELS:
            first = self.prompt_builder.given(("system", self._system, piece.text), len(ids))
        self._system += 1
        self._add("system", first, ids)

    def frame(self, text: str, turn_id: int, slot: _Slot) -> None:
        self._add_part(self.prompt_builder.frame_ids(text), turn_id, slot)

    def content(self, turn: _Message, piece: Piece) -> None:
        """Write the parts of a message, as far as the template leaves them unchanged."""
        if piece.start < 0:
            self._add_part(self.prompt_builder.said_ids(piece.text), turn.first, "rewritten")
            return
        whole = turn.message.content
        first = len(whole[: piece.start].encode(errors="surrogateescape"))
        last = first + len(piece.text.encode(errors="surrogateescape"))
        at = 0
        for part in turn.parts:
            if isinstance(part, Chunk):
                self._add_chunk(part.key.turn_id, part, first - at, last - at)
                at += len(part.tokens.raw)
            else:
                written = part.raw[max(0, first - at) : max(0, last - at)]
                self._add_rest(written, part.turn_id, part.slot)
                at += len(part.raw)

    def _add_chunk(self, turn_id: int, chunk: Chunk, first: int, last: int) -> None:
        """Add the tokens of bytes `first` to `last`. Of a token that is cut, the rest is tokenized again; a control
        token is added as ordinary text."""
        tokens: Tokens = chunk.tokens
        first = max(0, first)
        if last <= 0 or first >= len(tokens.raw):
            return
        controls = self.prompt_builder.controls(tokens.ids.tobytes())
        if first <= 0 and last >= len(tokens.raw) and controls is None:
            self._add_tokens(turn_id, self.live[chunk.start], tokens.ids)
            return
        starts = np.concatenate([[0], tokens.ends[:-1]])
        inside = (starts >= first) & (tokens.ends <= last)
        if controls is not None:
            inside &= ~controls
        whole = np.flatnonzero(inside)
        at = first
        for run in np.split(whole, np.flatnonzero(np.diff(whole) != 1) + 1) if len(whole) else ():
            part = slice(int(run[0]), int(run[-1]) + 1)
            self._add_rest(tokens.raw[at : int(starts[part.start])], turn_id, "left")
            self._add_tokens(turn_id, self.live[chunk.start][part], tokens.ids[part])
            at = int(tokens.ends[part.stop - 1])
        self._add_rest(tokens.raw[at:last], turn_id, "right")

    def _add_tokens(self, turn_id: int, labels: Positions, ids: Ids) -> None:
        self.firsts.append((turn_id, int(labels[0])))
        self.segments.append(Segment("chunk", labels, ids, lendable=turn_id in self.own))

    def _add_rest(self, raw: bytes, turn_id: int, slot: _Slot) -> None:
        if raw:
            self._add_part(self.prompt_builder.said_ids(raw.decode(errors="surrogateescape")), turn_id, slot)

    def _add_part(self, ids: Ids, turn_id: int, slot: _Slot) -> None:
        used = self._used[turn_id, slot] = self._used.get((turn_id, slot), 0) + len(ids)
        coming = turn_id == _COMING
        first = (
            self.prompt_builder.nameless(len(ids))
            if coming
            else self.prompt_builder.given((slot, turn_id, used), len(ids))
        )
        self._add("frame", first, ids)

    def _add(self, kind: Literal["system", "frame"], first: int, ids: Ids) -> None:
        if len(ids):
            self.segments.append(Segment(kind, _labels(first, len(ids)), ids))


@lru_cache(64)
def parse_tool_declarations(tools: str) -> Sequence[Mapping[str, Any]]:
    """The tools in a JSON declaration."""
    return json.loads(tools) if tools else ()


def _shortened(name: str) -> str:
    whole = name.encode()
    return name if len(whole) <= LONGEST_NAME else whole[:LONGEST_NAME].decode(errors="ignore").rstrip() + "…"


def _labels(first: int, count: int) -> Positions:
    return np.arange(first, first - count, -1, dtype=np.int64)
