"""Build the prompt: the live chunks in the model's chat template, with a label for each token.

A label identifies a token between prompts, so that the engine can find its KV cell again. The label of a chunk's token is its
position in the memory. Other tokens have negative labels, which count down:

| labels | tokens | the same in another process |
| --- | --- | --- |
| from `SYSTEM_LABELS` | the template's own text around the system prompt, such as its tools | yes |
| from `PROCESS_LABELS` | the system prompt, frames, and chunks that were tokenized again for this model | no |
| from `OWN_ANONYMOUS_LABELS` | frames that are never looked up by label | no |
"""

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

# No label depends on how many ids the memory has assigned.
SYSTEM_LABELS = -1
LABELS_PER_SYSTEM_PIECE = (
    1 << 18
)  # reserved, so that the labels of a piece do not depend on the length of earlier ones
MAX_ASSIGNED_PARTS = (
    1 << 16
)  # parts whose labels are cached; a part that is no longer cached is computed again
OWN_ANONYMOUS_LABELS = ANONYMOUS_LABELS - (1 << 59)  # different from the anonymous labels in a cache on disk
_UNSENT_TURN = -1  # turn id of the message that is not sent yet
_PLACEHOLDER = "a"  # text of a message that is not known yet
LONGEST_NAME = 48  # bytes of a window's name in a quotation

# Kinds of text that is not a token run of a chunk; each has labels of its own in a turn.
_Slot = Literal[
    "header",  # the template's text before a message
    "footer",  # the template's text after a message
    "before",  # annotation before a turn
    "after",  # annotation after a turn
    "between",  # separates two quotations
    "left",  # text of a chunk before its next whole token
    "right",  # text of a chunk after its last whole token
    "rewritten",  # the text of a message that the template has changed
]
_SAMPLE = (ChatMessage("user", "a"), ChatMessage("assistant", "b"), ChatMessage("user", "c"))


@dataclass(frozen=True, slots=True)
class TurnAnnotation:
    """The text around a turn in the prompt, which tells the model where the turn comes from.

    A turn of another chat or a file is quoted: the prompt has its text in a message with the role user, also if the
    assistant said it.
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
        details = [f"on {said.astimezone():%Y-%m-%d}"] if said else []
        details += [f'in the chat "{_shortened(chat)}"'] if chat else []
        if document:
            line = ", ".join([*details, f'the file "{_shortened(document)}" says'])
            return cls(f'{line[0].upper()}{line[1:]}: "', '"', quoted=True)
        who = _shortened(speaker) if speaker else "you" if role is Role.ASSISTANT else "I"
        verb = "answered" if role is Role.ASSISTANT else "said"
        # The annotation with the details comes last: models begin their replies with what they have seen at the beginning of lines.
        return cls('"', f'" ({" ".join([who, verb, "this", *details])})', quoted=True)

    @classmethod
    def of_user_turn(cls, speaker: str, day: datetime | None) -> TurnAnnotation | None:
        """Annotation for a user's turn of this chat: the speaker if several people write, and the day if the turn asks about
        time."""
        before = f"[{day.astimezone():%A, %d %B %Y}]\n" if day else ""
        before += f"{_shortened(speaker)}: " if speaker else ""
        return cls(before) if before else None


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The system prompt of a window."""

    text: str
    tokens: int  # estimated number of tokens, with the frame
    tools: str = ""  # tools that the template declares with it, as JSON


@dataclass(frozen=True, slots=True)
class WindowPrompt(Prompt):
    """A prompt of a window. The template may leave out some live tokens, such as white space at the end of a turn."""

    dropped_at: npt.NDArray[np.intp] = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # where `np.insert` adds the tokens that the template dropped to the chunk tokens of the prompt
    dropped_before_answered: int = 0  # number of dropped tokens before the turn that is answered
    generation_prompt: str = ""
    prompt_index: npt.NDArray[np.intp] = field(
        default_factory=lambda: np.zeros(0, np.intp)
    )  # for each live token its index in the prompt, up to the last one that differs; empty: the order is the same

    def to_live_tokens(self, row: AttentionRow | None) -> AttentionRow | None:
        """A row over all live tokens, in the window's order; 0 for tokens that are not in the prompt."""
        if row is None:
            return row
        if len(self.dropped_at):
            insert_at = self.dropped_at[self.dropped_at <= len(row.tokens)]
            raw = None if row.raw is None else np.insert(row.raw, insert_at, 0, axis=-1)
            row = replace(row, tokens=np.insert(row.tokens, insert_at, 0), raw=raw)
        reordered = len(self.prompt_index)
        if not reordered:
            return row
        if len(row.tokens) < reordered:
            return None
        order = np.concatenate([self.prompt_index, np.arange(reordered, len(row.tokens))])
        return replace(
            row,
            tokens=row.tokens[order],
            raw=None if row.raw is None else np.ascontiguousarray(row.raw[..., order]),
        )

    def to_later_live_tokens(self, row: AttentionRow | None, live: int) -> AttentionRow | None:
        """A row over the `live` tokens of a later moment; 0 for tokens that were added after the row's own."""
        row = self.to_live_tokens(row)
        if row is None or row.tokens.size > live:
            return row
        more = live - row.tokens.size
        raw = None if row.raw is None else np.pad(row.raw, ((0, 0), (0, more)))
        return replace(row, tokens=np.pad(row.tokens, (0, more)), raw=raw)

    def surprisal_of_live_tokens(self, surprisal: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Surprisal of all tokens from `read_from` on; NaN for tokens that are not in the prompt."""
        if not len(self.dropped_at):
            return surprisal
        in_prompt = sum(len(segment.labels) for segment in self.segments if segment.kind == "chunk")
        insert_at = self.dropped_at[self.dropped_before_answered :] - (in_prompt - len(surprisal))
        return np.insert(surprisal, np.clip(insert_at, 0, len(surprisal)), np.nan)


class PromptBuilder:
    """Writes prompts for one engine. Frames are tokenized once."""

    def __init__(self, engine: Engine, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """`tools`: JSON schemas of the model's tools."""
        self._engine, self.tools = engine, tools
        self.tools_json = json.dumps(list(tools)) if tools else ""
        self._frame = lru_cache(4096)(lambda text: engine.tokenize(text, special=True))
        self._plain = lru_cache(4096)(engine.tokenize)
        self.system_prompt = lru_cache(64)(self._build_system_prompt)
        self.assigned_labels = lru_cache(MAX_ASSIGNED_PARTS)(self._assign_labels)
        self._next_assigned_label, self._next_anonymous_label = PROCESS_LABELS, OWN_ANONYMOUS_LABELS
        self._lock = Lock()  # held while labels are assigned
        self.control_token_mask = lru_cache(4096)(self._find_control_tokens)
        self._cached_token_check = lru_cache(4096)(self._check_tokens)
        self._frame_sizes: dict[Role, int] = {}

    def _build_system_prompt(self, text: str, tools: str = "") -> SystemPrompt:
        """The system prompt. Without text, only BOS and what else the template puts first is counted."""
        system_messages = [ChatMessage("system", text)] if text else []
        pieces = self._engine.chat([*system_messages, *_SAMPLE], tools=parse_tool_declarations(tools)).pieces
        counted = [
            piece for piece in pieces if piece.part == "begin" or (system_messages and piece.message == 0)
        ]
        size = sum(len(self._plain(p.text) if p.said else self._frame(p.text)) for p in counted)
        return SystemPrompt(text, size, tools)

    def _assign_labels(self, part: tuple[object, ...], count: int) -> int:
        """Assign `count` new labels, counting down, and return the first. `assigned_labels` caches them by `part`."""
        with self._lock:
            self._next_assigned_label -= count
            return self._next_assigned_label + count

    def anonymous_labels(self, count: int) -> int:
        """Assign `count` labels that no other frame and no cache on disk has, and return the first."""
        with self._lock:
            self._next_anonymous_label -= count
            return self._next_anonymous_label + count

    def tokens_are_valid(self, tokens: Tokens) -> bool:
        """Whether this model's tokenizer gives these ids for this text, and none is a control token. Imported files may
        contain anything."""
        return self._cached_token_check(tokens.ids.tobytes(), tokens.raw, tokens.ends.tobytes())

    def _find_control_tokens(self, ids: bytes) -> npt.NDArray[np.bool_] | None:
        """Which of the tokens are control tokens; None if there are none."""
        mask = self._engine.controls(np.frombuffer(ids, np.int32))
        return mask if mask.any() else None

    def _check_tokens(self, ids: bytes, raw: bytes, ends: bytes) -> bool:
        if self.control_token_mask(ids) is not None:
            return False
        tokens = Tokens(np.frombuffer(ids, np.int32), raw, np.frombuffer(ends, np.int32))
        return self._engine.pieces(tokens.ids) == tokens or self._engine.tokenize(tokens.text) == tokens

    def frame_tokens(self) -> dict[Role, int]:
        """Estimated tokens of a turn's frame."""
        if not self._frame_sizes:
            pieces = self._engine.chat(_SAMPLE).pieces
            # By message of the sample (user, assistant, user; 3: after them) and part.
            size = {(p.message, p.part): len(self._frame(p.text)) for p in pieces if not p.said}
            header = max(size.get((1, "header"), 0), size.get((3, "prompt"), 0))
            assistant = header + size.get((1, "footer"), 0)
            user = size.get((2, "header"), 0) + size.get((2, "footer"), 0)
            self._frame_sizes = {Role.USER: user, Role.ASSISTANT: assistant, Role.SYSTEM: user}
        return dict(self._frame_sizes)

    def annotation_tokens(self, annotation: TurnAnnotation | None) -> int:
        """Estimated tokens of an annotation, and of the newline between adjacent quotations."""
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
        messages = _messages_of_turns(ordered, annotations)
        pieces = self._pieces(messages, system, effort)
        live_labels = {
            chunk.start: self._chunk_labels(chunk, retokenized)
            for message in messages
            for chunk in message.chunks
        }
        writer = _Writer(self, live_labels, own_turns)
        for piece in pieces:
            if piece.part == "prompt":
                writer.write_frame(piece.text, reply.turn_id, "header")
            else:
                writer.write(piece, messages, has_system_message=bool(system.text))
        empty = np.zeros(0, np.int64)
        in_prompt = np.concatenate([empty, *(s.labels for s in writer.segments if s.kind == "chunk")])
        live = np.concatenate([empty, *live_labels.values()])
        is_dropped = ~np.isin(live, in_prompt) if len(in_prompt) < len(live) else np.zeros(len(live), bool)
        if reply.ids:
            labels = np.arange(reply.start, reply.start + len(reply.ids), dtype=np.int64)
            writer.segments.append(Segment("chunk", labels, np.array(reply.ids, np.int32), lendable=True))
        before_answered = sum(
            len(chunk)
            for message in messages
            for chunk in message.chunks
            if chunk.key.turn_id != reply.answers
        )
        chat_messages = _chat_messages(messages, system)
        if reply.ids:
            chat_messages = (*chat_messages, ChatMessage("assistant", reply.tokens.text))
        return WindowPrompt(
            segments=writer.segments,
            next_label=reply.start + len(reply.ids),
            read_from=writer.first_label_of(reply.answers),
            # `np.insert` wants indexes of the shorter array: each is lower by the number of dropped tokens before it.
            dropped_at=np.flatnonzero(is_dropped) - np.arange(int(is_dropped.sum())),
            dropped_before_answered=int(is_dropped[:before_answered].sum()),
            generation_prompt="".join(piece.text for piece in pieces if piece.part == "prompt"),
            prompt_index=_prompt_index_of_tokens(working_set.chunks, ordered),
            messages=chat_messages,
            recently_resurrected=frozenset(
                message.chat_message
                for message in messages
                if all(chunk.key in recently_resurrected for chunk in message.chunks)
            ),
            tools=parse_tool_declarations(system.tools),
            effort=effort,
            owner=owner,
        )

    def next_prompt_prefix(
        self,
        chunks: Sequence[Chunk],
        system: SystemPrompt,
        annotations: Mapping[int, TurnAnnotation],
        retokenized: frozenset[int] = frozenset(),
        *,
        message_annotation: TurnAnnotation | None = None,
        effort: str | None = None,
        typed_tokens: Tokens | None = None,
        said_at: Mapping[int, datetime] | None = None,
        own_turns: frozenset[int] = frozenset(),
        owner: str | None = None,
    ) -> Prompt:
        """The prefix that the next prompt will have for any message: these chunks, and the frame of the message.

        With `typed_tokens`, the whole prompt for a message that was typed and is not sent yet. `message_annotation`: the
        annotation of this message. For the other parameters see `prompt`.
        """
        messages = _messages_of_turns(in_reading_order(chunks, annotations, said_at or {}), annotations)
        live_labels = {
            chunk.start: self._chunk_labels(chunk, retokenized)
            for message in messages
            for chunk in message.chunks
        }
        if typed_tokens:
            start = max((chunk.stop for chunk in chunks), default=0)
            typed = Chunk(ChunkKey(_UNSENT_TURN, 0, Role.USER), start, typed_tokens)
            live_labels[start] = _descending_labels(UNSENT_LABELS, len(typed))
            messages.append(_message_of([(_UNSENT_TURN, (typed,), message_annotation)], Role.USER))
        else:
            before = message_annotation.before if message_annotation else ""
            parts = (_Literal(_UNSENT_TURN, "before", before),)
            messages.append(_PromptMessage(parts, ChatMessage("user", before + _PLACEHOLDER)))
        writer = _Writer(self, live_labels, own_turns)
        has_system_message = bool(system.text)
        last = len(messages) - 1 + int(has_system_message)
        for piece in self._pieces(messages, system, effort):
            if typed_tokens and piece.part == "prompt":
                writer.write_frame(piece.text, _UNSENT_TURN, "header")
            elif typed_tokens or not _ends_prefix(piece, last):
                writer.write(piece, messages, has_system_message=has_system_message)
            else:
                # The content of the placeholder message begins with the annotation, which the real one has, too.
                if piece.part == "content" and piece.start >= 0:
                    writer.write(piece, messages, has_system_message=has_system_message)
                break
        return Prompt(
            segments=writer.segments, next_label=0, read_from=writer.first_label_of(_UNSENT_TURN), owner=owner
        )

    def _pieces(
        self, messages: Sequence[_PromptMessage], system: SystemPrompt, effort: str | None
    ) -> Sequence[Piece]:
        tools = parse_tool_declarations(system.tools)
        return self._engine.chat(_chat_messages(messages, system), effort=effort, tools=tools).pieces

    def _chunk_labels(self, chunk: Chunk, retokenized: frozenset[int]) -> Positions:
        if chunk.start in retokenized:
            labels = retokenized_labels(chunk.start, chunk.span, len(chunk))
            if labels is not None:
                return labels
            return _descending_labels(self.assigned_labels(("chunk", chunk.start), len(chunk)), len(chunk))
        return np.arange(chunk.start, chunk.start + len(chunk), dtype=np.int64)

    def frame_ids(self, text: str) -> Ids:
        """Tokens of the template's own text, with control tokens."""
        return self._frame(text).ids

    def text_ids(self, text: str) -> Ids:
        """Tokens of text that a person or a model wrote. Control tokens in it are tokenized as ordinary text."""
        return self._plain(text.encode(errors="surrogateescape").decode(errors="replace")).ids


def _ends_prefix(piece: Piece, last: int) -> bool:
    """Whether a piece depends on the text of the message with index `last`, or comes after it."""
    return piece.part == "prompt" or (piece.message == last and piece.part != "header")


def _chat_messages(messages: Sequence[_PromptMessage], system: SystemPrompt) -> tuple[ChatMessage, ...]:
    system_messages = (ChatMessage("system", system.text),) if system.text else ()
    return (*system_messages, *(message.chat_message for message in messages))


def in_reading_order(
    chunks: Sequence[Chunk],
    annotations: Mapping[int, TurnAnnotation],
    said_at: Mapping[int, datetime],
    answered_turn: int | None = None,
) -> list[Chunk]:
    """Chunks in the order of the prompt: turns of this chat by position, quotations by date.

    Each quotation is placed before the first message of the user with a later date, and at the latest before the message
    with the id `answered_turn`. An import gives old text new positions: only its dates say when it was said.
    """
    quoted_turns, own_turns = list[list[Chunk]](), list[list[Chunk]]()
    for turn_id, group in groupby(chunks, key=lambda chunk: chunk.key.turn_id):
        is_quoted = turn_id in said_at and turn_id in annotations and annotations[turn_id].quoted
        (quoted_turns if is_quoted else own_turns).append(list(group))

    def when(turn: list[Chunk]) -> tuple[datetime, int]:
        return said_at[turn[0].key.turn_id], turn[0].start

    quoted_turns.sort(key=when, reverse=True)  # a stack: pop() returns the earliest
    ordered: list[Chunk] = []
    for turn in own_turns:
        key = turn[0].key
        while quoted_turns and key.role is Role.USER:
            is_later = key.turn_id in said_at and when(quoted_turns[-1]) < when(turn)
            if key.turn_id != answered_turn and not is_later:
                break
            ordered += quoted_turns.pop()
        ordered += turn
    return [*ordered, *(chunk for turn in reversed(quoted_turns) for chunk in turn)]


def _prompt_index_of_tokens(live: Sequence[Chunk], ordered: Sequence[Chunk]) -> npt.NDArray[np.intp]:
    """For each token of the live chunks its index in the order of the prompt; empty if both orders are the same."""
    if all(chunk is other for chunk, other in zip(live, ordered, strict=True)):
        return np.zeros(0, np.intp)
    starts, index = dict[ChunkKey, int](), 0
    for chunk in ordered:
        starts[chunk.key] = index
        index += len(chunk)
    indexes = np.concatenate([starts[chunk.key] + np.arange(len(chunk)) for chunk in live])
    changed = np.flatnonzero(indexes != np.arange(len(indexes)))
    return indexes[: int(changed[-1]) + 1].astype(np.intp)


def _messages_of_turns(
    chunks: Iterable[Chunk], annotations: Mapping[int, TurnAnnotation]
) -> list[_PromptMessage]:
    """The messages of the live turns. Adjacent quotations become one user message."""
    turns = [
        (turn_id, role, tuple(group))
        for (turn_id, role), group in groupby(chunks, key=lambda chunk: (chunk.key.turn_id, chunk.key.role))
    ]
    messages: list[_PromptMessage] = []
    for quoted, group in groupby(
        turns, key=lambda turn: turn[0] in annotations and annotations[turn[0]].quoted
    ):
        annotated = [(turn_id, role, chunks, annotations.get(turn_id)) for turn_id, role, chunks in group]
        if quoted:
            messages.append(
                _message_of([(id, chunks, annotation) for id, _, chunks, annotation in annotated], Role.USER)
            )
        else:
            messages += [
                _message_of([(id, chunks, annotation)], role) for id, role, chunks, annotation in annotated
            ]
    return messages


def _message_of(
    turns: Sequence[tuple[int, tuple[Chunk, ...], TurnAnnotation | None]], role: Role
) -> _PromptMessage:
    """One message from several turns. Bytes that are invalid UTF-8 on their own are kept: a chunk may end within a
    character."""
    parts: list[_Literal | Chunk] = []
    for index, (turn_id, chunks, annotation) in enumerate(turns):
        if index:
            parts.append(_Literal(turn_id, "between", "\n"))
        if annotation and annotation.before:
            parts.append(_Literal(turn_id, "before", annotation.before))
        parts += chunks
        if annotation and annotation.after:
            parts.append(_Literal(turn_id, "after", annotation.after))
    text = b"".join(part.raw if isinstance(part, _Literal) else part.tokens.raw for part in parts)
    # Only the window's own system prompt has the system role. A stored turn of that role can only come from an import.
    speaker: Literal["user", "assistant"] = "assistant" if role is Role.ASSISTANT else "user"
    return _PromptMessage(tuple(parts), ChatMessage(speaker, text.decode(errors="surrogateescape")))


@dataclass(frozen=True, slots=True)
class _Literal:
    """Text that the program adds around a turn: its annotation, or what separates two quotations."""

    turn_id: int
    slot: _Slot
    text: str

    @property
    def raw(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class _PromptMessage:
    """A message of the prompt and its parts: one turn, or several quoted ones."""

    parts: tuple[_Literal | Chunk, ...]
    chat_message: ChatMessage

    @property
    def chunks(self) -> list[Chunk]:
        return [part for part in self.parts if isinstance(part, Chunk)]

    @property
    def first_turn_id(self) -> int:
        return _turn_id_of(self.parts[0])

    @property
    def last_turn_id(self) -> int:
        return _turn_id_of(self.parts[-1])


def _turn_id_of(part: _Literal | Chunk) -> int:
    return part.turn_id if isinstance(part, _Literal) else part.key.turn_id


class _Writer:
    """Converts pieces of the template to segments with stable labels."""

    def __init__(
        self, prompt_builder: PromptBuilder, live_labels: Mapping[int, Positions], own_turns: frozenset[int]
    ) -> None:
        self.prompt_builder = prompt_builder
        self.live_labels = live_labels  # the labels of the live chunks, by their start position
        self.own_turns = own_turns  # ids of the turns that were said in this window
        self.segments: list[Segment] = []
        self.first_labels: list[tuple[int, int]] = []  # turn id and first label of each run of chunk tokens
        self._system_pieces = 0  # number of system pieces so far
        self._tokens_in_slot: dict[tuple[int, _Slot], int] = {}

    def first_label_of(self, turn_id: int | None) -> int | None:
        """The label of the first token of a turn; None if the prompt has none of its tokens."""
        return next((label for id, label in self.first_labels if id == turn_id), None)

    def write(self, piece: Piece, messages: Sequence[_PromptMessage], *, has_system_message: bool) -> None:
        """Write a piece of one of the messages, or of what comes before them."""
        index = piece.message - int(has_system_message)
        if piece.part == "begin" or index < 0:
            self._write_system(piece)
        elif piece.part == "content":
            self._write_content(messages[index], piece)
        elif piece.part == "footer":
            self.write_frame(piece.text, messages[index].last_turn_id, "footer")
        else:
            self.write_frame(piece.text, messages[index].first_turn_id, "header")

    def _write_system(self, piece: Piece) -> None:
        """Write a system piece. The template's own text has the same labels in every process."""
        first = SYSTEM_LABELS - self._system_pieces * LABELS_PER_SYSTEM_PIECE
        ids = (
            self.prompt_builder.text_ids(piece.text)
            if piece.said
            else self.prompt_builder.frame_ids(piece.text)
        )
        too_long = len(ids) > LABELS_PER_SYSTEM_PIECE or first - LABELS_PER_SYSTEM_PIECE < PROCESS_LABELS
        if piece.said or too_long:
            first = self.prompt_builder.assigned_labels(("system", self._system_pieces, piece.text), len(ids))
        self._system_pieces += 1
        self._append_segment("system", first, ids)

    def write_frame(self, text: str, turn_id: int, slot: _Slot) -> None:
        self._add_frame(self.prompt_builder.frame_ids(text), turn_id, slot)

    def _write_content(self, message: _PromptMessage, piece: Piece) -> None:
        """Write the parts of a message, as far as the template leaves them unchanged."""
        if piece.start < 0:
            self._add_frame(self.prompt_builder.text_ids(piece.text), message.first_turn_id, "rewritten")
            return
        text = message.chat_message.content
        first = len(text[: piece.start].encode(errors="surrogateescape"))
        last = first + len(piece.text.encode(errors="surrogateescape"))
        offset = 0  # of the part within the message, in bytes
        for part in message.parts:
            if isinstance(part, Chunk):
                self._add_chunk(part.key.turn_id, part, first - offset, last - offset)
                offset += len(part.tokens.raw)
            else:
                kept = part.raw[max(0, first - offset) : max(0, last - offset)]
                self._add_text(kept, part.turn_id, part.slot)
                offset += len(part.raw)

    def _add_chunk(self, turn_id: int, chunk: Chunk, first: int, last: int) -> None:
        """Add the tokens of bytes `first` to `last` of a chunk.

        If a bound is inside a token, the remaining bytes are tokenized again. A control token is added as ordinary text.
        """
        tokens: Tokens = chunk.tokens
        labels = self.live_labels[chunk.start]
        first = max(0, first)
        if last <= 0 or first >= len(tokens.raw):
            return
        is_control = self.prompt_builder.control_token_mask(tokens.ids.tobytes())
        if first <= 0 and last >= len(tokens.raw) and is_control is None:
            self._add_token_run(turn_id, labels, tokens.ids)
            return
        starts = np.concatenate([[0], tokens.ends[:-1]])
        is_whole = (starts >= first) & (tokens.ends <= last)
        if is_control is not None:
            is_whole &= ~is_control
        whole = np.flatnonzero(is_whole)
        written = first  # bytes up to here are written
        for run in np.split(whole, np.flatnonzero(np.diff(whole) != 1) + 1) if len(whole) else ():
            part = slice(int(run[0]), int(run[-1]) + 1)
            self._add_text(tokens.raw[written : int(starts[part.start])], turn_id, "left")
            self._add_token_run(turn_id, labels[part], tokens.ids[part])
            written = int(tokens.ends[part.stop - 1])
        self._add_text(tokens.raw[written:last], turn_id, "right")

    def _add_token_run(self, turn_id: int, labels: Positions, ids: Ids) -> None:
        self.first_labels.append((turn_id, int(labels[0])))
        self.segments.append(Segment("chunk", labels, ids, lendable=turn_id in self.own_turns))

    def _add_text(self, raw: bytes, turn_id: int, slot: _Slot) -> None:
        if raw:
            ids = self.prompt_builder.text_ids(raw.decode(errors="surrogateescape"))
            self._add_frame(ids, turn_id, slot)

    def _add_frame(self, ids: Ids, turn_id: int, slot: _Slot) -> None:
        # The count is part of the key, so that two texts in the same slot of a turn have different labels.
        count = self._tokens_in_slot.get((turn_id, slot), 0) + len(ids)
        self._tokens_in_slot[turn_id, slot] = count
        if turn_id == _UNSENT_TURN:
            first = self.prompt_builder.anonymous_labels(len(ids))
        else:
            first = self.prompt_builder.assigned_labels((slot, turn_id, count), len(ids))
        self._append_segment("frame", first, ids)

    def _append_segment(self, kind: Literal["system", "frame"], first: int, ids: Ids) -> None:
        if len(ids):
            self.segments.append(Segment(kind, _descending_labels(first, len(ids)), ids))


@lru_cache(64)
def parse_tool_declarations(tools: str) -> Sequence[Mapping[str, Any]]:
    """The tools in a JSON declaration."""
    return json.loads(tools) if tools else ()


def _shortened(name: str) -> str:
    encoded = name.encode()
    return (
        name
        if len(encoded) <= LONGEST_NAME
        else encoded[:LONGEST_NAME].decode(errors="ignore").rstrip() + "…"
    )


def _descending_labels(first: int, count: int) -> Positions:
    return np.arange(first, first - count, -1, dtype=np.int64)
