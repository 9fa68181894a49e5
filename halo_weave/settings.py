"""Every parameter of the algorithm: its default, its range, its meaning. Values are checked where they enter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from halo_weave.errors import BadSetting

SHARED = "windows"  # the key under which a store keeps the settings that all windows share


def setting(
    default: Any,
    meaning: str,
    *,
    group: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    optional: bool = False,
) -> Any:
    """A field with what the page and the docs show of it."""
    about = {
        "meaning": meaning,
        "group": group,
        "low": low,
        "high": high,
        "choices": choices,
        "optional": optional,
    }
    return field(default=default, metadata=about)


Sink = Literal["max", "first"]
Returning = Literal["earned", "hybrid", "fresh"]
Scope = Literal["all", "window"]
KvMode = Literal["splice", "exact"]
Pairs = Literal["ranked", "with", "off"]
StrategyName = Literal["magnitude_voting", "surprise"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one window. What a window does not set comes from the settings for all."""

    temperature: float = setting(
        0.7,
        "How freely the model chooses its words; 0 always takes the likeliest.",
        group="Generation",
        low=0,
        high=5,
    )
    top_p: float = setting(
        0.9,
        "Choose among the likeliest words that make up this share; 1 is off.",
        group="Generation",
        low=0.01,
        high=1,
    )
    top_k: int = setting(
        0, "Choose among this many of the likeliest words; 0 is off.", group="Generation", low=0, high=1000
    )
    min_p: float = setting(
        0.0,
        "Leave out words less likely than this share of the likeliest; 0 is off.",
        group="Generation",
        low=0,
        high=1,
    )
    repeat_penalty: float = setting(
        1.0,
        "Above 1, words that were just used become less likely; 1 is off.",
        group="Generation",
        low=0.5,
        high=2,
    )
    seed: int | None = setting(
        None,
        "The same seed gives the same reply; empty is random.",
        group="Generation",
        low=0,
        high=2**32 - 2,
        optional=True,
    )
    max_new_tokens: int = setting(
        256, "A reply ends after this many tokens at the latest.", group="Generation", low=1, high=32_768
    )

    max_context_tokens: int = setting(
        2_000,
        "Above this many live tokens the dimmest chunks fall asleep; 0 never prunes.",
        group="Forgetting",
        low=0,
        high=1_000_000,
    )
    min_chunk_tokens: int = setting(
        64,
        "A chunk has at least this many tokens, unless its turn is shorter.",
        group="Forgetting",
        low=1,
        high=4_096,
    )
    strategy: StrategyName = setting(
        "magnitude_voting",
        "How attention becomes brightness.",
        group="Forgetting",
        choices=get_args(StrategyName),
    )
    initial_brightness: float = setting(
        10_000.0,
        "Brightness of a new token: fail bright, then prove itself.",
        group="Forgetting",
        low=0,
        high=1_000_000,
    )
    brightness_cap: float = setting(
        10_000.0,
        "No token becomes brighter than this. There is no floor.",
        group="Forgetting",
        low=1,
        high=1_000_000,
    )
    decay: float = setting(
        1.0, "What a token loses each time it is not looked at.", group="Forgetting", low=0, high=10_000
    )
    sink: Sink = setting(
        "max",
        "The token that attention rests on: the largest share, or the first token.",
        group="Forgetting",
        choices=get_args(Sink),
    )
    score_current_turn: bool = setting(
        False, "Whether the reply's own tokens are scored while it is written.", group="Forgetting"
    )

    resurrection_budget: int | None = setting(
        512,
        "At most this many tokens, less those of your message, wake up by themselves each turn; empty lets all that fits wake up.",
        group="Remembering",
        low=0,
        high=1_000_000,
        optional=True,
    )
    resurrection_brightness: Returning = setting(
        "earned",
        "Brightness of what wakes up: what it had, no less than the others have, or as new.",
        group="Remembering",
        choices=get_args(Returning),
    )
    pairs: Pairs = setting(
        "ranked",
        "Whether a woken chunk's question and opening come before weaker hits, always with it, or not at all.",
        group="Remembering",
        choices=get_args(Pairs),
    )
    user_weight: float = setting(
        1.5,
        "How much more your own words count in search than the model's.",
        group="Remembering",
        low=0.1,
        high=10,
    )
    relevance_floor: float = setting(
        0.25,
        "How near in meaning a chunk must be to your words to wake up, unless it holds a rare one of them; 0 wakes the best there is.",
        group="Remembering",
        low=0,
        high=1,
    )
    mmr_lambda: float | None = setting(
        None,
        "Below 1, prefers variety among what wakes up; empty is off.",
        group="Remembering",
        low=0,
        high=1,
        optional=True,
    )
    memory_scope: Scope = setting(
        "all",
        "Recall from all windows, or only from what was said in this one.",
        group="Remembering",
        choices=get_args(Scope),
    )

    kv_mode: KvMode = setting(
        "splice",
        "Cut and mend the model's cache, or read everything anew after each change.",
        group="System",
        choices=get_args(KvMode),
    )
    timestamps: bool = setting(True, "Show the model when each of your messages was said.", group="System")
    memory_tree_in_prompt: bool = setting(
        True, "Tell the model of its notes and structured memory in the system prompt.", group="System"
    )
    tool_rounds: int = setting(
        5,
        "How often the model may use a tool within one reply; 0 turns tools off.",
        group="System",
        low=0,
        high=50,
    )

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with others in their place. An unknown name or a value out of range is refused."""
        return replace(self, **{name: checked(name, value) for name, value in changes.items()})

    def restored(self, stored: object) -> Settings:
        """These settings with stored ones in their place, as far as this version can use them."""
        return self.changed(usable(stored))

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)


FIELDS = {one.name: one for one in fields(Settings)}


def known(name: str) -> Mapping[str, Any]:
    """What there is to say of a setting."""
    if name not in FIELDS:
        raise BadSetting(f"There is no setting {name!r}. Known: {', '.join(FIELDS)}.")
    return FIELDS[name].metadata


def checked(name: str, value: Any) -> Any:
    """The value in its right type, or a sentence that says what it may be."""
    about = known(name)
    if value is None:
        if about["optional"]:
            return None
        raise BadSetting(f"{name} cannot be empty.")
    if about["choices"]:
        if value not in about["choices"]:
            raise BadSetting(f"{name} is {value!r}; use one of {', '.join(about['choices'])}.")
        return value
    if _kind(name) == "boolean":
        if not isinstance(value, bool):
            raise BadSetting(f"{name} is {value!r}; use true or false.")
        return value
    whole = _kind(name) == "integer"
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -math.inf < value < math.inf
        or (whole and value != int(value))
    ):
        raise BadSetting(f"{name} is {value!r}; use a {'whole ' if whole else ''}number.")
    if not about["low"] <= value <= about["high"]:
        raise BadSetting(f"{name} is {value}; use {about['low']:,} to {about['high']:,}.")
    return int(value) if whole else float(value)


def usable(stored: object) -> dict[str, Any]:
    """What of stored settings this version knows and allows.

    The rest may be of a newer version: it stays stored, and never makes a window unusable.
    """
    found = {}
    for name, value in stored.items() if isinstance(stored, Mapping) else ():
        with suppress(BadSetting):
            found[name] = checked(name, value)
    return found


def described() -> list[dict[str, Any]]:
    """All settings for a page or a document: name, group, default, range, meaning."""
    return [
        {"name": name, "default": one.default, "type": _kind(name), **one.metadata}
        for name, one in FIELDS.items()
    ]


def _kind(name: str) -> Literal["choice", "boolean", "integer", "number"]:
    written = str(FIELDS[name].type)
    if written == "bool":
        return "boolean"
    if FIELDS[name].metadata["choices"]:
        return "choice"
    return "integer" if written.startswith("int") else "number"
