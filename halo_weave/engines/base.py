"""The interface of engines, embedders and search, and the values they take and return."""

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
    """What an engine can do. It silently leaves out what it cannot do; without `speaks` it only counts tokens."""

    speaks: bool = True
    attention: bool = True  # captures attention rows
    cuts: bool = True  # its cache can remove a part and put it back without reading the rest again
    token_ids: bool = True  # token ids are those of the model's vocabulary
    surprisal: bool = True  # measures surprisal
    late: bool = False  # rows and surprisal arrive later than their tokens, as `LateAttention`
    reading: bool = True  # rows and surprisal also for the prompt, not only for generated tokens
    ahead: bool = False  # can prefetch


def remote_host(url: str) -> str:
    """The host of an address; empty: this machine."""
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
    tokenizer: str  # fingerprint of the tokenizer: equal fingerprints, equal token ids
    template: Literal["model", "chatml"]  # where the chat template comes from
    template_note: str = ""  # why the model's own template is not used; empty: it is
    abilities: Capabilities = Capabilities()
    file: str = ""
    size_bytes: int = 0
    parameters: int = 0  # number of parameters; 0: unknown
    embedding: int = 0  # size of a token's hidden state; 0: unknown
    rope_base: float = 0.0  # rotary dimension; 0: unknown
    rope_scale: float = 1.0
    chat_template: str = ""  # source text of the template; empty: there is none
    template_words: Mapping[str, str] = field(
        default_factory=dict
    )  # special tokens by the template's names: bos_token, eos_token, …
    adds_bos: bool = False
    url: str = ""  # host of the server that runs it; empty: it runs in this process
    wide_layers: tuple[
        int, ...
    ] = ()  # layers with full attention, if others have a sliding window; (): all layers

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
    likely: int = 0  # how many of the likeliest tokens are reported with each token

    def check(self) -> None:
        """Refuse a prompt that the engine would misread or abort on."""
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


# Tokens without a position have negative labels. Labels from here on down are assigned in the order in which parts are
# first read, so another process assigns them differently.
GIVEN = -(1 << 24)
# Labels from here on down are anonymous: frames of an earlier process, or of a message that is not sent yet. Such a token
# is recognised by its text and its neighbour.
NAMELESS = -(1 << 60)
# Labels from here on down are text that was typed and not sent: it is not kept once it leaves the prompt.
UNSENT = NAMELESS - (1 << 60)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of the prompt: the system prompt, a turn's frame, or (a part of) a chunk."""

    kind: Literal["system", "frame", "chunk"]
    labels: (
        Positions  # (n,), unique within the prompt: a token's position, or a negative number if it has none
    )
    ids: Ids  # (n,)
    lendable: bool = False  # said in this window of the memory: its cells may be used in other windows


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as segments in order of time. The engine computes only what its cache does not have."""

    segments: Sequence[Segment]
    next_label: int  # label of the first generated token; they count up from there
    # Label from which `Capture.reading` rows are captured (the first of the user turn).
    read_from: int | None = None
    # The owner of the window if it is one of this server's memory. Then the labels of chunks are positions in that memory, and
    # their cells may come from other windows of the same owner.
    owner: str | None = field(default=None, kw_only=True)
    # The same for engines that take messages. The reply so far comes last, as an assistant message.
    messages: Sequence[ChatMessage] = field(default=(), kw_only=True)
    recently_resurrected: frozenset[ChatMessage] = field(
        default=frozenset(), kw_only=True
    )  # chunks that were resurrected recently
    tools: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    effort: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class PrefillPlanned:
    """Prefill begins: tokens that are still in the cache, put back into it, and to be computed.

    Sent again if the prompt has to be read again from the start.
    """

    reused: int
    restored: int
    computed: int


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Prefill is done. `reused + restored + computed` is the length of the prompt."""

    reused: int  # cells that stayed in the cache
    restored: int  # cells of pruned text, put back without computing
    computed: int  # tokens that the model computed
    shifted: bool  # gaps between positions were closed because positions ran out
    rebuilt: str  # why the window was read again from the start, or ""
    seconds: float
    rows: tuple[
        AttentionRow, ...
    ] = ()  # rows of the chunk tokens from `read_from` on, each up to its own token
    surprisal: npt.NDArray[np.float32] | None = None  # (chunk tokens from read_from on,), nats


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and its attention row."""

    id: int
    label: int
    piece: bytes
    surprisal: (
        float  # nats, under the model's own distribution (before temperature and truncation); NaN: unknown
    )
    row: AttentionRow | None  # over the chunk tokens of prompt and reply before this token, in time order
    likely: Sequence[
        tuple[bytes, float]
    ] = ()  # pieces and log-probabilities of the likeliest tokens at this place


StopReason = Literal["stop", "eos", "length", "context", "abort"]


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The generation is over."""

    reason: StopReason  # stop string, end of generation, max_new_tokens, no room left, aborted
    tokens: int
    seconds: float
    row: AttentionRow | None = None  # row of the last token, if the model chose to end after it
    # Tokens of the prompt as a server reports them: all, and those from its cache.
    prompted: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class LateTokenAttention:
    """The attention row and surprisal that a shadow model has captured for a token of the reply."""

    label: int
    row: AttentionRow | None  # as in `Step`
    surprisal: float


@dataclass(frozen=True, slots=True)
class LateAttention:
    """Attention and surprisal of the prompt, or of earlier tokens, which a shadow model has captured meanwhile."""

    read: PrefillResult | None = None
    words: tuple[LateTokenAttention, ...] = ()


GenerationEvent = PrefillPlanned | PrefillResult | Step | LateAttention | GenerationEnd


class Engine(Protocol):
    """Runs a language model. Methods may be called from any thread. Engines extend this class."""

    _info: ModelInfo

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def step_seconds(self) -> float:
        """How long the step of work that runs now has been running; 0 if none runs or if that is not known."""
        return 0.0

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Exact: the pieces join to the text. With `special`, control tokens in the text are recognised."""

    def pieces(self, ids: Ids) -> Tokens:
        """The bytes of each token id."""

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of the ids are control tokens, such as the end of a turn, or no tokens of this model."""

    @property
    def facts(self) -> TemplateFacts:
        """What is known of the model's chat template: how it thinks, how it calls tools."""

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        """A conversation in the model's chat template, up to where the model continues.

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
        """Read the prompt, then generate. `stopped` is called before each token."""

    def read_ahead(
        self,
        window: str,
        prompt: Prompt,
        *,
        room: int,
        mode: Literal["splice", "exact"] = "splice",
        most: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        """Prefetch the beginning of the next prompt. Returns at once; a generation ends it.

        `room`: leave room for so many more tokens. `most`: if more tokens than these must be computed, none are, and
        only cells on disk are loaded into memory. `capture`: what a generation will capture from `read_from` on; if it
        matches and the tokens are the same, they are not read again. By default nothing is prefetched: others may need
        the server of a remote engine.
        """
        return

    def forget(self, window: str) -> None:
        """Drop a window's KV cache. It is rebuilt on its next turn.

        Windows whose names have the same part before the first / form a group; that part with the / stands for all of
        them.
        """

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        """Text was deleted: remove the tokens with labels from the first of each span up to the second.

        A span begins with the message that was deleted, in whole or in part, and ends with the deleted part. `windows`
        have read them at some time. Cells of later text were computed while the deleted text was visible: they are
        dropped, and computed again before the next reply.
        So is what other windows took from them. Without spans, which tokens were deleted is not known: nothing of these
        windows is used any more.
        """

    def close(self) -> None:
        return


def windows_named_by(name: str, windows: Iterable[str]) -> list[str]:
    """The windows that a name stands for: one window, or with a trailing / all windows of a group."""
    return [one for one in windows if one == name or (name.endswith("/") and one.startswith(name))]


class Embedder(Protocol):
    """Turns text into vectors."""

    @property
    def name(self) -> str:
        """Model and version: identifies the generation of vectors that it makes."""

    @property
    def dimension(self) -> int: ...

    @property
    def file(self) -> str:
        """Path of its weights; empty if it has none."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors: ...

    def close(self) -> None: ...


class TagFilter(NamedTuple):
    """Limits a search to tags: windows with all that was said in them, and chunks by key and number."""

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
    tagged: tuple[TagFilter, ...] = ()  # filters that must all match

    def takes(self, key: ChunkKey, window: str, said: datetime) -> bool:
        """Whether the filter matches this chunk, ignoring the speaker."""
        return (
            self.role in (None, key.role)
            and (self.since is None or said >= self.since)
            and (self.before is None or said < self.before)
            and (self.windows is None or window in self.windows)
            and all(window in one.windows or key in one.chunks for one in self.tagged)
        )

    def narrowed(self, role: Role | None, since: datetime | None, before: datetime | None) -> SearchFilter:
        """This filter, also limited to a role and a time. Filters by different roles match nothing."""
        if role is not None and self.role not in (None, role):
            return replace(self, windows=frozenset())
        since = max((one for one in (self.since, since) if one is not None), default=None)
        before = min((one for one in (self.before, before) if one is not None), default=None)
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
