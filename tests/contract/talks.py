"""Conversations for engines: turns with frames and labels, put together as weave does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from halo_weave.core.tokens import Role, Tokens
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
)
from halo_weave.engines.templates.messages import ChatMessage

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@dataclass
class Heard:
    """Everything one generation gave."""

    read: PrefillResult | None = None
    steps: list[Step] = field(default_factory=list)
    done: GenerationEnd | None = None

    @property
    def text(self) -> str:
        return b"".join(step.piece for step in self.steps).decode(errors="replace")


class Talk:
    """Turns by number; each is one chunk, live or asleep."""

    def __init__(
        self, engine: Engine, window: str, system: str = "You are helpful.", *, memory: bool = False
    ) -> None:
        """`memory`: its labels are positions of the memory, as in the windows of the product."""
        self.engine, self.window = engine, window
        self.system, self.memory = system, memory
        self.quoted: set[int] = set()  # turns that were said in another window
        self.turns: list[tuple[Role, int, Tokens]] = []
        self.asleep: set[int] = set()
        self.next = 0

    def add(self, role: Role, text: str | Tokens) -> int:
        tokens = self.engine.tokenize(text) if isinstance(text, str) else text
        self.turns.append((role, self.next, tokens))
        self.next += len(tokens)
        return len(self.turns) - 1

    def quote(self, other: Talk, number: int) -> int:
        """A turn of another window stands here, too."""
        self.turns.append(other.turns[number])
        self.quoted.add(len(self.turns) - 1)
        self.next = max(self.next, other.next)
        return len(self.turns) - 1

    def live(self) -> Iterable[tuple[int, Role, int, Tokens]]:
        return (
            (number, role, start, tokens)
            for number, (role, start, tokens) in enumerate(self.turns)
            if number not in self.asleep
        )

    @property
    def chunk_tokens(self) -> int:
        return sum(len(tokens) for _, _, _, tokens in self.live())

    def prompt(self, *, read_from: int | None = None) -> Prompt:
        live = list(self.live())
        told = [ChatMessage("system", self.system)] if self.system else []
        messages = [ChatMessage(role.value, tokens.text) for _, role, _, tokens in live]
        segments: list[Segment] = []
        system = 0
        for piece in self.engine.chat([*told, *messages]).pieces:
            tokens = self.engine.tokenize(piece.text, special=not piece.said)
            turn = piece.message - len(told)
            if piece.part == "begin" or turn < 0:
                if told:  # without a system prompt not even the token that begins a text is there
                    segments.append(Segment("system", down(-1 - system, len(tokens)), tokens.ids))
                    system += len(tokens)
            elif piece.said:
                which, _, start, said = live[turn]
                labels = np.arange(start, start + len(said), dtype=np.int64)
                lendable = self.memory and which not in self.quoted
                segments.append(Segment("chunk", labels, said.ids, lendable))
            else:
                number = live[turn][0] if turn < len(live) else len(self.turns)
                first = -1050 if piece.part == "footer" else -1000
                segments.append(Segment("frame", down(first - 100 * number, len(tokens)), tokens.ids))
        return Prompt(
            segments, self.next, read_from, messages=(*told, *messages), owner="ann" if self.memory else None
        )

    def hear(
        self,
        sampling: Sampling = GREEDY,
        capture: Capture | None = None,
        *,
        read_from: int | None = None,
        **options: object,
    ) -> Heard:
        heard = Heard()
        prompt = self.prompt(read_from=read_from)
        for event in self.engine.generate(self.window, prompt, sampling, capture, **options):  # type: ignore[arg-type]
            match event:
                case PrefillResult():
                    heard.read = event
                case Step():
                    heard.steps.append(event)
                case GenerationEnd():
                    heard.done = event
        return heard

    def answer(self, sampling: Sampling = GREEDY, capture: Capture | None = None, **options: object) -> Heard:
        """Hear the reply and keep it as a turn."""
        heard = self.hear(sampling, capture, **options)
        if heard.steps:
            ids = np.array([step.id for step in heard.steps], np.int32)
            self.add(Role.ASSISTANT, Tokens.of(ids, [step.piece for step in heard.steps]))
        return heard


def down(first: int, count: int) -> np.ndarray:
    return np.arange(first, first - count, -1, dtype=np.int64)


def size(prompt: Prompt) -> int:
    return sum(len(segment.ids) for segment in prompt.segments)
