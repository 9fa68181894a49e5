"""Capture the attention, surprisal and events of a window for the lab: record them turn by turn on disk, and read them again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture, Floats
from halo_weave.core.pruning import PrunePlan
from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from halo_weave.core.tokens import Chunk, ChunkKey, Tokens
from halo_weave.core.working_set import LiveChunk, Recorder, ReplyPart, WorkingSet
from halo_weave.engines.base import Engine
from halo_weave.errors import BadInput
from halo_weave.settings import Settings

log = logging.getLogger(__name__)
FORMAT = 1
ABOUT, TURN = "capture.json", "turn-{:06d}.npz"
MOST_MEGABYTES = 1_000
READING, REPLY = 0, 1  # kinds of rows


class TurnRecorder(Recorder, Protocol):
    def begin(self, window: WorkingSet, settings: Settings) -> None:
        """A turn begins; from now on the working set records its changes here."""

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        """What to capture: `capture`, which the turn itself needs, and what the recording needs."""

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None:
        """The user's turn has been prefilled."""

    def row(self, row: AttentionRow | None, score_reply: bool) -> None:
        """The attention row that the next token was generated with."""

    def last_row(self, row: AttentionRow) -> None:
        """The reply has ended: the attention row of its last token."""

    def end(self) -> None:
        """The turn is over."""


DeleteRecordings = Callable[[str | None], None]  # deletes what was taken down of a window, or of all
NewRecorder = Callable[[str, Settings, Engine, Calibration], TurnRecorder]  # for a window, by its settings


class NullRecorder:
    """Records nothing."""

    def begin(self, window: WorkingSet, settings: Settings) -> None: ...

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        return capture

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None: ...
    def row(self, row: AttentionRow | None, score_reply: bool) -> None: ...
    def last_row(self, row: AttentionRow) -> None: ...
    def note(self, what: str, *values: Any) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CapturedTurn:
    """One turn of a capture."""

    steps: list[dict[str, Any]]  # the changes of the window, in order
    arrays: Mapping[str, np.ndarray[Any, Any]]

    def rows(self) -> Iterator[AttentionRow]:
        """The attention rows in the order in which they were captured."""
        ends = self.arrays["row_ends"].tolist()
        raw_ends, heads = self.arrays["raw_ends"].tolist(), int(self.arrays["heads"])
        tokens, raw, aside = self.arrays["tokens"], self.arrays["raw"], self.arrays["aside"].tolist()
        first = raw_first = 0
        for end, raw_end, (frames, system, count, peak, opening) in zip(ends, raw_ends, aside, strict=True):
            yield AttentionRow(
                tokens[first:end],
                frames,
                system,
                int(count),
                peak,
                None if np.isnan(opening) else opening,
                raw[raw_first:raw_end].reshape(heads, -1) if raw_end > raw_first else None,
            )
            first, raw_first = end, raw_end


class CaptureWriter:
    """Captures one window: collects a turn in memory and writes it when it ends, until the size limit is reached."""

    def __init__(
        self, folder: Path, calibration: Calibration, *, heads: str, most: int = MOST_MEGABYTES
    ) -> None:
        """`heads`: "mean" for the mean over all heads only, "retrieval", or "all". `most`: size limit of the capture in
        megabytes."""
        self.folder, self.calibration, self.heads, self.most = folder, calibration, heads, most
        self.sentence = ""  # why writing has stopped, if it has
        self._next = 1 + max((_number(path) for path in folder.glob("turn-*.npz")), default=0)
        self._begin()

    @classmethod
    def open(
        cls, folder: Path, window: str, engine: Engine, calibration: Calibration, *, heads: str, most: int
    ) -> CaptureWriter:
        """Begin a capture, or continue the one of the same window, model and heads. Otherwise it gets a folder of its
        own."""
        about = {
            "format": FORMAT,
            "window": window,
            "model": engine.info.name,
            "tokenizer": engine.info.tokenizer,
            "heads": heads,
            "calibration": [one._asdict() for one in calibration.heads],
            "layers": engine.info.layers,
            "heads_of_a_layer": engine.info.heads,
        }
        number, place = 1, folder
        while (place / ABOUT).exists() and not _same(place / ABOUT, about):
            number += 1
            place = folder.with_name(f"{folder.name}-{number}")
        if not (place / ABOUT).exists():
            place.mkdir(parents=True, exist_ok=True)
            (place / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        return cls(place, calibration, heads=heads, most=most)

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        """What to capture: the mean over all heads, and rows of the chosen heads, retrieval heads first."""
        whole = replace(
            capture,
            layers=None,
            heads=None,
            pairs=None,
            combine="mean",
            reply=True,
            reading=True,
            reading_surprisal=True,
        )
        pairs = list(self.calibration.pairs) if self.heads != "mean" or capture.raw else []
        if self.heads == "all":
            info = engine.info
            pairs += [pair for pair in Capture().chosen(info.layers, info.heads) if pair not in pairs]
        return replace(whole, raw=bool(pairs), raw_pairs=tuple(pairs) or None)

    # Called by the working set

    def begin(self, window: WorkingSet, settings: Settings) -> None:
        """A turn begins: record the live chunks and their brightness."""
        self._begin()
        self.note("begin", window, settings)

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None:
        """Record the attention rows of the user's turn."""
        self._rows += [(READING, row) for row in rows]
        self._steps.append(
            {"what": "read", "rows": len(rows), "turn": turn_id, "surprisal": self._store(surprisal)}
        )

    def row(self, row: AttentionRow | None, score_reply: bool) -> None:
        """Record the attention row that the next token was generated with."""
        if row is not None:
            self._rows.append((REPLY, row))
        self._steps.append({"what": "row", "known": row is not None, "score_reply": score_reply})

    def last_row(self, row: AttentionRow) -> None:
        """Record the attention row of the reply's last token."""
        self._rows.append((REPLY, row))
        self._steps.append({"what": "last_row"})

    def note(self, what: str, *values: Any) -> None:
        step: dict[str, Any] = {"what": what}
        match what:
            case "begin":
                window, settings = values
                step |= {
                    "live": [self._live(one) for one in window],
                    "settings": settings.as_mapping(),
                    "system_tokens": window.system_tokens,
                    "frame_tokens": {str(role): count for role, count in window.frame_tokens.items()},
                    "stamps": {str(turn): count for turn, count in window.annotation_tokens.items() if count},
                }
            case "add":
                step |= {
                    "live": [self._live(one) for one in values[0]],
                    "stamps": {str(turn): count for turn, count in values[1].items() if count},
                }
            case "remove":
                step |= {"keys": [str(key) for key in values[0]]}
            case "begin_reply":
                step |= dict(zip(("turn", "start", "answers"), values, strict=True))
            case "say":
                token, piece, surprisal = values
                step |= {"id": token, "piece": piece.hex(), "surprisal": float(surprisal)}
            case "end_reply":
                step |= dict(zip(("min_chunk_tokens", "max_chunk_tokens"), values, strict=False))
                step |= {"parts": [_part(one) for one in values[2]]}
            case "prune":
                step |= _plan(values[0])
        self._steps.append(step)

    def end(self) -> None:
        """The turn has ended: write it. It is written completely or not at all."""
        if self.sentence or not self._steps:
            return
        size = sum(path.stat().st_size for path in self.folder.glob("turn-*.npz"))
        if size > self.most * 1_000_000:
            self.sentence = (
                f"The capture in {self.folder} has reached {self.most} MB. Nothing more is written."
            )
            log.warning(self.sentence)
            return
        place = self.folder / TURN.format(self._next)
        partial = place.with_suffix(".partial")
        try:
            with partial.open("wb") as out:
                np.savez_compressed(out, steps=np.array(json.dumps(self._steps)), **self._packed())
            partial.replace(place)
        except OSError as error:
            self.sentence = f"The capture could not be written: {error}"
            log.warning(self.sentence)
        self._next += 1
        self._begin()

    # Inside

    def _begin(self) -> None:
        self._steps: list[dict[str, Any]] = []
        self._rows: list[tuple[int, AttentionRow]] = []
        self._floats: list[Floats] = []
        self._stored = 0

    def _store(self, values: Floats | None) -> list[int] | None:
        """Append an array to `floats`; returns its offset and shape."""
        if values is None:
            return None
        flat = np.asarray(values, np.float32).ravel()
        self._floats.append(flat)
        self._stored += len(flat)
        return [self._stored - len(flat), *np.shape(values)]

    def _live(self, one: LiveChunk) -> dict[str, Any]:
        return {
            "chunk": _chunk(one.chunk),
            "pinned": one.pinned,
            "brightness": self._store(one.brightness),
            "traces": self._store(one.traces),
        }

    def _packed(self) -> dict[str, Any]:
        rows = [row for _, row in self._rows]
        heads = next((len(row.raw) for row in rows if row.raw is not None), 0)
        none = np.zeros(0, np.float32)
        raw = [none if row.raw is None else row.raw.ravel() for row in rows]
        first = [np.nan if row.first is None else row.first for row in rows]
        aside = [(row.frames, row.system, row.aside, row.aside_peak) for row in rows]
        return {
            "kinds": np.array([kind for kind, _ in self._rows], np.int8),
            "tokens": np.concatenate([none, *(row.tokens for row in rows)]),
            "row_ends": np.cumsum([row.tokens.size for row in rows], dtype=np.int64),
            "heads": np.array(heads),
            "raw": np.concatenate([none, *raw]),
            "raw_ends": np.cumsum([one.size for one in raw], dtype=np.int64),
            "aside": np.array([(*one, opening) for one, opening in zip(aside, first, strict=True)]).reshape(
                -1, 5
            ),
            "floats": np.concatenate([none, *self._floats]),
        }


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """A capture on disk."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> StoredCapture:
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            known = about["format"]
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(f"There is no capture in {folder}.") from None
        if known != FORMAT:
            raise BadInput(f"The capture in {folder} has format {known}; this version reads {FORMAT}.")
        return cls(folder, about)

    @property
    def turns(self) -> int:
        return sum(1 for _ in self.folder.glob("turn-*.npz"))

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("turn-*.npz"))

    @property
    def calibration(self) -> Calibration:
        heads = tuple(RetrievalHead(**one) for one in self.about["calibration"])
        return Calibration(heads, "As it was when this was captured.")

    def __iter__(self) -> Iterator[CapturedTurn]:
        for path in sorted(self.folder.glob("turn-*.npz"), key=_number):
            try:
                with np.load(path) as held:
                    arrays = {name: held[name] for name in held.files}
                yield CapturedTurn(json.loads(str(arrays.pop("steps"))), arrays)
            except (OSError, ValueError, KeyError, EOFError) as error:
                raise BadInput(f"{path} cannot be read: {error}. Remove it to use the rest.") from None


def captures_of(folder: Path, window_id: str) -> list[StoredCapture]:
    """The captures of a window, oldest first."""
    return [StoredCapture.open(place) for place in _places(folder, window_id) if (place / ABOUT).exists()]


def drop_captures(folder: Path, window_id: str | None) -> None:
    """Delete the captures of a window, or of all windows. Captures contain the text of conversations."""
    for place in [folder] if window_id is None else _places(folder, window_id):
        shutil.rmtree(place, ignore_errors=True)


def live_chunks_of(turn: CapturedTurn, step: Mapping[str, Any]) -> list[LiveChunk]:
    """The live chunks of a captured step, with brightness and traces."""

    def stored(where: list[int] | None) -> Floats | None:
        if where is None:
            return None
        at, *shape = where
        values: Floats = turn.arrays["floats"][at : at + int(np.prod(shape))].reshape(shape).copy()
        return values

    found = []
    for one in step["live"]:
        brightness = stored(one["brightness"])
        assert brightness is not None
        found.append(
            LiveChunk(_read_chunk(one["chunk"]), brightness, one["pinned"], traces=stored(one["traces"]))
        )
    return found


def surprisal_of(turn: CapturedTurn, step: Mapping[str, Any]) -> Floats | None:
    if step["surprisal"] is None:
        return None
    at, count = step["surprisal"]
    values: Floats = turn.arrays["floats"][at : at + count]
    return values


def parts_of(step: Mapping[str, Any]) -> list[ReplyPart]:
    return [
        ReplyPart(one["start"], _read_tokens(one["tokens"]), one["sources"], one["tag"])
        for one in step["parts"]
    ]


def _chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "key": str(chunk.key),
        "start": chunk.start,
        "answers": chunk.answers,
        "span": chunk.span,
        "tokens": _tokens(chunk.tokens),
    }


def _read_chunk(held: Mapping[str, Any]) -> Chunk:
    tokens = _read_tokens(held["tokens"])
    return Chunk(ChunkKey.parse(held["key"]), held["start"], tokens, held["answers"], span=held["span"])


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"ids": tokens.ids.tolist(), "raw": tokens.raw.hex(), "ends": tokens.ends.tolist()}


def _read_tokens(held: Mapping[str, Any]) -> Tokens:
    return Tokens(
        np.array(held["ids"], np.int32), bytes.fromhex(held["raw"]), np.array(held["ends"], np.int32)
    )


def _part(one: ReplyPart) -> dict[str, Any]:
    return {
        "start": one.start,
        "tokens": _tokens(one.tokens),
        "sources": [int(source) for source in one.sources],
        "tag": one.tag,
    }


def _plan(plan: PrunePlan) -> dict[str, Any]:
    return {
        "budget": plan.budget,
        "goal": plan.goal,
        "current": sorted(plan.current),
        "kept": [str(key) for key in plan.kept],
        "goes": [{**asdict(chunk), "key": str(chunk.key), "why": str(chunk.why)} for chunk in plan.chunks],
    }


def _places(folder: Path, window_id: str) -> list[Path]:
    """Folders with captures of a window: one with its id, and others with a number appended."""
    there = folder.iterdir() if folder.is_dir() else ()
    own = [path for path in there if path.name == window_id or _next_folder_name(path.name, window_id)]
    return sorted(own, key=lambda path: (len(path.name), path.name))


def _next_folder_name(name: str, window_id: str) -> bool:
    return name.startswith(f"{window_id}-") and name[len(window_id) + 1 :].isdigit()


def _same(place: Path, about: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(place.read_text(encoding="utf-8")) == json.loads(json.dumps(about)))
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("turn-")
    return int(digits) if digits.isdigit() else 0
