"""What is embedded of a chunk: its passages, each with the name of who said it."""

from __future__ import annotations

import re

METHOD = 2  # of making passages: vectors by another one are older. 1 put the date in front of each passage
LEAST_WORDS = 10  # a shorter sentence joins the next: alone it says too little to be found by
MOST_WORDS = 60  # a longer one is cut: one vector cannot hold it
MOST_PASSAGES = 16  # of one chunk; a chunk of more is cut into larger ones
SENTENCE = re.compile(r"(?<=[.!?\]:;])\s+|(?<=[。！？])|\n+")


def _sentences(text: str) -> list[str]:
    """Sentences and lines, long ones cut."""
    found: list[str] = []
    for sentence in SENTENCE.split(text):
        words = sentence.split()
        found.extend(" ".join(words[i : i + MOST_WORDS]) for i in range(0, len(words), MOST_WORDS))
    return found


def passages(text: str, speaker: str) -> list[str]:
    """At least one, even of an empty text. A date would take up much of the meaning of a short one."""
    text = text[: MOST_PASSAGES * MOST_WORDS * 16]  # a run without spaces has no words to count
    parts = _sentences(text)
    least = max(LEAST_WORDS, -(-len(text.split()) // MOST_PASSAGES))
    joined: list[str] = []
    for part in parts:
        if joined and len(joined[-1].split()) < least:
            joined[-1] += " " + part
        else:
            joined.append(part)
    if len(joined) > 1 and len(joined[-1].split()) < least:
        last = joined.pop()
        joined[-1] += " " + last
    who = f"{speaker}: " if speaker else ""
    return [f"{who}{part}" for part in (joined or [text.strip()])]
