"""Parse a reply while it streams: separate thought, answer, tool output and delimiters, and find tool calls.

A mark is text that is never shown: a delimiter of the chat template (such as `<think>`), a tool call, or a time stamp that
the model copied from the prompt to the beginning of its answer.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import nan
from typing import Literal

from halo_weave.core.tokens import Tokens
from halo_weave.core.turn_text import leading_stamps_length, may_be_stamp
from halo_weave.core.working_set import ReplyPart
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.messages import ChatMessage, NativeCall
from halo_weave.engines.templates.thoughts import ThoughtMarks, ThoughtSplitter
from halo_weave.engines.templates.tool_calls import ToolCallSplitter

THOUGHT = "thought"  # tag of a chunk of thought
TOOL = "tool"  # tag of a chunk with the output of a tool
UNFINISHED = (
    "unfinished"  # tag of a reply that stopped at max_new_tokens or at the end of the model's context
)

ReplyKind = Literal["answer", "thought", "tool", "mark"]


@dataclass(slots=True)
class ReplyToken:
    """One token of a reply. A mark may begin or end inside a token; `shown` are the bytes that belong to no mark."""

    id: int
    piece: bytes
    position: int
    kind: ReplyKind = "mark"
    shown: bytes = b""
    text: str = ""  # `shown` decoded; a character that spans several tokens is in the last of them
    by_tool: bool = False  # the program inserted it: tool output
    surprisal: float = nan
    likely: Sequence[
        tuple[bytes, float]
    ] = ()  # the likeliest tokens at this place, with their log probabilities


class ReplyParser:
    """Takes the tokens of a reply one by one and returns them, in order, once their kind is known.

    A token that may begin a mark is held back until the following tokens decide it.
    """

    def __init__(
        self,
        start: int,
        marks: ThoughtMarks | None = None,
        *,
        calls: ToolCallSplitter | None = None,
        calls_end: bool = False,
        stamps: bool = True,
    ) -> None:
        """`start`: the position of the first token.

        `calls` finds tool calls in the format of the chat template; they become marks. With `calls_end`, the text after a
        tool call becomes marks too. Time stamps at the beginning of the answer become marks only with `stamps`.
        """
        self.tokens: list[ReplyToken] = []
        self.calls: list[NativeCall] = []  # the calls found so far; the caller removes those that it runs
        self._start, self._marks, self._call_splitter = start, marks, calls
        self.calls_end, self._called = calls_end, False
        self._splitter: ThoughtSplitter | None = None
        self._known = 0  # how many tokens have a known kind
        self._runs: list[
            tuple[ReplyKind, bytes]
        ] = []  # the parts of the first token of unknown kind, as far as they are known
        self._decoder = getincrementaldecoder("utf-8")("replace")
        # The beginning of the answer while it may still be a time stamp; None once that is decided.
        self._opening: bytes | None = b"" if stamps else None

    @property
    def known(self) -> Sequence[ReplyToken]:
        """The tokens whose kind is known."""
        return self.tokens[: self._known]

    @property
    def rest(self) -> str:
        """The text that the model has written after its last tool call."""
        return self._call_splitter.rest if self._call_splitter else ""

    def begin(self, opened: bool) -> None:
        """Call this before the model generates. `opened`: the generation prompt ends inside a thought."""
        self._splitter = ThoughtSplitter(self._marks, opened=opened) if self._marks else None

    def end_tool_calls(self) -> None:
        """All calls so far have their results: the text that follows is shown again."""
        self._called = False

    def feed(self, id: int, piece: bytes) -> list[ReplyToken]:
        """Add a token that the model has generated. Returns the tokens whose kind is known now."""
        self._add(id, piece)
        runs: Iterable[tuple[ReplyKind, bytes]] = [("answer", piece)]
        if self._splitter:
            runs = self._splitter.feed(piece)
        return self._assign_kinds(self._without_stamps(self._without_calls(runs)))

    def finish(self) -> list[ReplyToken]:
        """The model has stopped: return the tokens that were held back. An incomplete delimiter is ordinary text."""
        runs = self._without_calls(self._splitter.finish() if self._splitter else [])
        if self._call_splitter:
            runs = [*runs, *self._after_calls(self._call_splitter.finish())]
        return self._assign_kinds([*self._without_stamps(runs), *self._end_of_stamps()])

    def add_inserted_token(self, id: int, piece: bytes, kind: ReplyKind) -> list[ReplyToken]:
        """Add a token that the program inserts: of a tool's output, or of the template's text around it."""
        self._add(id, piece).by_tool = kind != "mark"
        return self._assign_kinds([*self._end_of_stamps(), (kind, piece)])

    def add_earlier_token(self, id: int, piece: bytes, kind: ReplyKind) -> list[ReplyToken]:
        """Add a token of the earlier reply that this one continues. After a thought token, the thought is still open."""
        self._add(id, piece).by_tool = kind == "tool"
        self._opening = None
        if self._marks:
            self._splitter = ThoughtSplitter(self._marks, opened=kind == "thought")
            if kind == "answer":
                self._splitter.feed(b"a")  # the answer has begun: no thought can follow
        return self._assign_kinds([(kind, piece)])

    def parts(self, tokenize: Callable[[str], Tokens]) -> list[ReplyPart]:
        """The reply as it is stored: runs of tokens of one kind, without the marks.

        `tokenize` makes new tokens for the rest of a token that is partly a mark.
        """
        self.finish()
        parts: list[ReplyPart] = []
        for kind, group in groupby(self._without_partial_tokens(tokenize), key=lambda one: one[0]):
            run = [one[1:] for one in group]
            if kind == "mark":
                continue
            tokens = Tokens.of([id for id, _, _, _ in run], [piece for _, piece, _, _ in run])
            tag = "" if kind == "answer" else kind
            parts.append(ReplyPart(run[0][2], tokens, [source for *_, source in run], tag))
        return parts

    def tags(self, start: int, stop: int) -> tuple[str, ...]:
        """The tags of the chunk at these positions."""
        inside = [token for token in self.tokens if start <= token.position < stop]
        thought = any(token.kind == THOUGHT for token in inside)
        tool = any(token.by_tool for token in inside)
        return (*([THOUGHT] if thought else []), *([TOOL] if tool else []))

    def _add(self, id: int, piece: bytes) -> ReplyToken:
        self.tokens.append(ReplyToken(id, piece, self._start + len(self.tokens)))
        return self.tokens[-1]

    def _without_calls(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[tuple[ReplyKind, bytes]]:
        if self._call_splitter is None:
            return list(runs)
        found: list[tuple[ReplyKind, bytes]] = []
        for kind, raw in runs:
            if kind == "answer":
                found += self._after_calls(self._call_splitter.feed(raw))
                calls = self._call_splitter.take_calls()
                self._called |= bool(calls)
                self.calls += calls
            else:
                found += [*self._call_splitter.finish(), (kind, raw)]
        return found

    def _after_calls(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> Iterable[tuple[ReplyKind, bytes]]:
        return [("mark", raw) for _, raw in runs] if self.calls_end and self._called else runs

    def _without_stamps(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[tuple[ReplyKind, bytes]]:
        """Hold back the beginning of the answer until it is clear whether it is a time stamp."""
        found: list[tuple[ReplyKind, bytes]] = []
        for kind, raw in runs:
            if kind != "answer" or self._opening is None:
                found += [*(self._end_of_stamps() if self._opening else ()), (kind, raw)]
                continue
            self._opening += raw
            if not may_be_stamp(self._opening.decode(errors="ignore")):
                found += self._end_of_stamps()
        return found

    def _end_of_stamps(self) -> list[tuple[ReplyKind, bytes]]:
        """Release the beginning of the answer: its time stamps as marks, the rest as answer."""
        opening, self._opening = self._opening, None
        if not opening:
            return []
        text = opening.decode(errors="ignore")
        size = len(text[: leading_stamps_length(text)].encode())
        return [("mark", opening[:size]), ("answer", opening[size:])]

    def _assign_kinds(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[ReplyToken]:
        """Assign the kinds of these bytes to the tokens that hold them. Returns the tokens whose kind is known now."""
        first = self._known
        for kind, raw in runs:
            while raw:
                token = self.tokens[self._known]
                left = len(token.piece) - sum(len(part) for _, part in self._runs)
                self._runs.append((kind, raw[:left]))
                if len(raw) < left:
                    break
                raw = raw[left:]
                self._finish_token(token)
        while self._known < len(self.tokens) and not self.tokens[self._known].piece:
            self._finish_token(self.tokens[self._known])
        return self.tokens[first : self._known]

    def _finish_token(self, token: ReplyToken) -> None:
        """Every byte of the token has a kind: set the kind, bytes and text of the token."""
        kinds = {kind for kind, _ in self._runs}
        # A token without bytes has the kind of the token before it.
        same = self.tokens[self._known - 1].kind if self._known else "mark"
        token.kind = next(
            (kind for kind in ("answer", "thought", "tool", "mark") if kind in kinds),
            same,
        )
        token.shown = b"".join(raw for kind, raw in self._runs if kind == token.kind != "mark")
        token.text = self._decoder.decode(token.shown)
        self._runs = []
        self._known += 1

    def _without_partial_tokens(
        self, tokenize: Callable[[str], Tokens]
    ) -> Iterable[tuple[ReplyKind, int, bytes, int, int]]:
        """Kind, id, piece, position and index of each token.

        A token that is partly a mark is replaced by tokens of its other bytes. If these are several tokens, they take the
        positions of the marks beside it; if there are not enough marks, the token stays whole.
        """
        found: list[tuple[ReplyKind, int, bytes, int, int]] = []
        tokens = list(self.tokens)
        at = 0
        while at < len(tokens):
            token = tokens[at]
            whole = (token.kind, token.id, token.piece, token.position, at)
            if token.kind == "mark" or token.shown == token.piece:
                found.append(whole)
                at += 1
                continue
            try:
                replaced = tokenize(token.shown.decode())
            except UnicodeDecodeError:
                replaced = Tokens.of([], [])
            count = len(replaced)
            after = _marks_in(tokens[at + 1 : at + count])
            before = _marks_in(one[0] == "mark" for one in found[len(found) - count + 1 :])
            if count == 1:
                found.append((token.kind, int(replaced.ids[0]), replaced.pieces()[0], token.position, at))
                at += 1
            elif count and token.piece.startswith(token.shown) and after == count - 1:
                found += [
                    (token.kind, int(replaced.ids[i]), replaced.pieces()[i], token.position + i, at)
                    for i in range(count)
                ]
                at += count
            elif count and token.piece.endswith(token.shown) and before == count - 1:
                del found[len(found) - count + 1 :]
                first = token.position - count + 1
                found += [
                    (token.kind, int(replaced.ids[i]), replaced.pieces()[i], first + i, at)
                    for i in range(count)
                ]
                at += 1
            else:
                found.append(whole)
                at += 1
        return found


def generation_prompt(engine: Engine, effort: str | None) -> str:
    """The text that the template writes between the user's message and the reply."""
    return engine.chat([ChatMessage("user", "a")], effort=effort).pieces[-1].text


def stored_reply(start: int, tokens: Tokens, marks: ThoughtMarks | None, opening: str) -> ReplyParser:
    """A stored reply, parsed again. `opening`: the generation prompt, which may end inside a thought."""
    parser = ReplyParser(start, marks)
    if marks:
        parser.begin(marks.opened_by(opening))
    for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
        parser.feed(id, piece)
    return parser


def _marks_in(ones: Iterable[ReplyToken | bool]) -> int:
    return sum(one if isinstance(one, bool) else one.kind == "mark" for one in ones)
