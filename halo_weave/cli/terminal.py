"""Text for the terminal: brightness as colour, safe output of stored text, numbers and sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from rich.color import Color
from rich.style import Style
from rich.text import Text

from halo_weave.core.tokens import Brightness, Tokens

DIM, MEDIUM, BRIGHT = (100, 90, 40), (200, 180, 80), (255, 220, 100)
GROUND = (70, 60, 20), (128, 110, 50)  # behind the brightest tokens, from faint to strong
TOP = 0.8  # of the range: above it a token stands out by itself
# Control characters except line breaks and tabs, also 8-bit ones, and characters that change the direction of text.
CONTROL_CHARACTERS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"
)
TOOL = Style(color="#4ecdc4")


def _share(value: float, low: float, high: float) -> float:
    """Where a brightness lies between the smallest and the largest, from 0 to 1."""
    return 1.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))


def _between(start: tuple[int, int, int], stop: tuple[int, int, int], at: float) -> Color:
    red, green, blue = (a + (b - a) * at for a, b in zip(start, stop, strict=True))
    return Color.from_rgb(red, green, blue)


def _chunk_style(peak: float) -> Style:
    """The style of a chunk's text by its brightness: dim olive, yellow, gold."""
    colour = _between(DIM, MEDIUM, peak * 2) if peak < 0.5 else _between(MEDIUM, BRIGHT, peak * 2 - 1)
    return Style(color=colour)


def _token_style(at: float) -> Style | None:
    """The style of a token: the top fifth of the range has a background."""
    if at < TOP:
        return None
    return Style(color="white", bgcolor=_between(*GROUND, (at - TOP) / (1 - TOP)))


def coloured_chunk(
    tokens: Tokens, brightness: Brightness, low: float, high: float, *, tool: bool = False
) -> Text:
    """A chunk in its colours. If all brightness is about equal, nothing stands out."""
    text = Text(style=TOOL if tool else _chunk_style(_share(float(brightness.max()), low, high)))
    for word, value in zip(tokens.spelled(), brightness.tolist(), strict=True):
        text.append(printable(word), _token_style(_share(value, low, high)) if high > low else None)
    return text


def printable(text: str) -> str:
    """Text that cannot control the terminal: control characters become visible symbols."""
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


def json_line(value: Any) -> str:
    """JSON that cannot control the terminal: control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return CONTROL_CHARACTERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def plain(text: str, style: str | Style = "") -> Text:
    """Text of others, unchanged: it cannot control the terminal, and brackets are not markup."""
    return Text(printable(text), style)


def brightness_range(rows: Iterable[Brightness]) -> tuple[float, float]:
    """The smallest and the largest brightness."""
    ends = [(float(row.min()), float(row.max())) for row in rows if len(row)]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0.0, 0.0)


def with_count(count: int, noun: str, many: str = "") -> str:
    """`1 note`, `2 notes`, `3 entries`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def format_bytes(count: int) -> str:
    """Bytes in a readable unit."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
