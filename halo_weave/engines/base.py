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
from halo_weave.core.tokens import ChunkKey, Ids, Positions, Role, Tokens
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import TemplateFacts
from halo_weave.errors import BadSetting

Vectors = npt.NDArray[np.float32]  # (n, dimension), each of length 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. What it cannot do it leaves out, without an error; without `speaks` it only counts words."""

    speaks: bool = True
    attention: bool = True  # rows of what the model looks at
    cuts: bool = True  # its cache can lose a part and get it back without reading the rest again
    token_ids: bool = True  # the ids are the model's own vocabulary
    surprisal: bool = True  # how little the model expected a token
    late: bool = False  # rows and surprisal come later than their tokens, as `Seen`
    reading: bool = True  # rows and surprisal also of what is read, not only of what is written
    ahead: bool = False  # what will be needed can be read while nobody waits


def remote_host(url: str) -> str:
    """The machine of an address; empty: this one."""
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
    trained_context: int  # how far the model was trained
    context: int  # how many tokens can be live in one window, on this engine
    special: dict[str, int]  # "bos", "eos", "eot", ... as far as the model has them
    tokenizer: str  # fingerprint: chunks with the same one share token ids
    template: Literal["model", "chatml"]  # where the chat template comes from
    template_note: str = ""  # why the model's own template is not used
    abilities: Capabilities = Capabilities()
    file: str = ""
    size_bytes: int = 0
    parameters: int = 0  # how many weights it has; 0: not known
    embedding: int = 0  # size of a token's hidden state; 0: not known
    rope_base: float = 0.0  # of its rotary positions; 0: not known
    rope_scale: float = 1.0
    chat_template: str = ""  # its source; empty: there is none
    template_words: Mapping[str, str] = field(default_factory=dict)  # what it calls bos_token, eos_token, …
    adds_bos: bool = False
    url: str = ""  # of the server that runs it; empty: it runs in this process
    wide_layers: tuple[int, ...] = ()  # those that see everything, if others see a sliding window; (): all do

    @property
    def elsewhere(self) -> str:
        """The machine that words are sent to; empty: they stay on this one."""
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
    grammar: str = ""  # GBNF: what the text must be like
    likely: int = 0  # how many of the likeliest tokens are told with each one

    def check(self) -> None:
        """Refuse what an engine would take wrongly or abort on."""
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


# What has no position is labelled below zero. Labels from here on down are given in the order in which something is first
# read, so that another process gives them otherwise.
GIVEN = -(1 << 24)
# Labels from here on down name nothing: frames of an earlier process, or of a message that was not said yet. Such a token
# is known again by what it says and by the one next to it.
NAMELESS = -(1 << 60)
# Those from here on down are words that were typed and not sent: nothing of them is kept when they leave.
UNSENT = NAMELESS - (1 << 60)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that should be live: the system prompt, a turn's frame, or (a part of) a chunk."""

    kind: Literal["system", "frame", "chunk"]
    labels: Positions  # (n,), unique within the prompt: a token's position, or a negative number for what has none
    ids: Ids  # (n,)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What should be live, in time order. The engine finds the least work to get there."""

    segments: Sequence[Segment]
    next_label: int  # the first generated token's label; they count up from there
    read_from: int | None = None  # label from which `Capture.reading` rows are wanted (the user turn's first)
    # The same for engines that take messages. What is written of the reply stands last, as the assistant's.
    messages: Sequence[ChatMessage] = field(default=(), kw_only=True)
    recently_resurrected: frozenset[ChatMessage] = field(
        default=frozenset(), kw_only=True
    )  # those that woke up lately
    tools: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    effort: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class PrefillPlanned:
    """The model begins to read: tokens that are still in its cache, come back to it, and have to be computed.

    Comes again if the prompt has to be read anew.
    """

    reused: int
    restored: int
    computed: int


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The prompt is in the cache. `reused + restored + computed` is its length."""

    reused: int  # cells that stayed where they were
    restored: int  # asleep cells brought back without computing
    computed: int  # tokens run through the model
    shifted: bool  # holes were closed since positions ran out
    rebuilt: str  # why the window was read anew from the start, or ""
    seconds: float
    rows: tuple[AttentionRow, ...] = ()  # of the chunk tokens from `read_from` on, each up to its own token
    surprisal: npt.NDArray[np.float32] | None = None  # (chunk tokens from read_from on,), nats


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and what the model looked at to choose it."""

    id: int
    label: int
    piece: bytes
    surprisal: float  # nats, under the model's own distribution (before temperature and cuts); NaN: not known
    row: AttentionRow | None  # over the chunk tokens of prompt and reply before this token, in time order
    likely: Sequence[tuple[bytes, float]] = ()  # pieces and log-probabilities of the likeliest in its place


StopReason = Literal["stop", "eos", "length", "context", "abort"]


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The generation is over."""

    reason: StopReason  # stop string, end of generation, max_new_tokens, no room left, aborted
    tokens: int
    seconds: float
    row: AttentionRow | None = None  # what the last token looked at, if the model chose to end after it
    # Of the prompt, as a server counts: all of its tokens, and those that it says it had read before.
    prompted: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class LateTokenAttention:
    """What a reader looked at before a token of the reply, and how little it expected it."""

    label: int
    row: AttentionRow | None  # as in `Step`
    surprisal: float


@dataclass(frozen=True, slots=True)
class LateAttention:
    """What a reader saw of the prompt, or of tokens that were given before."""

    read: PrefillResult | None = None
    words: tuple[LateTokenAttention, ...] = ()


GenerationEvent = PrefillPlanned | PrefillResult | Step | LateAttention | GenerationEnd


class Engine(Protocol):
    """Runs a language model. Its methods may be called from any thread. Engines extend this class."""

    _info: ModelInfo

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Exact: the pieces join to the text. With `special`, control tokens in the text are recognised."""

    def pieces(self, ids: Ids) -> Tokens:
        """Token ids back to their bytes."""

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of these are control tokens, such as the end of a turn, or no tokens of this model at all."""

    @property
    def facts(self) -> TemplateFacts:
        """What the model's chat template tells about it: how it thinks, how it calls tools."""

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        """A conversation as the model's chat template writes it, up to the place where the model goes on.

        `effort`: how much it should think, as far as the template has a switch. `tools`: those that it may call.
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
        """Read the prompt, then generate. `stopped` is asked before each token."""

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
        """What the next prompt will begin with is read while nobody waits. Returns at once; a generation ends it.

        `room`: for so many tokens more. `most`: if more tokens than these must be computed, they are not, and what
        lies on disk is only brought into main memory. `capture`: what a generation will ask for of the tokens from
        `read_from` on; if it does, and all is as it was read here, they are not read again.

        By default nothing is read ahead: the server of a remote engine may be needed by others meanwhile.
        """
        return

    def forget(self, window: str) -> None:
        """Drop a window's KV. It is rebuilt on its next turn.

        Windows form a group by what is before the first / of their names: that with the / stands for all of them.
        """

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        """Tokens with labels from the first of each span up to the second were deleted: keep nothing of them.

        A span begins with the message that was deleted, or of which a part was, and ends where that part did.
        `windows` have read them at some time. What stands later there was computed while they were in sight: it is not
        used any more, and computed again before the next reply.
        """

    def close(self) -> None:
        return


def windows_named_by(name: str, windows: Iterable[str]) -> list[str]:
    """The windows that a name stands for: one, or all of a group, which is all before the first /, with it."""
    return [one for one in windows if one == name or (name.endswith("/") and one.startswith(name))]


class Embedder(Protocol):
    """Turns text into vectors."""

    @property
    def name(self) -> str:
        """Model and version: names the generation of vectors it makes."""

    @property
    def dimension(self) -> int: ...

    @property
    def file(self) -> str:
        """Where its weights lie; empty if it has none."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors: ...

    def close(self) -> None: ...


class TagFilter(NamedTuple):
    """What has one of some tags: windows with all that was said in them, and chunks by their keys, with numbers."""

    windows: frozenset[str]
    chunks: Mapping[ChunkKey, int]


@dataclass(frozen=True, slots=True)
class SearchFilter:
    """Which chunks a search looks at: of a role, of a speaker, of a time, in some windows, with some tags."""

    role: Role | None = None
    speaker: str = ""
    since: datetime | None = None
    before: datetime | None = None
    windows: frozenset[str] | None = None  # ids; None: all
    tagged: tuple[TagFilter, ...] = ()  # in each of these

    def takes(self, key: ChunkKey, window: str, said: datetime) -> bool:
        """Whether it looks at this chunk, whoever said it."""
        return (
            self.role in (None, key.role)
            and (self.since is None or said >= self.since)
            and (self.before is None or said < self.before)
            and (self.windows is None or window in self.windows)
            and all(window in one.windows or key in one.chunks for one in self.tagged)
        )

    def narrowed(self, role: Role | None, since: datetime | None, before: datetime | None) -> SearchFilter:
        """What this takes and was also said in this role and time; nothing is said in two roles."""
        if role is not None and self.role not in (None, role):
            return replace(self, windows=frozenset())
        since = max((one for one in (self.since, since) if one is not None), default=None)
        before = min((one for one in (self.before, before) if one is not None), default=None)
        return replace(self, role=self.role or role, since=since, before=before)

    def with_tag(self, tagged: TagFilter) -> SearchFilter:
        """The same, of what has the tags."""
        return replace(self, tagged=(*self.tagged, tagged)) if tagged.chunks else self.within(tagged.windows)

    def within(self, windows: frozenset[str] | None) -> SearchFilter:
        """The same, of these windows alone."""
        if windows is None:
            return self
        return replace(self, windows=windows if self.windows is None else self.windows & windows)


NO_FILTER = SearchFilter()
