"""All parameters of the algorithm with default, range and meaning. Values are checked when they are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, get_args

from halo_weave.core.brightness import PairPruning, Strategy
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration
from halo_weave.core.setting_fields import Day, checked_value, description, is_setting, setting
from halo_weave.core.strategies import STRATEGIES, settings_of
from halo_weave.core.tokens import Role
from halo_weave.errors import BadSetting

SHARED_KEY = "windows"  # the key under which a store keeps the settings that all windows share
PRESETS_KEY = "presets"  # the key of the saved presets

# Names of settings up to version 0.2, which stored windows, exports and configurations may still use.
FORMER_NAMES = {
    "adds_up": "aggregate",
    "answered_by": "engine_name",
    "asking_sinks": "question_penalty",
    "fading": "fade_per_token",
    "fading_share": "fade_rate",
    "keep_exchanges": "protect_recent_exchanges",
    "keep_used": "protect_used",
    "may_leave": "remote_scope",
    "pairs": "resurrect_pairs",
    "pairs_asleep": "prune_pairs",
    "read_ahead": "prefetch",
}

ResurrectedBrightness = Literal["earned", "hybrid", "fresh"]
MemoryScope = Literal["all", "tags", "window"]
KvMode = Literal["splice", "exact"]
PairRecall = Literal["ranked", "with", "off"]
Effort = Literal["off", "low", "high"]
RemoteScope = Literal["all", "window", "not_private"]
CaptureMode = Literal["off", "mean", "retrieval", "all"]
PrefetchMode = Literal["off", "frames", "load", "compute"]
IdleReading = Literal["off", "mains", "always"]
ToolForm = Literal["auto", "native", "tags", "off"]

_generation = partial(setting, group="Generation")
_forgetting = partial(setting, group="Forgetting")
_remembering = partial(setting, group="Remembering")
_documents = partial(setting, group="Documents")
_system = partial(setting, group="System")
_elsewhere = partial(setting, group="Elsewhere")

# Limit of an automatic budget: a longer prompt takes more time, and on a server it costs more.
MAX_AUTOMATIC_BUDGET = 16_384

STRATEGY_SETTINGS = settings_of(STRATEGIES)  # the strategies' own settings


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one window. Those that a window does not set come from the settings for all."""

    temperature: float = _generation(
        0.7,
        "How freely the model chooses its words; 0 always takes the likeliest.",
        low=0,
        high=5,
        common=True,
    )
    top_p: float = _generation(
        0.9,
        "Choose among the likeliest words that make up this share; 1 is off.",
        low=0.01,
        high=1,
        common=True,
    )
    top_k: int = _generation(0, "Choose among this many of the likeliest words; 0 is off.", low=0, high=1000)
    min_p: float = _generation(
        0.0, "Leave out words less likely than this share of the likeliest; 0 is off.", low=0, high=1
    )
    repeat_penalty: float = _generation(
        1.0, "Above 1, words that were just used become less likely; 1 is off.", low=0.5, high=2, common=True
    )
    seed: int | None = _generation(
        None, "The same seed gives the same reply; empty is random.", low=0, high=2**32 - 2, optional=True
    )
    max_new_tokens: int = _generation(
        1_024, "A reply ends after this many tokens at the latest.", low=1, high=32_768, common=True
    )
    stop: str = _generation(
        "",
        "A reply ends before one of these texts: one on each line; \\n stands for a line break.",
        high=2_000,
        common=True,
    )
    effort: Effort | None = _generation(
        None,
        "How much the model thinks before it answers, if its template has a switch; empty is the template's default.",
        choices=get_args(Effort),
        optional=True,
        common=True,
    )

    max_context_tokens: int | None = _forgetting(
        None,
        "When more tokens than this are live, the dimmest chunks are pruned; 0 never prunes; empty is the model's context minus room for a reply and for recall, at most 16,384.",
        low=0,
        high=1_000_000,
        optional=True,
        common=True,
    )
    prune_to: float | None = _forgetting(
        None,
        "When pruning, stop at this share of the budget; empty is 1, or 0.7 if the model must read the whole context again afterwards, or 0.5 if a server must.",
        low=0.1,
        high=1,
        optional=True,
    )
    min_chunk_tokens: int = _forgetting(
        64, "A chunk has at least this many tokens, unless its turn is shorter.", low=1, high=4_096
    )
    max_chunk_tokens: int = _forgetting(
        256,
        "A longer passage is cut at a line, a sentence or a word, so that parts of it can be resurrected.",
        low=16,
        high=1_000_000,
    )
    strategy: str = _forgetting(
        "use_and_surprise", "How attention becomes brightness.", choices=tuple(STRATEGIES)
    )
    initial_brightness: float = _forgetting(
        10_000.0, "Brightness that a new token starts with.", low=0, high=1_000_000
    )
    brightness_cap: float = _forgetting(
        10_000.0, "No token becomes brighter than this. There is no lower limit.", low=1, high=1_000_000
    )
    own: Mapping[str, Any] = field(  # the strategies' own settings, of all strategies
        default_factory=lambda: {name: one.default for name, one in STRATEGY_SETTINGS.items()}
    )
    prune_pairs: PairPruning | None = _forgetting(
        None,
        "Whether a question and its answer are pruned separately, or together by the brighter or the dimmer of them; empty is the strategy's default.",
        choices=get_args(PairPruning),
        optional=True,
    )
    protect_recent_exchanges: int = _forgetting(
        1, "This many of the last exchanges are never pruned, whatever their brightness.", low=1, high=100
    )
    protect_used: bool = _forgetting(
        True, "Whether chunks that were resurrected and used in a reply stay for at least one more turn."
    )
    score_current_turn: bool = _forgetting(
        False, "Whether the reply's own tokens are scored while it is written."
    )

    resurrection_budget: int | None = _remembering(
        512,
        "At most this many tokens, less those of your message, wake up by themselves each turn; empty lets all that fits wake up.",
        low=0,
        high=1_000_000,
        optional=True,
        common=True,
    )
    resurrection_brightness: ResurrectedBrightness = _remembering(
        "earned",
        "Brightness of what wakes up: what it had, no less than the others have, or as new.",
        choices=get_args(ResurrectedBrightness),
    )
    resurrect_pairs: PairRecall = _remembering(
        "ranked",
        "Whether a woken chunk's question and opening come before weaker hits, always with it, or not at all.",
        choices=get_args(PairRecall),
    )
    user_weight: float = _remembering(
        2.5, "How much more your own words count in search than the model's.", low=0.1, high=10
    )
    min_probability: float = _remembering(
        0.1,
        "Something wakes up only if memory helps with your message at least this likely; 0 wakes the best there is.",
        low=0,
        high=1,
    )
    memory_scope: MemoryScope = _remembering(
        "all",
        "Recall from all windows, from windows and chunks that share a tag with this one, or only from this one.",
        choices=get_args(MemoryScope),
        common=True,
    )
    recall_tags: str = _remembering(
        "",
        "Only what has one of these tags wakes up, or was said in a window that has one; separated by commas, empty is all.",
        high=1_000,
    )
    recall_role: Role | None = _remembering(
        None,
        "Only what you said wakes up, or only what the model said; empty is both.",
        choices=(Role.USER.value, Role.ASSISTANT.value),
        optional=True,
    )
    recall_since: Day | None = _remembering(
        None, "Only what was said on this day or later wakes up; empty is no limit.", optional=True
    )
    recall_before: Day | None = _remembering(
        None, "Only what was said before this day wakes up; empty is no limit.", optional=True
    )
    recall_thoughts: bool = _remembering(False, "Whether what the model thought may wake up too.")

    kv_mode: KvMode = _system(
        "splice",
        "Remove and restore parts of the model's cache, or read everything again after each change.",
        choices=get_args(KvMode),
    )
    prefetch: PrefetchMode = _system(
        "compute",
        "What the model prefetches before you send: nothing, the frame of your message, also chunks whose cache entries are in memory or on disk, or also your words while you type and, on an idle machine, chunks that have to be computed.",
        choices=get_args(PrefetchMode),
    )
    idle_reading: IdleReading = _system(
        "mains",
        "Whether the model reads chunks that have no cells in the KV cache on disk yet, such as imports, while nobody waits: never, only on mains power, or also on battery.",
        choices=get_args(IdleReading),
    )
    timestamps: bool = _system(
        True,
        "Tell the model the date when a message asks about time, and the date of what it reads from other chats.",
    )
    memory_tree_in_prompt: bool = _system(
        True, "Describe the model's notes and structured memory in its system prompt."
    )
    memory_decay_days: float = _system(
        30.0,
        "After this many days, an entry of the structured memory counts a third as recent.",
        low=0.1,
        high=100_000,
    )
    tools: ToolForm = _system(
        "auto",
        "How the model calls its tools: in its template's own format, in <tool> tags, or not at all; auto is native if the model can do it, else off.",
        choices=get_args(ToolForm),
        common=True,
    )
    tool_rounds: int = _system(
        5, "How often the model may use a tool within one reply; 0 turns tools off.", low=0, high=50
    )

    engine_name: str = _elsewhere(
        "", "The engine that answers here, by name; empty is the model of all windows.", high=60
    )
    remote_scope: RemoteScope | None = _elsewhere(
        None,
        "What the model may read: everything, only what was said in this window, or everything except private windows; empty is everything, or only this window if the model runs on another machine.",
        choices=get_args(RemoteScope),
        optional=True,
    )
    private: bool = _elsewhere(
        False,
        "Whether the text of this window is never sent to a model on another machine, also not by other windows.",
    )
    document_megabytes: int = _documents(20, "A file to attach may be this large.", low=1, high=200)
    document_tokens: int = _documents(
        200_000, "A file to attach may have this many tokens of text.", low=100, high=2_000_000
    )
    document_seconds: int = _documents(
        30, "Reading a PDF or a DOCX is stopped after this many seconds.", low=1, high=600
    )

    capture: CaptureMode = _system(
        "off",
        "Whether the model's attention is captured on disk for the lab: the mean of all heads, also its retrieval heads, or all heads.",
        choices=get_args(CaptureMode),
    )
    capture_megabytes: int = _system(
        1_000, "Largest size of a window's capture on disk, in megabytes.", low=1, high=1_000_000
    )

    def __getitem__(self, name: str) -> Any:
        """A setting by its name, also of a strategy."""
        return self.own[name] if name in STRATEGY_SETTINGS else getattr(self, setting_field(name).name)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some replaced. An unknown name or a value out of range is refused."""
        values = {name: checked_setting(name, value) for name, value in changes.items()}
        own = {name: values.pop(name) for name in STRATEGY_SETTINGS if name in values}
        return replace(self, **values, own={**self.own, **own})

    def restored(self, stored: object) -> Settings:
        """These settings with stored ones, as far as this version can use them."""
        return self.changed(usable_settings(stored))

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, each once."""
        lines = (line.replace("\\n", "\n") for line in self.stop.splitlines())
        return tuple(dict.fromkeys(line for line in lines if line))

    @property
    def tags_recalled(self) -> tuple[str, ...]:
        """The tags that limit recall, each once."""
        return tuple(dict.fromkeys(tag for tag in map(str.strip, self.recall_tags.split(",")) if tag))

    def as_mapping(self) -> dict[str, Any]:
        return {name: self[name] for name in FIELDS}

    def reply_room(self, context: int) -> int:
        """Tokens of the model's context that are kept free for the reply: its limit, at most a quarter of the context.
        A longer reply continues while there is room."""
        return min(self.max_new_tokens, context // 4)

    def live_limit(self, context: int) -> int:
        """The dimmest chunks are pruned when more tokens than these are live; 0: never.

        If it is not set: the model's context minus room for the reply and for recall, at most `MAX_AUTOMATIC_BUDGET`.
        """
        if self.max_context_tokens is not None:
            return self.max_context_tokens
        recalled = context if self.resurrection_budget is None else self.resurrection_budget
        return min(context - self.reply_room(context) - min(recalled, context // 8), MAX_AUTOMATIC_BUDGET)

    def prune_goal(self, budget: int, *, cuts: bool, token_ids: bool = True) -> int:
        """The size at which pruning stops. `cuts`: the engine can remove cells from its KV cache. `token_ids`: it takes
        tokens, not messages."""
        keeps_cache = cuts and self.kv_mode == "splice"
        default = 1.0 if keeps_cache else 0.7 if token_ids else 0.5
        share = self.prune_to if self.prune_to is not None else default
        return int(budget * share)

    def brightness_strategy(self, calibration: Calibration = NOT_CALIBRATED) -> Strategy:
        """The chosen strategy for a model, with its own settings and the general ones that it has fields for."""
        chosen = STRATEGIES[self.strategy]
        values = {field.name: self[field.name] for field in fields(chosen) if field.name in FIELDS}
        return chosen(**values, calibration=calibration)


def _all_fields() -> Iterator[Field[Any]]:
    for definition in fields(Settings):
        if definition.name in STRATEGY_SETTINGS:
            raise TypeError(f"A strategy defines {definition.name}, which is a general setting.")
        if is_setting(definition):
            yield definition
        else:
            yield from STRATEGY_SETTINGS.values()


FIELDS: dict[str, Field[Any]] = {field.name: field for field in _all_fields()}


def setting_field(name: str) -> Field[Any]:
    """The setting with this name."""
    if name not in FIELDS:
        raise BadSetting(f"There is no setting {name!r}. Known: {', '.join(FIELDS)}.")
    return FIELDS[name]


def checked_setting(name: str, value: Any) -> Any:
    """The value converted to the setting's type. Raises BadSetting if it is not allowed."""
    return checked_value(setting_field(name), value)


def with_current_names(
    stored: Mapping[str, Any], former_names: Mapping[str, str] = FORMER_NAMES
) -> dict[str, Any]:
    """Settings under their current names. If both names are present, the current one counts."""
    former = {former_names[name]: value for name, value in stored.items() if name in former_names}
    return {**former, **{name: value for name, value in stored.items() if name not in former_names}}


def usable_settings(stored: object) -> dict[str, Any]:
    """The stored settings that this version knows and allows.

    Others may come from a newer version: they stay stored, and never make a window unusable.
    """
    usable = {}
    for name, value in with_current_names(stored).items() if isinstance(stored, Mapping) else ():
        with suppress(BadSetting):
            usable[name] = checked_setting(name, value)
    return usable


def no_effect(name: str) -> dict[str, str]:
    """Why a setting has no effect, by strategy."""
    if name in STRATEGY_SETTINGS:
        users = [
            strategy
            for strategy, kind in STRATEGIES.items()
            if any(name == field.name for field in fields(kind))
        ]
        return {other: f"only {' and '.join(users)} uses it." for other in STRATEGIES if other not in users}
    return {strategy: kind.ignores[name] for strategy, kind in STRATEGIES.items() if name in kind.ignores}


def described_settings() -> list[dict[str, Any]]:
    """All settings for a page or a document: name, group, default, range, meaning, and where they have no effect."""
    return [{**description(field), "no_effect": no_effect(field.name)} for field in FIELDS.values()]
