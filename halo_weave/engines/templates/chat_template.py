"""Renders a conversation with a chat template and splits the result into message text and the frames around it."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any

from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt, Piece
from halo_weave.engines.templates.renderer import Rendered, TemplateRenderer, TemplateUnusable

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

STAND_IN = "…"  # placeholder for a pruned turn, if the template requires one
_CACHE_SIZE = 8  # conversations whose pieces are cached

_LONGEST_DIFFERENCE = 20_000  # limit in characters for the close comparison

# A marker is surrounded by white space that shows whether the template trims, or writes JSON.
_AROUND = "\n\t\n"
_MARK = re.compile(r"(\n\t\n|\t\n|\\n\\t\\n|)qzMark(\d+)([ct])krazq(\n\t\n|\n\t|\\n\\t\\n|)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _TemplateMessage:
    """A message for the template, made of several messages or of a placeholder."""

    role: str
    content: tuple[int | str, ...]
    source: int | None = None  # index of the message with thought and calls


@dataclass(frozen=True, slots=True)
class _Shape:
    """The form of input that a template requires, found by probing."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    parts: bool = False  # content must be a list of parts
    thought_field: str = "reasoning_content"
    calls_as_text: bool = False  # arguments must be JSON text, not a mapping
    silent_calls: bool = False  # an empty content beside calls must be null
    takes_system: bool = True


class ChatTemplate:
    """One template for many conversations. If it refuses a conversation, that is rearranged, and the prompt's notes say
    how."""

    def __init__(
        self, source: str, renderer: TemplateRenderer, specials: Mapping[str, str], now: datetime
    ) -> None:
        """Raises TemplateUnusable if the template cannot even render a question."""
        self.source, self.renderer, self.specials, self.now = source, renderer, dict(specials), now
        self.names = frozenset(renderer.names(source))
        self.shape = self._probe_shape()
        self._footers: dict[str, str] = {}
        self._headers: dict[str, str] = {}
        self._learn_borders()
        self._known: OrderedDict[Any, ChatPrompt] = OrderedDict()
        self._lock = threading.Lock()
        self._way = (0, 0, 0)  # how the last conversation was rearranged, if it was

    def write(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        answer_follows: bool = True,
    ) -> ChatPrompt:
        """Render the conversation with the generation prompt. Raises TemplateUnusable."""
        asked = dict(variables or {})
        key = (repr(messages), json.dumps([tools, asked], default=str), now, answer_follows)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            prompt = self._write(messages, tools, asked, now or self.now, answer_follows)
            self._known[key] = prompt
            if len(self._known) > _CACHE_SIZE:
                self._known.popitem(last=False)
            return prompt

    def render(
        self, conversations: Sequence[Sequence[ChatMessage]], *, now: datetime | None = None, **variables: Any
    ) -> list[Rendered]:
        """Render each conversation unchanged, for probing."""
        asked = [
            self._request(
                [_TemplateMessage(m.role, (i,), i) for i, m in enumerate(said)], said, variables, marked=False
            )
            for said in conversations
        ]
        return self.renderer.render(self.source, asked, now or self.now)

    # Probing

    def _probe_shape(self) -> _Shape:
        """Try the form that most templates take first, then those of older and unusual ones."""
        odd = {"tools": [], "functions": "[]", "datetime": self.now.strftime("%Y-%m-%d"), "builtin_tools": []}
        asks = {name: value for name, value in odd.items() if name in self.names}
        wishes: tuple[dict[str, Any], ...] = ({}, {"tools": []}, asks)
        shapes = [
            _Shape({"tools": None, "documents": None} | more, parts)
            for parts in (False, True)
            for more in wishes
        ]
        question = (ChatMessage("user", "question"),)
        slots = [_TemplateMessage("user", (0,), 0)]
        refusal = ""
        for shape in shapes:
            self.shape = shape
            request = self._request(slots, question, {}, marked=True)
            result = self.renderer.render(self.source, [request], self.now)[0]
            if not result.refusal and _MARK.search(result.text):
                return shape
            refusal = refusal or result.refusal
        raise TemplateUnusable(
            f"It refuses a plain question: {refusal}." if refusal else "It leaves out what is said."
        )

    def _learn_borders(self) -> None:
        """Find out how turns of each role begin and end: there, frames are cut, so that each turn has its own."""
        talk = [ChatMessage(role, "x") for role in ("user", "assistant", "user", "assistant")]
        slots = [_TemplateMessage(message.role, (i,), i) for i, message in enumerate(talk)]
        counts = (1, 2, 4)
        requests = [
            {**self._request(slots[:count], talk, {}, marked=True), "add_generation_prompt": False}
            for count in counts
        ]
        probe_messages = (ChatMessage("system", "x"), ChatMessage("user", "x"))
        requests.append(
            self._request(
                [_TemplateMessage("system", (0,), 0), _TemplateMessage("user", (1,), 1)],
                probe_messages,
                {},
                marked=True,
            )
        )
        *results, told_result = self.renderer.render(self.source, requests, self.now)
        takes_system = "qzmark0c" in told_result.text.lower()
        self.shape = replace(self.shape, takes_system=takes_system)
        ended = dict(zip(counts, results, strict=True))
        cuts = {count: _MARK.split(result.text)[::5] for count, result in ended.items()}
        for role, count in (("user", 1), ("assistant", 2)):
            if not ended[count].refusal and len(cuts[count]) == count + 1:
                self._footers[role] = cuts[count][-1]
        if not ended[4].refusal and len(cuts[4]) == 5:
            for before, role, text in (("user", "assistant", cuts[4][1]), ("assistant", "user", cuts[4][2])):
                if text.startswith(self._footers.get(before, "\0")):
                    self._headers[role] = text.removeprefix(self._footers[before])

    # One conversation

    def _write(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        now: datetime,
        answer_follows: bool,
    ) -> ChatPrompt:
        asked = {**variables, "add_generation_prompt": answer_follows}
        if tools:
            asked["tools"] = list(tools)
            if "functions" in self.shape.variables:
                asked["functions"] = json.dumps(list(tools))
        # A template with a place for a system prompt may leave it out sometimes.
        needed = {
            i
            for i, message in enumerate(messages)
            if message.content.strip()
            and not (i == 0 and message.role == "system" and self.shape.takes_system)
        }
        best: tuple[int, ChatPrompt] | None = None
        refusal = ""
        ways = [(0, 0, 0), self._way, *sorted(itertools.product(range(2), range(2), range(3)), key=sum)]
        tried: list[list[_TemplateMessage]] = []
        for way in dict.fromkeys(ways):
            slots, notes = _arrange(messages, way)
            if slots in tried:
                continue
            tried.append(slots)
            requests = [self._request(slots, messages, asked, marked=marked) for marked in (True, False)]
            marked, real = self.renderer.render(self.source, requests, now)
            if marked.refusal or real.refusal:
                refusal = refusal or marked.refusal or real.refusal
                continue
            pieces = list(self._cut(marked.text, messages))
            missing = needed - {piece.message for piece in pieces if piece.part == "content"}
            pieces = list(_align(pieces, real.text))
            if missing:
                notes = [*notes, f"The template leaves out {len(missing)} of the turns."]
            prompt = ChatPrompt(tuple(self._split(pieces, messages)), tuple(notes), requests[1]["messages"])
            if not missing:
                self._way = way
                return prompt
            if best is None or len(missing) < best[0]:
                best = len(missing), prompt
        if best is None:
            raise TemplateUnusable(f"It refuses the conversation: {refusal}.")
        return best[1]

    def _request(
        self,
        slots: Sequence[_TemplateMessage],
        messages: Sequence[ChatMessage],
        asked: Mapping[str, Any],
        *,
        marked: bool,
    ) -> dict[str, Any]:
        def words(part: int | str) -> str:
            if isinstance(part, str):
                return part
            text = messages[part].content
            return f"{_AROUND}qzMark{part}ckrazq{_AROUND}" if marked and text.strip() else text

        written = []
        for slot in slots:
            text = "".join(words(part) for part in slot.content)
            content = [{"type": "text", "text": text}] if self.shape.parts else text
            entry: dict[str, Any] = {"role": slot.role, "content": content}
            if slot.source is not None:
                self._add_fields(entry, messages, slot.source, marked=marked)
                if self.shape.silent_calls and not text and "tool_calls" in entry:
                    entry["content"] = None
            written.append(entry)
        standard = {**self.specials, **self.shape.variables, "add_generation_prompt": True}
        return {**standard, **asked, "messages": written}

    def _add_fields(
        self, entry: dict[str, Any], messages: Sequence[ChatMessage], source: int, *, marked: bool
    ) -> None:
        message = messages[source]
        if message.thought:
            mark = f"{_AROUND}qzMark{source}tkrazq{_AROUND}"
            entry[self.shape.thought_field] = mark if marked else message.thought
        if message.calls:
            entry["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)
                        if self.shape.calls_as_text
                        else dict(call.arguments),
                    },
                }
                for call in message.calls
            ]
        if message.answers:
            entry["tool_call_id"], entry["name"] = message.answers.id, message.answers.name

    def _cut(self, text: str, messages: Sequence[ChatMessage]) -> Iterator[Piece]:
        """Frames and message text, in the order in which the template writes them."""
        at = 0
        for match in _MARK.finditer(text):
            yield Piece(text[at : match.start()], "header", -1)
            at = match.end()
            left, number, part, right = match.groups()
            message, part = int(number), part.lower()
            whole = messages[message].content if part == "c" else messages[message].thought
            said, start = _trim(whole, left, right)
            yield Piece(said, "content" if part == "c" else "thought", message, start)
        yield Piece(text[at:], "header", -1)

    def _split(self, pieces: Sequence[Piece], messages: Sequence[ChatMessage]) -> Iterator[Piece]:
        """Assign each frame to the turn before it or after it, or cut it between the two."""
        end = len(messages)
        owners = [piece.message if piece.said else None for piece in pieces]
        for i, piece in enumerate(pieces):
            if piece.said:
                if piece.text:
                    yield piece
                continue
            before = next((owner for owner in reversed(owners[:i]) if owner is not None), None)
            after = next((owner for owner in owners[i + 1 :] if owner is not None), end)
            footer = 0
            if before is None and after != end:
                header = self._headers.get(messages[after].role)
                begin = piece.text.removesuffix(header) if header and piece.text.endswith(header) else ""
                if begin:
                    yield Piece(begin, "begin", after)
                    piece = Piece(piece.text[len(begin) :], "header", after)
            elif before is not None and before != after:
                footer = self._border(
                    piece.text, messages[before].role, "" if after == end else messages[after].role
                )
            if footer and before is not None:
                yield Piece(piece.text[:footer], "footer", before)
            if piece.text[footer:]:
                yield Piece(piece.text[footer:], "prompt" if after == end else "header", after)

    def _border(self, text: str, before: str, after: str) -> int:
        footer, header = self._footers.get(before), self._headers.get(after)
        if footer and text.startswith(footer):
            return len(footer)
        if header and text.endswith(header):
            return len(text) - len(header)
        return 0


def _trim(whole: str, left: str, right: str) -> tuple[str, int]:
    """The content as the template wrote it, by how it treated the white space around the marker; and where it begins."""
    if left == r"\n\t\n" or right == r"\n\t\n":
        written = json.dumps(whole, ensure_ascii=False)[1:-1]
        return written, 0 if written == whole else -1
    said = whole
    if left == "":
        said = said.lstrip()
    elif left == "\t\n":
        said = said.lstrip("\n")
    start = len(whole) - len(said)
    if right == "":
        said = said.rstrip()
    elif right == "\n\t":
        said = said.rstrip("\n")
    return said, start


def _align(pieces: Sequence[Piece], real: str) -> Iterator[Piece]:
    """Adjust the pieces so that they join to the text that the template has written.

    Some templates inspect messages: for `/think`, or for thoughts in an answer. Where the text differs, the next piece
    that is found again ends the difference. The difference counts as message text if part of a message is missing in
    it, so that nobody's text is ever read as control tokens.
    """
    twice: set[tuple[str, int]] = set()
    at = i = 0
    while i < len(pieces):
        piece = pieces[i]
        if real.startswith(piece.text, at) and (i + 1 < len(pieces) or at + len(piece.text) == len(real)):
            if piece.said and (piece.part, piece.message) in twice:
                piece = replace(piece, start=-1)
            twice.add((piece.part, piece.message))
            yield piece
            at, i = at + len(piece.text), i + 1
            continue
        stop, following = len(real), len(pieces)
        for j in range(i + 1, len(pieces)):
            text = pieces[j].text
            imitated = not pieces[j].said and _is_in(text, pieces[i:j])
            found = real.find(text, at) if len(text.strip()) > 1 and not imitated else -1
            if found >= 0:
                stop, following = found, j
                break
        yield from _difference(pieces[i:following], real[at:stop])
        at, i = stop, following
    if at < len(real):
        yield Piece(real[at:], "header", -1)


def _difference(missing: Sequence[Piece], text: str) -> Iterator[Piece]:
    """A stretch in which the template wrote something other than these pieces: split into frames and message text."""
    said = [piece for piece in missing if piece.said and piece.text]
    if not said:
        yield Piece(text, "header", -1)
        return
    if not missing[0].said:
        shared = len(common_prefix(missing[0].text, text))
        shared = max(text[:shared].rfind(end) + 1 for end in (">", "]", "\n"))
        yield Piece(text[:shared], "header", -1)
        text = text[shared:]
    last = missing[-1]
    found = None
    if not last.said and len(text) < _LONGEST_DIFFERENCE:
        match = SequenceMatcher(None, text, last.text, autojunk=False).find_longest_match()
        if match.size > 5 and not _is_in(text[match.a : match.a + match.size], said):
            found = match
    if found is None:
        yield _locate(said[0], text)
        return
    yield _locate(said[0], text[: found.a])
    end = found.a + found.size
    rest = text[end:].strip()
    quoted = bool(rest) and any(rest in piece.text for piece in said)
    yield Piece(text[found.a : end if quoted else None], "header", -1)
    if quoted:
        yield replace(said[-1], text=text[end:], start=-1)


def _is_in(text: str, pieces: Sequence[Piece]) -> bool:
    """Whether a message contains text that looks like a frame."""
    return any(piece.said and text.strip() in piece.text for piece in pieces)


def _locate(piece: Piece, text: str) -> Piece:
    """What a template left of a message: a part of it, such as an answer without its thoughts, or other text."""
    at = piece.text.rfind(text) if text and piece.start >= 0 else -1
    return replace(piece, text=text, start=piece.start + at if at >= 0 else -1)


def _arrange(
    messages: Sequence[ChatMessage], way: tuple[int, int, int]
) -> tuple[list[_TemplateMessage], list[str]]:
    """The conversation in the ways that a template may accept: with or without tools, system prompt, alternating roles."""
    tools, system, order = way
    slots = [_TemplateMessage(message.role, (i,), i) for i, message in enumerate(messages)]
    notes = []
    if tools and any(slot.role == "tool" for slot in slots):
        slots = [_TemplateMessage("user", slot.content) if slot.role == "tool" else slot for slot in slots]
        notes.append("The template has no place for results of tools, so the user says them.")
    if system and slots and slots[0].role == "system":
        first, *rest = slots
        if rest and rest[0].role == "user":
            slots = [replace(rest[0], content=(*first.content, "\n\n", *rest[0].content)), *rest[1:]]
        else:
            slots = [_TemplateMessage("user", first.content), *rest]
        slots = [_TemplateMessage("user", slot.content) if slot.role == "system" else slot for slot in slots]
        notes.append("The template has no place for a system prompt, so it opens the first user turn.")
    elif system and any(slot.role == "system" for slot in slots):
        slots = [_TemplateMessage("user", slot.content) if slot.role == "system" else slot for slot in slots]
        notes.append(
            "The template has no place for words of the system among the turns, so the user says them."
        )
    if order == 1:
        filled = _fill_roles(slots)
        if filled != slots:
            notes.append(
                f"The template wants user and assistant to take turns: neighbouring user turns are joined, and “{STAND_IN}” "
                "stands in for other turns that were pruned."
            )
        slots = filled
    if order == 2:
        merged = list(_merge(slots))
        if len(merged) < len(slots):
            notes.append(
                "The template wants user and assistant to take turns: neighbours of one role are joined."
            )
        slots = merged
    return slots, notes


def _fill_roles(slots: Sequence[_TemplateMessage]) -> list[_TemplateMessage]:
    """Consecutive user turns become one: an invented assistant turn between them would be imitated."""
    found: list[_TemplateMessage] = []
    before = "assistant"
    for slot in slots:
        if slot.role == "user" and before == "user":
            found[-1] = replace(found[-1], content=(*found[-1].content, "\n\n", *slot.content))
            continue
        if slot.role == "user" and before == "tool":
            found.append(_TemplateMessage("assistant", (STAND_IN,)))
        if slot.role == "assistant" and before == "assistant":
            found.append(_TemplateMessage("user", (STAND_IN,)))
        found.append(slot)
        if slot.role != "system":
            before = slot.role
    return found


def _merge(slots: Sequence[_TemplateMessage]) -> Iterator[_TemplateMessage]:
    for role, group in itertools.groupby(slots, key=lambda slot: slot.role):
        first, *more = group
        if role in ("user", "assistant", "system"):
            content = list(first.content)
            for slot in more:
                content += ["\n\n", *slot.content]
            yield replace(first, content=tuple(content))
        else:
            yield first
            yield from more


def common_prefix(a: str, b: str) -> str:
    """The common beginning of both texts."""
    size = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:size]
