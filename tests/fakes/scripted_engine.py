"""A deterministic engine without a model, for tests and benchmarks: replies and attention are given by the test."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.core.tokens import Ids, Positions, Role, Tokens
from halo_weave.engines.base import (
    PROCESS_LABELS,
    Capabilities,
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    IdleReadResult,
    ModelInfo,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Step,
    StopReason,
    matching_windows,
)
from halo_weave.engines.flat_prompt import CHUNK, FlatPrompt, Kinds, attention_row
from halo_weave.engines.llama.cache_files import overlaps_any
from halo_weave.engines.llama.cache_plan import CachedTokens, Restore, plan_cache
from halo_weave.engines.stop_strings import StopStrings
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt, Piece
from halo_weave.engines.templates.model_template import ModelTemplate, TemplateFacts
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.errors import BadInput, EngineError

WORD = re.compile(r"\s?\w+|\s+|[^\w\s]+", re.UNICODE)
CONTROLS = ("<|begin|>", "<|turn|>", "<|end|>")
CONTROL = re.compile("|".join(map(re.escape, CONTROLS)))
CONTROL_IDS = 4 << 24
VOCABULARY = 5 << 24
END = CONTROL_IDS + CONTROLS.index("<|end|>")
LAYERS, HEADS = 2, 3
SPECIALS = {"bos_token": CONTROLS[0], "eos_token": CONTROLS[2]}
# What its own frames are, as a template.
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
KNOWN_SURPRISAL, NEW_SURPRISAL = (
    0.5,
    5.0,
)  # surprisal of a token that was there before, and of one that was not


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """What a token sees when it looks back: everything live, in time order."""

    labels: npt.NDArray[np.int64]  # (n,)
    ids: Ids  # (n,)
    kinds: Kinds  # (n,): 0 chunk, 1 frame, 2 system
    text: str  # of it all


def _default_attention(at: Visible) -> Floats:
    """By default: mostly at the very first token, and at earlier occurrences of what was said last."""
    weights = np.ones(len(at.ids), dtype=np.float32)
    recent = set(at.ids[-4:].tolist())
    weights[[id in recent for id in at.ids.tolist()]] += 20.0
    weights[0] += weights.sum()
    return weights


def _default_reply(prompt: str) -> str:
    """By default the engine repeats what it was asked."""
    said = prompt.rsplit(f"<|turn|>{Role.USER}\n", 1)[-1].split("<|end|>", 1)[0]
    return f"You said: {said.strip()}"


@dataclass(slots=True, eq=False)
class _WindowCache:
    live: CachedTokens = field(default_factory=lambda: CachedTokens(*np.empty((3, 0), np.int32)))
    exact_prefix: int = 0  # as KvCache.exact_prefix
    asleep: list[CachedTokens] = field(default_factory=list)
    stale: int | None = None  # the label from which on deleted text was in sight
    prefetch_result: Capture | None = None  # what was read of words that were not sent yet
    speaking: bool = False  # nothing is read ahead while a reply grows


class ScriptedEngine(Engine):
    """`replies` are said one after the other, then `answer` is asked."""

    def __init__(
        self,
        replies: Iterable[str] = (),
        *,
        answer: Callable[[str], str] = _default_reply,
        look: Callable[[Visible], Floats] = _default_attention,
        pause: Callable[[], None] = lambda: None,
        context: int = 8192,
        abilities: Capabilities | None = None,
        asleep_tokens: int = 1 << 16,
        template: str | None = None,
        parameters: int = 0,
    ) -> None:
        """`pause` is called before each token; it may block or raise. `template`: a chat template in place of its own."""
        self.replies = list(replies)
        self.answer, self.look, self.pause = answer, look, pause
        self.asleep_tokens = asleep_tokens
        self.windows: dict[str, _WindowCache] = {}
        self.saved: list[tuple[str, str, CachedTokens]] = []  # read in idle time: window, owner, tokens
        self.lock = threading.RLock()
        self.closed = False
        self._info = ModelInfo(
            name="scripted",
            architecture="none",
            layers=LAYERS,
            heads=HEADS,
            kv_heads=HEADS,
            vocabulary=VOCABULARY,
            trained_context=context,
            context=context,
            special={"bos": CONTROL_IDS, "eos": END},
            tokenizer="scripted",
            template="model",
            abilities=abilities or Capabilities(),
            parameters=parameters,
            chat_template=template or TEMPLATE,
            template_words=SPECIALS,
        )
        self._renderer = TemplateRenderer()
        self._template: ModelTemplate | None = None
        if template is not None:
            self.use_template(template)

    def use_template(self, template: str) -> None:
        """Write prompts with this chat template."""
        now = datetime(2026, 1, 1)
        self._template = ModelTemplate(template, self._renderer, specials=SPECIALS, now=now)

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        if not special:
            return _split_pieces(text)
        tokens, at = Tokens.of([], []), 0
        for match in CONTROL.finditer(text):
            control = Tokens.of([CONTROL_IDS + CONTROLS.index(match.group())], [match.group().encode()])
            tokens = tokens + _split_pieces(text[at : match.start()]) + control
            at = match.end()
        return tokens + _split_pieces(text[at:])

    def pieces(self, ids: Ids) -> Tokens:
        return Tokens.of(ids, [_piece(id) for id in ids.tolist()])

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return (ids < 1 << 24) | (ids >= CONTROL_IDS)

    @property
    def facts(self) -> TemplateFacts:
        return self._template.facts if self._template else TemplateFacts()

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        if self._template:
            return self._template.write(messages, thinking=effort or "auto", tools=tools)
        pieces = [Piece("<|begin|>", "begin", 0)]
        for i, message in enumerate(messages):
            pieces += [
                Piece(f"<|turn|>{message.role}\n", "header", i),
                Piece(message.content, "content", i),
                Piece("<|end|>\n", "footer", i),
            ]
        return ChatPrompt((*pieces, Piece(f"<|turn|>{Role.ASSISTANT}\n", "prompt", len(messages))))

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        began = time.perf_counter()
        sampling.check()
        flat = FlatPrompt.of(prompt, vocabulary=VOCABULARY, context=self.info.context)
        if capture and not self.info.abilities.attention:
            capture = replace(capture, reply=False, reading=False)
        if capture:
            capture.chosen(LAYERS, HEADS)
        with self.lock:
            if self.closed:
                raise EngineError("The engine is closed.")
            kept = self.windows.setdefault(window, _WindowCache())
            read = self._read(kept, flat, prompt, sampling, capture, mode)
            kept.speaking = True
        try:
            yield PrefillPlanned(read.reused, read.restored, read.computed)
            yield replace(read, seconds=time.perf_counter() - began)
            yield from self._reply(kept, flat, prompt.next_label, sampling, capture, stopped, began)
        finally:
            kept.speaking = False

    def prefetch(
        self,
        window: str,
        prompt: Prompt,
        *,
        room: int,
        mode: Literal["splice", "exact"] = "splice",
        max_computed: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        """Prefetch at once. The scripted engine has no cells on disk, so `max_computed` makes no difference."""
        flat = FlatPrompt.of(prompt, vocabulary=VOCABULARY, context=self.info.context)
        with self.lock:
            if self.info.abilities.prefetch and not self.closed:
                kept = self.windows.setdefault(window, _WindowCache())
                if not kept.speaking:
                    self._read(kept, flat, prompt, Sampling(max_new_tokens=room), capture, mode)
                    kept.prefetch_result = capture

    def positions_on_disk(self, owner: str) -> Positions | None:
        if not self.info.abilities.cuts:
            return None
        held = [tokens.labels for _, whose, tokens in self.saved if whose == owner]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *held]))

    def read_idle(self, window: str, prompt: Prompt, *, stopped: Callable[[], bool]) -> IdleReadResult:
        flat = FlatPrompt.of(prompt, vocabulary=VOCABULARY, context=self.info.context)
        with self.lock:
            if self.closed or stopped() or any(kept.speaking for kept in self.windows.values()):
                return "given up"
            lent = np.flatnonzero(flat.lendable)
            whole = CachedTokens(flat.labels, flat.ids, np.arange(len(flat), dtype=np.int32))
            self.saved.append((window, prompt.owner or "", whole.part(lent)))
        return "saved"

    def forget(self, window: str) -> None:
        with self.lock:
            gone = matching_windows(window, [name for name, *_ in self.saved])
            self.saved = [one for one in self.saved if one[0] not in gone]
            for one in matching_windows(window, list(self.windows)):
                self.windows.pop(one)

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        first = min((first for first, _ in spans), default=0)
        with self.lock:
            self.saved = [
                one for one in self.saved if one[0] not in windows and not overlaps_any(one[2].labels, spans)
            ]
            for name, kept in self.windows.items():
                kept.asleep = [run for run in kept.asleep if not overlaps_any(run.labels, spans)]
                if name in windows or overlaps_any(kept.live.labels, spans):
                    kept.asleep = [run for run in kept.asleep if all_before(run.labels, first)]
                    kept.stale = first if kept.stale is None else min(kept.stale, first)

    def close(self) -> None:
        with self.lock:
            self.windows.clear()
            self.closed = True
        self._renderer.close()

    def _read(
        self,
        kept: _WindowCache,
        flat: FlatPrompt,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        mode: Literal["splice", "exact"],
    ) -> PrefillResult:
        mode = mode if self.info.abilities.cuts else "exact"
        reading = capture is not None and (capture.reading or capture.reading_surprisal)
        start = len(flat)
        if reading and prompt.read_from is not None:
            start = flat.index_of(prompt.read_from)
        if kept.stale is not None:
            sound = count_before(kept.live.labels, kept.stale)
            kept.live, kept.exact_prefix, kept.stale = (
                kept.live.part(slice(sound)),
                min(kept.exact_prefix, sound),
                None,
            )
        most = min(len(kept.live), len(flat))
        same = int(np.argmin(np.append(kept.live.ids[:most] == flat.ids[:most], False)))
        known, kept.prefetch_result = same - 1 if kept.prefetch_result == capture else 0, None
        lent = [replace(tokens, borrowed=True) for _, owner, tokens in self.saved if owner == prompt.owner]
        plan = plan_cache(
            kept.live,
            [*kept.asleep, *lent] if mode == "splice" else (),
            flat.labels,
            flat.ids,
            limit=self.info.trained_context,
            reserve=sampling.max_new_tokens,
            compute_from=max(start, known),
            mode=mode,
            exact_prefix=kept.exact_prefix,
        )
        if mode == "splice" and len(plan.removed):
            kept.asleep.append(kept.live.part(plan.removed))
            while sum(map(len, kept.asleep)) > self.asleep_tokens:
                del kept.asleep[0]
        only_tail = len(plan.steps) == 1 and not isinstance(plan.steps[0], Restore)
        kept.exact_prefix = len(flat) if only_tail and plan.reused <= kept.exact_prefix else 0
        kept.live = CachedTokens(flat.labels, flat.ids, plan.places)
        kept.asleep = [held for held in kept.asleep if not np.isin(held.labels, flat.labels).all()]
        said = [i for i in range(start, len(flat)) if flat.kinds[i] == CHUNK]
        rows = [self._row(flat, i + 1, capture) for i in said] if capture and capture.reading else []
        surprisal = None
        if capture and capture.reading_surprisal and self.info.abilities.surprisal:
            surprisal = np.array([_surprisal(flat.ids[:i], int(flat.ids[i])) for i in said], dtype=np.float32)
        return PrefillResult(
            reused=plan.reused,
            restored=plan.restored,
            computed=plan.computed,
            shifted=plan.compacted,
            rebuilt="",
            seconds=0.0,
            rows=tuple(row for row in rows if row is not None),
            surprisal=surprisal,
        )

    def _row(self, flat: FlatPrompt, count: int, capture: Capture) -> AttentionRow | None:
        """What the token after the first `count` looks at; the same for all layers and heads."""
        seen = Visible(
            flat.labels[:count],
            flat.ids[:count],
            flat.kinds[:count],
            self.pieces(flat.ids[:count]).text,
        )
        weights = self.look(seen)
        row = (weights / weights.sum(dtype=np.float64)).astype(np.float32)
        raw = np.broadcast_to(row, (len(capture.chosen_raw(LAYERS, HEADS)), count)) if capture.raw else None
        return attention_row(row, np.arange(count, dtype=np.int32), seen.kinds, raw)

    def _reply(
        self,
        kept: _WindowCache,
        flat: FlatPrompt,
        label: int,
        sampling: Sampling,
        capture: Capture | None,
        stopped: Callable[[], bool],
        began: float,
    ) -> Iterator[GenerationEvent]:
        with self.lock:
            text = self.replies.pop(0) if self.replies else self.answer(self.pieces(flat.ids).text)
        ids = self.tokenize(text).ids.tolist()
        stops = StopStrings(sampling.stop)
        given = 0
        reason: StopReason = "eos"
        last: AttentionRow | None = None
        for made, id in enumerate(ids, start=1):
            self.pause()
            if stopped():
                reason = "abort"
                break
            row = self._row(flat, len(flat), capture) if capture and capture.reply else None
            surprisal = _surprisal(flat.ids, id) if self.info.abilities.surprisal else math.nan
            step = Step(id, label, _piece(id), surprisal, row)
            out, met = stops.feed(step)
            given += len(out)
            yield from out
            if met:
                reason = "stop"
            elif made == sampling.max_new_tokens:
                reason = "length"
            elif len(flat) + 1 > self.info.context:
                reason = "context"
            else:
                flat = self._append(kept, flat, label, id)
                label += 1
                continue
            break
        else:
            self.pause()
            last = self._row(flat, len(flat), capture) if capture and capture.reply else None
        rest = stops.rest()
        yield from rest
        yield GenerationEnd(reason, given + len(rest), time.perf_counter() - began, last)

    def _append(self, kept: _WindowCache, flat: FlatPrompt, label: int, id: int) -> FlatPrompt:
        flat = FlatPrompt(
            np.append(flat.labels, np.int64(label)),
            np.append(flat.ids, np.int32(id)),
            np.append(flat.kinds, np.uint8(CHUNK)),
            np.append(flat.lendable, np.False_),
        )
        place = np.int32(kept.live.places[-1] + 1)
        with self.lock:
            if kept.exact_prefix == len(kept.live):
                kept.exact_prefix += 1
            kept.live = CachedTokens(flat.labels, flat.ids, np.append(kept.live.places, place))
        return flat


def all_before(labels: Positions, first: int) -> bool:
    """Whether tokens that follow each other surely stand before label `first`. What has no position says nothing of that."""
    known = labels[labels > PROCESS_LABELS]
    return bool(len(known)) and int(known.max()) < first


def count_before(labels: Positions, first: int) -> int:
    """How many live tokens surely stand before label `first`: up to the last one that was said before, or the system prompt."""
    earlier = np.flatnonzero((labels >= 0) & (labels < first))
    if not len(earlier):
        unsaid = labels[: int(np.argmax(np.append(labels >= 0, True)))]
        earlier = np.flatnonzero(unsaid > PROCESS_LABELS)  # a frame may stand later, and has a label below
    return int(earlier[-1]) + 1 if len(earlier) else 0


def _surprisal(before: Ids, id: int) -> float:
    return KNOWN_SURPRISAL if bool(np.any(before == id)) else NEW_SURPRISAL


def _split_pieces(text: str) -> Tokens:
    """Words in pieces of at most three bytes; a character may lie across two of them."""
    pieces = []
    for match in WORD.finditer(text):
        raw = match.group().encode()
        pieces += [raw[at : at + 3] for at in range(0, len(raw), 3)]
    return Tokens.of([int.from_bytes(raw, "little") | len(raw) << 24 for raw in pieces], pieces)


def _piece(id: int) -> bytes:
    """A token's id tells its bytes, so that every engine of this kind reads the ids of every other."""
    if CONTROL_IDS <= id < CONTROL_IDS + len(CONTROLS):
        return CONTROLS[id - CONTROL_IDS].encode()
    size = id >> 24
    if not 1 <= size <= 3 or id < 0:
        raise BadInput(f"{id} is not a token of the scripted engine.")
    return (id & 0xFFFFFF).to_bytes(3, "little")[:size]
