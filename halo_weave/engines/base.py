"""The interfaces of engines and embedders, the values they take and return, and the filters of a search."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.brightness import Capture as Capture
from halo_weave.core.grammar_limits import check_grammar
from halo_weave.core.tokens import ChunkKey, Ids, Positions, Role, Tokens
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import TemplateFacts
from halo_weave.errors import BadSetting

Vectors = npt.NDArray[np.float32]  # (n, dimension), each of length 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. It silently leaves out what it cannot do."""

    speaks: bool = True  # generates text; without it, the engine only counts tokens
    attention: bool = True  # captures attention rows
    cuts: bool = (
        True  # cells can be removed from its KV cache and restored without computing the others again
    )
    token_ids: bool = True  # token ids are those of the model's vocabulary
    surprisal: bool = True  # reports the surprisal of tokens
    late: bool = False  # attention rows and surprisal arrive later than their tokens, as `LateAttention`
    reading: bool = True  # attention rows and surprisal also for tokens of the prompt
    prefetch: bool = False  # can prefetch the next prompt


def remote_host(url: str) -> str:
    """The host of a URL; empty if it is this machine."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return "" if ipaddress.ip_address(host).is_loopback else host
    return "" if host == "localhost" or host.endswith(".localhost") else host


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    trained_context: int  # context length that the model was trained with
    context: int  # how many tokens can be live in one window, on this engine
    special: dict[str, int]  # special tokens by name: "bos", "eos", "eot", ...
    tokenizer: str  # fingerprint of the tokenizer: models with the same one have the same token ids
    template: Literal["model", "chatml"]  # where the chat template comes from
    template_note: str = ""  # why the model's own chat template is not used; empty if it is used
    abilities: Capabilities = Capabilities()
    file: str = ""
    size_bytes: int = 0
    parameters: int = 0  # number of parameters; 0: unknown
    embedding: int = 0  # size of a token's hidden state; 0: unknown
    rope_base: float = 0.0  # RoPE frequency base; 0: unknown
    rope_scale: float = 1.0
    chat_template: str = ""  # source text of the template; empty: there is none
    template_words: Mapping[str, str] = field(
        default_factory=dict
    )  # special tokens by the template's names: bos_token, eos_token, …
    adds_bos: bool = False
    url: str = ""  # URL of the server that runs the model; empty: it runs in this process
    wide_layers: tuple[
        int, ...
    ] = ()  # layers with full attention, if the others have a sliding window; (): all layers

    @property
    def elsewhere(self) -> str:
        """The host that text is sent to; empty: it stays on this machine."""
        return remote_host(self.url)


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0: off
    repeat_penalty: float = 1.0  # 1: off
    seed: int | None = None  # None: random
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    grammar: str = ""  # GBNF grammar of the text
    likely: int = 0  # number of most likely tokens to report with each token, with their log-probabilities

    def check(self) -> None:
        """Refuse values that the sampler would misread or abort on."""
        for name, fits, range in (
            ("temperature", 0.0 <= self.temperature < 100.0, "0 to 100"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0, up to 1"),
            ("top_k", 0 <= self.top_k < 2**31, "0 (off) or more"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 (off) to 1"),
            ("repeat_penalty", 0.0 < self.repeat_penalty < 100.0, "more than 0"),
            ("seed", self.seed is None or 0 <= self.seed < 2**32 - 1, "0 to 4294967294"),
            ("max_new_tokens", self.max_new_tokens >= 1, "1 or more"),
        ):
            if not fits:
                raise BadSetting(f"{name} is {getattr(self, name)}; it takes {range}.")
        if self.grammar:
            check_grammar(self.grammar)


# A token of a chunk has its position as label; tokens without a position have negative labels. Labels from
# `PROCESS_LABELS` down are assigned in the order in which this process first reads a part, so they mean nothing to
# another process.
PROCESS_LABELS = -(1 << 24)
# Labels from here down are anonymous: frames from an earlier process, or of a message that is not sent yet. Such a
# token is recognised by its id and its neighbour.
ANONYMOUS_LABELS = -(1 << 60)
# Labels from here down belong to text that was typed but not sent. Its cells are not saved when it leaves the prompt.
UNSENT_LABELS = ANONYMOUS_LABELS - (1 << 60)
# Labels from here up belong to chunks that were stored with another tokenizer, such as imported ones: their tokens in this
# model are more or fewer than their positions. Such a label contains the first position and the number of positions of the
# chunk, and counts the tokens so that the last one has the highest number. It is the same in every process and window.
RETOKENIZED_LABELS = 1 << 60
_COUNT_BITS = 12
_MAX_COUNT = (1 << _COUNT_BITS) - 1
_MAX_START = 1 << 36


def retokenized_labels(start: int, span: int, count: int) -> Positions | None:
    """The labels of a chunk with `span` positions and `count` tokens. None: its numbers are too large."""
    if start >= _MAX_START or max(span, count) > _MAX_COUNT:
        return None
    first = RETOKENIZED_LABELS + (((start << _COUNT_BITS) | span) << _COUNT_BITS) + _MAX_COUNT - (count - 1)
    return np.arange(first, first + count, dtype=np.int64)


def positions_of(labels: Positions) -> Positions:
    """The position of each token with a label of 0 or more. In a chunk with more tokens than positions, the first tokens
    have the same one; the last token always has the last position. Negative labels stay as they are."""
    number, rest = labels & _MAX_COUNT, (labels - RETOKENIZED_LABELS) >> _COUNT_BITS
    span, start = rest & _MAX_COUNT, rest >> _COUNT_BITS
    within = start + np.maximum(0, span - 1 - (_MAX_COUNT - number))
    return np.where(labels >= RETOKENIZED_LABELS, within, labels)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of the prompt: the system prompt, a turn's frame, or (a part of) a chunk."""

    kind: Literal["system", "frame", "chunk"]
    labels: (
        Positions  # (n,), unique within the prompt: a token's position, or a negative number if it has none
    )
    ids: Ids  # (n,)
    lendable: bool = (
        False  # said in this window, so its cells may be copied to other windows of the same owner
    )


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as segments in time order. The engine computes only the tokens that are not in its KV cache."""

    segments: Sequence[Segment]
    next_label: int  # label of the first generated token; they count up from there
    # Label of the first token whose attention row is captured, for `Capture.reading`: the first of the user turn.
    read_from: int | None = None
    # The owner of the window, if it is a window of this server's store. Then the labels of chunks are positions in the
    # owner's memory, and their cells may be copied from other windows of the same owner.
    owner: str | None = field(default=None, kw_only=True)
    temporary: bool = field(default=False, kw_only=True)  # its cells are never written to disk
    # The same prompt for engines that take messages. The reply so far comes last, as an assistant message.
    messages: Sequence[ChatMessage] = field(default=(), kw_only=True)
    recently_resurrected: frozenset[ChatMessage] = field(
        default=frozenset(), kw_only=True
    )  # chunks that were resurrected recently
    tools: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    effort: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class PrefillPlanned:
    """Prefill begins: how many tokens are still in the KV cache, are restored to it, and have to be computed.

    Sent a second time if the cache turns out to be unusable and the whole prompt is computed.
    """

    reused: int
    restored: int
    computed: int


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Prefill is done. `reused + restored + computed` is the length of the prompt."""

    reused: int  # tokens whose cells stayed in the KV cache
    restored: int  # tokens whose saved cells were copied back, without computing
    computed: int  # tokens that the model computed
    shifted: bool  # cells were shifted together because their positions would exceed the trained context
    rebuilt: str  # why the whole prompt was computed again, or ""
    seconds: float
    rows: tuple[
        AttentionRow, ...
    ] = ()  # attention rows of the chunk tokens from `read_from` on, each over the tokens up to its own
    surprisal: npt.NDArray[np.float32] | None = None  # (chunk tokens from read_from on,), nats


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and its attention row."""

    id: int
    label: int
    piece: bytes
    surprisal: float  # nats, under the model's own distribution (before temperature and top-k); NaN: unknown
    row: AttentionRow | None  # over the chunk tokens of prompt and reply before this token, in time order
    likely: Sequence[
        tuple[bytes, float]
    ] = ()  # pieces and log-probabilities of the most likely tokens at this place


StopReason = Literal["stop", "eos", "length", "context", "abort"]
IdleReadResult = Literal["saved", "in memory", "given up", "disk full"]


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The generation is over."""

    reason: StopReason  # stop string, end-of-generation token, max_new_tokens, context full, aborted
    tokens: int
    seconds: float
    row: AttentionRow | None = None  # attention row of the last token, if the model ended the reply after it
    # Prompt tokens that a server reports: all of them, and those from its cache.
    prompted: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class LateTokenAttention:
    """The attention row and surprisal of one reply token, captured by a shadow model."""

    label: int
    row: AttentionRow | None  # as in `Step`
    surprisal: float


@dataclass(frozen=True, slots=True)
class LateAttention:
    """Attention and surprisal that arrive after their tokens: of the prompt, or of earlier tokens of the reply."""

    prefill: PrefillResult | None = None
    tokens: tuple[LateTokenAttention, ...] = ()


GenerationEvent = PrefillPlanned | PrefillResult | Step | LateAttention | GenerationEnd


class Engine(Protocol):
    """Runs a language model. Methods may be called from any thread. Engines extend this class."""

    _info: ModelInfo

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def step_seconds(self) -> float:
        """How many seconds the current decode has been running; 0 if none runs or that is not known."""
        return 0.0

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Tokenize so that the pieces join to exactly the text. `special`: recognise control tokens in the text."""

    def pieces(self, ids: Ids) -> Tokens:
        """The bytes of each token id."""

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of the ids are control tokens, such as the end of a turn, or are not in the vocabulary."""

    @property
    def facts(self) -> TemplateFacts:
        """What is known about the model's chat template: how it writes thoughts and tool calls."""

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        """Render a conversation with the model's chat template, up to where the model continues.

        `effort`: how much it should think, if the template has a switch. `tools`: tools that it may call.
        """

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
        """Prefill the prompt, then generate. `stopped` is called before each token."""

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
        """Prefill the beginning of the next prompt in the background. Returns at once; `generate` ends it.

        `room`: free cells to leave after the prompt. `max_computed`: if more tokens than these would have to be
        computed, compute none and only load saved cells. `capture`: the attention that the generation will capture from
        `read_from` on; it is captured now and reused if the tokens stay the same. The default does nothing: the server
        of a remote engine may be busy with other clients.
        """
        return

    def positions_on_disk(self, owner: str) -> Positions | None:
        """The sorted positions of an owner's text whose cells are on disk for this model. None: this engine keeps no cells
        on disk."""
        return None

    def read_idle(self, window: str, prompt: Prompt, *, stopped: Callable[[], bool]) -> IdleReadResult:
        """Compute the cells of the prompt's chunks and write them to disk, while the engine has nothing else to do.

        Waits until that is done. It is given up as soon as anything else is requested from the engine. `stopped` is
        called before each batch, and once more before the cells are written. The KV caches of windows stay as they are.
        """
        return "given up"

    def forget(self, window: str) -> None:
        """Drop a window's KV cache. It is rebuilt on the window's next turn.

        Windows form a group if their names have the same part before the first `/`. A name that ends with `/` stands
        for the whole group.
        """

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        """Remove deleted text from KV caches.

        `spans`: for each deletion the label where the affected message begins and the label after the deleted part.
        `windows`: windows whose prompts have contained the text. Their cells of later text were computed while the
        deleted text was visible: these cells are dropped, with copies of them in other windows, and computed again
        before the next reply. No spans: the deleted tokens are not known, so all cells of `windows` are dropped.
        """

    def close(self) -> None:
        return


def matching_windows(name: str, windows: Iterable[str]) -> list[str]:
    """The windows that a name stands for: one window, or all windows of a group if it ends with `/`."""
    return [
        window for window in windows if window == name or (name.endswith("/") and window.startswith(name))
    ]


class Embedder(Protocol):
    """Turns text into vectors."""

    @property
    def name(self) -> str:
        """Model and version. Vectors with another name are not comparable."""

    @property
    def dimension(self) -> int: ...

    @property
    def file(self) -> str:
        """Path of its weights; empty if it has none."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors: ...

    def close(self) -> None: ...


class TagFilter(NamedTuple):
    """Limits a search to what a tag was put on: whole windows, and single chunks by key and number."""

    windows: frozenset[str]
    chunks: Mapping[ChunkKey, int]


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Limits a search to chunks by role, speaker, time, windows or tags."""

    role: Role | None = None
    speaker: str = ""
    since: datetime | None = None
    before: datetime | None = None
    windows: frozenset[str] | None = None  # ids; None: all
    tagged: tuple[TagFilter, ...] = ()  # all of them must match

    def takes(self, key: ChunkKey, window: str, said: datetime) -> bool:
        """Whether the filter matches this chunk, ignoring the speaker."""
        return (
            self.role in (None, key.role)
            and (self.since is None or said >= self.since)
            and (self.before is None or said < self.before)
            and (self.windows is None or window in self.windows)
            and all(window in tag.windows or key in tag.chunks for tag in self.tagged)
        )

    def narrowed(self, role: Role | None, since: datetime | None, before: datetime | None) -> SearchFilter:
        """This filter, also limited to a role and a time. Filters by different roles match nothing."""
        if role is not None and self.role not in (None, role):
            return replace(self, windows=frozenset())
        since = max((time for time in (self.since, since) if time is not None), default=None)
        before = min((time for time in (self.before, before) if time is not None), default=None)
        return replace(self, role=self.role or role, since=since, before=before)

    def with_tag(self, tagged: TagFilter) -> SearchFilter:
        """This filter, limited to tagged chunks."""
        return replace(self, tagged=(*self.tagged, tagged)) if tagged.chunks else self.within(tagged.windows)

    def within(self, windows: frozenset[str] | None) -> SearchFilter:
        """This filter, limited to these windows."""
        if windows is None:
            return self
        return replace(self, windows=windows if self.windows is None else self.windows & windows)


NO_FILTER = SearchFilter()
