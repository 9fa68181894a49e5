"""Parse a reply while it streams: thoughts, answer, delimiters and tool calls."""

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

THOUGHT = "thought"  # tag of a chunk that the model thought before it answered
TOOL = "tool"  # tag of a chunk that holds the answer of a tool
UNFINISHED = "unfinished"  # tag of a reply that reached its longest length, or filled the model's context

ReplyKind = Literal["answer", "thought", "tool", "mark"]


@dataclass(slots=True)
class ReplyToken:
    """One token of a reply. A mark may begin or end within a token: `shown` are the bytes that are none."""

    id: int
    piece: bytes
    position: int
    kind: ReplyKind = "mark"
    shown: bytes = b""
    text: str = ""  # of `shown`: whole characters only, the token that ends one carries it
    by_tool: bool = False
    surprisal: float = nan
    likely: Sequence[tuple[bytes, float]] = ()


class ReplyParser:
    """Feed it tokens; it gives each back when it is known what it is, in their order.

    A token that may be the beginning of a mark is held back until that is sure. Time stamps at the beginning of the
    answer are marks too.
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
        """`calls` finds tool calls in the model's own format, which are not shown. `calls_end`: nor is what follows one.

        `stamps`: False shows time stamps at the beginning like other text.
        """
        self.tokens: list[ReplyToken] = []
        self.calls: list[NativeCall] = []  # those that were found, until somebody takes them
        self._start, self._marks, self._finder = start, marks, calls
        self.calls_end, self._called = calls_end, False
        self._splitter: ThoughtSplitter | None = None
        self._known = 0  # tokens of which it is known what they are
        self._runs: list[tuple[ReplyKind, bytes]] = []  # of the first token that is not known yet
        self._decoder = getincrementaldecoder("utf-8")("replace")
        # The beginning of the answer while it may be a time stamp; None once that is decided.
        self._opening: bytes | None = b"" if stamps else None

    @property
    def known(self) -> Sequence[ReplyToken]:
        return self.tokens[: self._known]

    @property
    def rest(self) -> str:
        """What the model has written after its last call."""
        return self._finder.rest if self._finder else ""

    def begin(self, opened: bool) -> None:
        """The model goes on after a generation prompt, which may have opened a thought."""
        self._splitter = ThoughtSplitter(self._marks, opened=opened) if self._marks else None

    def answered(self) -> None:
        """The calls so far have their answers: what follows is said."""
        self._called = False

    def feed(self, id: int, piece: bytes) -> list[ReplyToken]:
        self._add(id, piece)
        runs: Iterable[tuple[ReplyKind, bytes]] = [("answer", piece)]
        if self._splitter:
            runs = self._splitter.feed(piece)
        return self._settled(self._without_stamps(self._without_calls(runs)))

    def finish(self) -> list[ReplyToken]:
        """The model stops here: what was held back is what it looks like."""
        runs = self._without_calls(self._splitter.finish() if self._splitter else [])
        if self._finder:
            runs = [*runs, *self._after_calls(self._finder.finish())]
        return self._settled([*self._without_stamps(runs), *self._end_of_stamps()])

    def add(self, id: int, piece: bytes, kind: ReplyKind) -> list[ReplyToken]:
        """A token that the model did not write: of a tool's answer, or of the frame around it."""
        self._add(id, piece).by_tool = kind != "mark"
        return self._settled([*self._end_of_stamps(), (kind, piece)])

    def resume(self, id: int, piece: bytes, kind: ReplyKind) -> list[ReplyToken]:
        """A token of what the model wrote before it was cut. After a thought, it goes on thinking."""
        self._add(id, piece).by_tool = kind == "tool"
        self._opening = None
        if self._marks:
            self._splitter = ThoughtSplitter(self._marks, opened=kind == "thought")
            if kind == "answer":
                self._splitter.feed(b"a")  # nothing after the beginning of an answer is a thought
        return self._settled([(kind, piece)])

    def parts(self, tokenize: Callable[[str], Tokens]) -> list[ReplyPart]:
        """What is kept: stretches of one kind, without the marks. `tokenize` mends tokens that a mark has cut."""
        self.finish()
        parts: list[ReplyPart] = []
        for kind, group in groupby(self._mended(tokenize), key=lambda one: one[0]):
            run = [one[1:] for one in group]
            if kind == "mark":
                continue
            tokens = Tokens.of([id for id, _, _, _ in run], [piece for _, piece, _, _ in run])
            tag = "" if kind == "answer" else kind
            parts.append(ReplyPart(run[0][2], tokens, [source for *_, source in run], tag))
        return parts

    def tags(self, start: int, stop: int) -> tuple[str, ...]:
        """Of the chunk from one position to another."""
        inside = [token for token in self.tokens if start <= token.position < stop]
        thought = any(token.kind == THOUGHT for token in inside)
        tool = any(token.by_tool for token in inside)
        return (*([THOUGHT] if thought else []), *([TOOL] if tool else []))

    def _add(self, id: int, piece: bytes) -> ReplyToken:
        self.tokens.append(ReplyToken(id, piece, self._start + len(self.tokens)))
        return self.tokens[-1]

    def _without_calls(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[tuple[ReplyKind, bytes]]:
        if self._finder is None:
            return list(runs)
        found: list[tuple[ReplyKind, bytes]] = []
        for kind, raw in runs:
            if kind == "answer":
                found += self._after_calls(self._finder.feed(raw))
                calls = self._finder.take_calls()
                self._called |= bool(calls)
                self.calls += calls
            else:
                found += [*self._finder.finish(), (kind, raw)]
        return found

    def _after_calls(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> Iterable[tuple[ReplyKind, bytes]]:
        return [("mark", raw) for _, raw in runs] if self.calls_end and self._called else runs

    def _without_stamps(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[tuple[ReplyKind, bytes]]:
        """Hold back the beginning of the answer until it is known how many time stamps it begins with."""
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
        """What was held back: the stamps, and what the answer begins with."""
        opening, self._opening = self._opening, None
        if not opening:
            return []
        text = opening.decode(errors="ignore")
        size = len(text[: leading_stamps_length(text)].encode())
        return [("mark", opening[:size]), ("answer", opening[size:])]

    def _settled(self, runs: Iterable[tuple[ReplyKind, bytes]]) -> list[ReplyToken]:
        """Spread what the bytes are over the tokens that they come from."""
        first = self._known
        for kind, raw in runs:
            while raw:
                token = self.tokens[self._known]
                left = len(token.piece) - sum(len(part) for _, part in self._runs)
                self._runs.append((kind, raw[:left]))
                if len(raw) < left:
                    break
                raw = raw[left:]
                self._settle(token)
        while self._known < len(self.tokens) and not self.tokens[self._known].piece:
            self._settle(self.tokens[self._known])
        return self.tokens[first : self._known]

    def _settle(self, token: ReplyToken) -> None:
        kinds = {kind for kind, _ in self._runs}
        # A token without bytes is what the one before it is.
        same = self.tokens[self._known - 1].kind if self._known else "mark"
        token.kind = next(
            (kind for kind in ("answer", "thought", "tool", "mark") if kind in kinds),
            same,
        )
        token.shown = b"".join(raw for kind, raw in self._runs if kind == token.kind != "mark")
        token.text = self._decoder.decode(token.shown)
        self._runs = []
        self._known += 1

    def _mended(self, tokenize: Callable[[str], Tokens]) -> Iterable[tuple[ReplyKind, int, bytes, int, int]]:
        """Kind, id, piece, position and source of each token; one that a mark has cut is what is left of it.

        If that takes several tokens, they take the places of marks beside it.
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
                mended = tokenize(token.shown.decode())
            except UnicodeDecodeError:
                mended = Tokens.of([], [])
            count = len(mended)
            after = _marks_in(tokens[at + 1 : at + count])
            before = _marks_in(one[0] == "mark" for one in found[len(found) - count + 1 :])
            if count == 1:
                found.append((token.kind, int(mended.ids[0]), mended.pieces()[0], token.position, at))
                at += 1
            elif count and token.piece.startswith(token.shown) and after == count - 1:
                found += [
                    (token.kind, int(mended.ids[i]), mended.pieces()[i], token.position + i, at)
                    for i in range(count)
                ]
                at += count
            elif count and token.piece.endswith(token.shown) and before == count - 1:
                del found[len(found) - count + 1 :]
                first = token.position - count + 1
                found += [
                    (token.kind, int(mended.ids[i]), mended.pieces()[i], first + i, at) for i in range(count)
                ]
                at += 1
            else:
                found.append(whole)
                at += 1
        return found


def generation_prompt(engine: Engine, effort: str | None) -> str:
    """What the template writes before a reply."""
    return engine.chat([ChatMessage("user", "a")], effort=effort).pieces[-1].text


def stored_reply(start: int, tokens: Tokens, marks: ThoughtMarks | None, opening: str) -> ReplyParser:
    """A reply that was stored, told apart into thought and answer as it was when it was written after this prompt."""
    reader = ReplyParser(start, marks)
    if marks:
        reader.begin(marks.opened_by(opening))
    for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
        reader.feed(id, piece)
    return reader


def _marks_in(ones: Iterable[ReplyToken | bool]) -> int:
    return sum(one if isinstance(one, bool) else one.kind == "mark" for one in ones)
