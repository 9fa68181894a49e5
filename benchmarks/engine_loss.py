"""What the ways of reading cost in loss, on real dialogue: what left and came back, what was read ahead, keys in 8 bits."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_talk import (
    CHUNK,
    CONTINUATION,
    LATER,
    MIDDLE,
    PREFIX,
    Piece,
    dialogues,
    first_token,
    forget_asleep,
    give_way,
    leave_to_disk,
    loss,
    note,
    pieces,
    prompt,
)
from halo_weave.core.tokens import Ids
from halo_weave.engines.base import ANONYMOUS_LABELS, UNSENT_LABELS, Capture, Prompt
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.models.gguf_header import read_header
from halo_weave.models.memory_estimate import kv_bytes_per_token

WAYS = ("resident", "window", "disk", "computed")
WORDS = 20  # tokens of a message
STAMP = "[Tue 17 Nov 2026, 14:02] "


def nll(engine: LlamaEngine, folder: Path, count: int, ways: Sequence[str] = WAYS) -> dict[str, float | int]:
    """A chunk leaves, the talk goes on without it, it returns: what that costs the continuation and its own copy.

    `window`: it is there again, and the whole window comes back from disk, as after a restart or a switch.
    """
    differences: dict[str, list[float]] = {way: [] for way in ways}
    copies: dict[str, list[float]] = {way: [] for way in ways}
    exact: list[float] = []
    for number, ids in enumerate(dialogues(engine, folder, count)):
        prefix, chunk, middle, later, continuation = pieces(ids, PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION)
        again = Piece(np.arange(2 * 10**6, 2 * 10**6 + CHUNK), chunk.ids)
        whole, without = [prefix, chunk, middle, later], prompt([prefix, middle, later])
        exact.append(loss(engine, "exact", whole, continuation, "exact")[0])
        untouched, _ = loss(engine, "exact", whole, again, "exact")
        engine.forget("exact")
        first_token(engine, "loss", prompt([prefix, chunk, middle]), "splice")
        for way in ways:
            first_token(engine, "loss", without, "splice")
            if way == "window":
                first_token(engine, "loss", prompt(whole), "splice")
                give_way(engine, "loss")
            elif way == "disk":
                leave_to_disk(engine, "loss")
            elif way == "computed":
                forget_asleep(engine, "loss")
            after, read = loss(engine, "loss", whole, continuation)
            assert (read.restored >= CHUNK) == (way in ("resident", "disk")), f"{way}: {read}"
            assert (read.computed >= CONTINUATION + CHUNK) == (way == "computed"), f"{way}: {read}"
            differences[way].append(after - exact[-1])
            copies[way].append(loss(engine, "loss", whole, again)[0] - untouched)
        engine.forget("loss")
        told = ", ".join(f"{way} {differences[way][-1]:+.4f} {copies[way][-1]:+.4f}" for way in ways)
        note(f"  dialogue {number + 1}, continuation and copy: {told}")
    found: dict[str, float | int] = {"windows": len(exact), "exact": round(statistics.mean(exact), 4)}
    for way in ways:
        suffix = "" if way == "resident" else f"_{way}"
        found[f"difference{suffix}"] = round(statistics.mean(differences[way]), 4)
        found[f"copy{suffix}"] = round(statistics.mean(copies[way]), 4)
    return found


# What was read ahead


AHEAD = ("sent", "frames", "words")


def nll_ahead(engine: LlamaEngine, folder: Path, count: int) -> dict[str, dict[str, float]]:
    """What follows a message, against exact reading, when nothing and when a chunk wakes up for it.

    `sent`: nothing was read ahead. `frames`: the frame of the message was, before anybody knew what wakes up. `words`: and its
    words while they were typed. Means over the dialogues, `_worst` of a single one.
    """
    differences: dict[str, dict[str, list[float]]] = {
        case: {way: [] for way in AHEAD} for case in ("nothing_wakes", "chunk_wakes")
    }
    frames = _frames(engine)
    for number, ids in enumerate(dialogues(engine, folder, count)):
        prefix, chunk, middle, later, rest = pieces(ids, PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION)
        live = [prefix, chunk, middle, later]
        exact = None
        for case, found in differences.items():
            before = [prefix, middle, later] if case == "chunk_wakes" else live
            first_token(engine, "ahead", prompt([prefix, chunk, middle]), "splice")
            for way in AHEAD:
                first_token(engine, "ahead", prompt(before), "splice")
                message, continuation = _message(live, frames, rest)
                exact = exact or loss(engine, "exact", message, continuation, "exact")[0]
                _foresee(engine, before, live, frames, rest, way)
                asked = prompt(message)
                sent = Prompt(asked.segments, asked.next_label, int(message[-2].labels[0]))
                _, read = first_token(engine, "ahead", sent, "splice", SEEN)
                new = WORDS + len(frames[1])
                most = {"sent": len(frames[0]) + new, "frames": new + 1, "words": 1}[way]
                assert read.computed <= most, f"{way}: {read.computed} computed"
                found[way].append(loss(engine, "ahead", message, continuation)[0] - exact)
            engine.forget("ahead")
        engine.forget("exact")
        told = (f"{way} {found[way][-1]:+.4f}" for found in differences.values() for way in AHEAD)
        note(f"  dialogue {number + 1}, nothing and a chunk wakes: {', '.join(told)}")
    return {case: _told(found) for case, found in differences.items()}


# Labels that nothing had before: only what was read ahead is there already.
fresh = itertools.count(10**4, 10**3)


def _message(live: list[Piece], frames: tuple[Ids, Ids], rest: Piece) -> tuple[list[Piece], Piece]:
    """What was sent, and what follows it."""
    opening, closing = (Piece(-next(fresh) - np.arange(len(ids)), ids, "frame") for ids in frames)
    words, continuation = (
        Piece(next(fresh) + np.arange(len(ids)), ids) for ids in (rest.ids[:WORDS], rest.ids[WORDS:])
    )
    return [*live, opening, words, closing], continuation


def _foresee(
    engine: LlamaEngine,
    before: list[Piece],
    live: list[Piece],
    frames: tuple[Ids, Ids],
    rest: Piece,
    way: str,
) -> None:
    """What is read before the message is sent: after the last reply its frame, and then what the preview shows."""
    opening, closing = (
        Piece(ANONYMOUS_LABELS - 1000 * number - np.arange(len(ids)), ids, "frame")
        for number, ids in enumerate(frames)
    )
    if way != "sent":
        _read_ahead(engine, prompt([*before, opening]))
    if way == "words":
        typed = prompt([*live, opening, Piece(UNSENT_LABELS - np.arange(WORDS), rest.ids[:WORDS]), closing])
        _read_ahead(engine, Prompt(typed.segments, typed.next_label, UNSENT_LABELS))


SEEN = Capture(reading=True, reading_surprisal=True)


def _told(found: dict[str, list[float]]) -> dict[str, float]:
    means = {way: round(statistics.mean(values), 4) for way, values in found.items()}
    return means | {f"{way}_worst": _worst(values) for way, values in found.items()}


def _worst(values: list[float]) -> float:
    return round(max(abs(value) for value in values), 4)


def _read_ahead(engine: LlamaEngine, ask: Prompt) -> None:
    engine.scheduler.wait_until_idle()  # nothing is read ahead in a window that speaks
    engine.prefetch("ahead", ask, room=96, capture=SEEN if ask.read_from is not None else None)
    engine.scheduler.wait_until_idle()


def _frames(engine: LlamaEngine) -> tuple[Ids, Ids]:
    """What the template writes between an answer and a message, with a time stamp, and between it and the next answer."""
    talk = [ChatMessage("user", "a"), ChatMessage("assistant", "b"), ChatMessage("user", "c")]
    written = [piece for piece in engine.chat(talk).pieces if not piece.said]
    opening = "".join(p.text for p in written if (p.message, p.part) in ((1, "footer"), (2, "header")))
    closing = "".join(p.text for p in written if (p.message, p.part) == (2, "footer") or p.part == "prompt")
    return engine.tokenize(opening + STAMP, special=True).ids, engine.tokenize(closing, special=True).ids


# Keys in 8 bits


def read_losses(engine: LlamaEngine, folder: Path, count: int) -> list[float]:
    """Mean loss of each dialogue after its first tokens, read once."""
    losses = []
    for ids in dialogues(engine, folder, count):
        beginning, rest = pieces(ids, PREFIX, len(ids) - PREFIX)
        losses.append(loss(engine, "read", [beginning], rest, "exact")[0])
        engine.forget("read")
    return losses


def kv_types(path: Path, folder: Path, data: Path, count: int) -> dict[str, Any]:
    """Keys as q8_0: bytes of a token, the loss of reading against f16 on the same dialogues, and of surgery on top of it."""
    losses = {}
    for kind in ("f16", "q8_0"):
        with LlamaEngine(path, limits=EngineLimits(cells=folder / "cells", kv_type=kind)) as engine:
            losses[kind] = read_losses(engine, data, count)
            size = engine.config.cell_bytes
            surgery = nll(engine, data, max(1, count // 4), ("resident",)) if kind == "q8_0" else {}
    more = [small - plain for small, plain in zip(losses["q8_0"], losses["f16"], strict=True)]
    note(f"  {count} dialogues, difference of each: {', '.join(f'{one:+.4f}' for one in more)}")
    return {
        "bytes_per_token": {"f16": kv_bytes_per_token(read_header(path)), "q8_0": size},
        "dialogues": count,
        "f16": round(statistics.mean(losses["f16"]), 4),
        "difference": round(statistics.mean(more), 4),
        "difference_worst": _worst(more),
        "surgery": surgery["difference"],
    }
