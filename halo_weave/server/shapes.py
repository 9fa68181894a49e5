"""Values of weave as they go over the wire."""

from __future__ import annotations

import base64
from codecs import IncrementalDecoder
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from halo_weave.core.tokens import Chunk, ChunkKey
from halo_weave.keepsakes.structured_memory import Branch, HeadingMatch, Remembered
from halo_weave.ports import ModelInfo
from halo_weave.records import Imported, Sleeping, Stats, WindowStats
from halo_weave.server import wire
from halo_weave.settings import Settings, usable
from halo_weave.weave import events
from halo_weave.weave.context import Context, Deletion, Gap, SeenChunk, SeenReply, Why
from halo_weave.weave.weave import Found, Preview

LAST_TEXT = 120  # characters of a window's last words in the list

Names = Mapping[str, str]  # of windows, by id


def window(stats: WindowStats, effective: Settings, generating: bool) -> wire.WindowTold:
    record = stats.window
    return wire.WindowTold(
        id=record.id,
        name=record.name,
        system_prompt=record.system_prompt,
        user_name=record.user_name,
        ai_name=record.ai_name,
        settings=usable(record.settings),
        effective=effective.as_mapping(),
        created=record.created,
        modified=max(record.modified, stats.last_said or record.modified),
        last_text=" ".join(stats.last_text.split())[:LAST_TEXT],
        live_chunks=stats.live_chunks,
        live_tokens=stats.live_tokens,
        asleep_chunks=stats.asleep_chunks,
        generating=generating,
    )


def model(info: ModelInfo) -> wire.ModelTold:
    known = {name: value for name, value in asdict(info).items() if name in wire.ModelTold.model_fields}
    return wire.ModelTold(state="ready", sentence=f"{info.name} is ready.", **known)


def embedder(status: Mapping[str, Any]) -> wire.EmbedderTold:
    known = {name: value for name, value in status.items() if name in wire.EmbedderTold.model_fields}
    return wire.EmbedderTold(**known)


def stats(values: Stats, clients: int) -> wire.StatsTold:
    told = asdict(values)
    told["schema_version"] = told.pop("schema")
    told |= {
        "next_turn": str(values.next_turn),
        "next_position": str(values.next_position),
        "clients": clients,
    }
    return wire.StatsTold(**told)


def imported(values: Imported) -> wire.ImportedTold:
    return wire.ImportedTold(**asdict(values))


# The context


def gap(value: Gap | None) -> wire.GapTold | None:
    return None if value is None else wire.GapTold(chunks=value.chunks, tokens=value.tokens)


def chunk(seen: SeenChunk) -> wire.ChunkTold:
    return wire.ChunkTold(
        key=str(seen.chunk.key),
        start=str(seen.chunk.start),
        pinned=seen.pinned,
        tokens=len(seen.chunk),
        text_pieces=seen.chunk.tokens.spelled(),
        brightness=seen.brightness.tolist(),
        peak=float(seen.brightness.max()),
        mean=float(seen.brightness.mean()),
        woken=None if seen.woken is None else dict(seen.woken),
        tool=seen.tool,
        gap=gap(seen.gap),
    )


def reply(seen: SeenReply | None, tools: Iterable[int]) -> wire.ReplyTold | None:
    if seen is None:
        return None
    marked = set(tools)
    return wire.ReplyTold(
        turn_id=str(seen.turn_id),
        position=str(seen.start),
        text_pieces=seen.tokens.spelled(ended=False),
        brightness=seen.brightness.tolist(),
        tool=[seen.start + i in marked for i in range(len(seen.tokens))],
    )


def context(
    seen: Context, names: Names, *, last_event: str, last_turn: Mapping[str, Any], tools: Iterable[int] = ()
) -> wire.ContextTold:
    turns = [
        wire.TurnTold(
            turn_id=str(turn.turn_id),
            role=turn.role,
            said=turn.said,
            window=turn.window,
            window_name=names.get(turn.window, ""),
            speaker=turn.speaker,
            cut=turn.cut,
            chunks=[chunk(one) for one in turn.chunks],
        )
        for turn in seen.turns
    ]
    rows = [one.brightness for turn in seen.turns for one in turn.chunks]
    if seen.reply is not None and len(seen.reply.brightness):
        rows.append(seen.reply.brightness)
    every = np.concatenate(rows) if rows else np.zeros(1, np.float32)
    budget = seen.budget
    return wire.ContextTold(
        window=seen.window,
        version=int(last_event.rpartition("-")[2]),
        last_event=last_event,
        size=budget.system + budget.pinned + budget.live + budget.frames,
        system_tokens=budget.system,
        budget=wire.BudgetTold(**asdict(budget)),
        brightness=wire.RangeTold(low=float(every.min()), high=float(every.max()), mean=float(every.mean())),
        turns=turns,
        tail_gap=gap(seen.tail),
        generating=reply(seen.reply, tools),
        stats=wire.ContextStats(
            asleep_chunks=seen.asleep_chunks,
            asleep_tokens=seen.asleep_tokens,
            woken_last_turn=int(last_turn.get("woken", 0)),
            kv_reuse=kv_reuse(last_turn),
            tokens_per_second=last_turn.get("tokens_per_second"),
        ),
    )


def kv_reuse(turn: Mapping[str, Any]) -> float | None:
    """The share of the prompts of a turn that did not have to be computed again."""
    kept = turn.get("reused", 0) + turn.get("restored", 0)
    whole = kept + turn.get("computed", 0)
    return round(kept / whole, 4) if whole else None


def sleeping(one: Sleeping, names: Names) -> wire.SleepingTold:
    record = one.record
    return wire.SleepingTold(
        key=str(one.key),
        role=one.key.role,
        turn_id=str(one.key.turn_id),
        start=str(record.chunk.start),
        tokens=len(record.chunk),
        peak=one.peak,
        slept=one.slept,
        reason=dict(one.reason),
        said=record.said,
        window=record.window,
        window_name=names.get(record.window, ""),
        speaker=record.speaker,
        text=record.chunk.text,
    )


def why(told: Why, names: Names) -> wire.WhyTold:
    return wire.WhyTold(
        key=str(told.key),
        text=told.text,
        tokens=told.tokens,
        live=told.live,
        pinned=told.pinned,
        peak=told.peak,
        mean=told.mean,
        said=told.said,
        window=told.window,
        window_name=names.get(told.window, ""),
        speaker=told.speaker,
        history=[
            wire.Happened(
                event=one.event,
                happened=one.happened,
                window=one.window,
                window_name=names.get(one.window or "", ""),
                detail=dict(one.detail),
            )
            for one in told.history
        ],
    )


def deletion(value: Deletion) -> wire.DeletionTold:
    return wire.DeletionTold(
        keys=[str(key) for key in value.keys],
        turns=value.turns,
        chunks=value.chunks,
        tokens=value.tokens,
        text=value.text,
    )


# Search


def hit(found: Found, names: Names) -> wire.HitTold:
    record = found.record
    return wire.HitTold(
        key=str(record.key),
        text=record.chunk.text,
        role=record.key.role,
        speaker=record.speaker,
        said=record.said,
        window=record.window,
        window_name=names.get(record.window, ""),
        similarity=found.hit.similarity,
        parts=dict(found.hit.parts),
        words=list(found.hit.words),
        live=found.live,
        tokens=len(record.chunk),
    )


def preview(value: Preview) -> wire.PreviewTold:
    plan = value.plan
    return wire.PreviewTold(
        room=plan.room,
        cost=plan.cost,
        passed_over=len(plan.passed_over),
        wakes=[
            wire.WakingTold(
                key=str(one.key),
                part=one.part.value,
                hit=str(one.hit),
                similarity=one.similarity,
                cost=one.cost,
                words=list(value.hits[one.hit].words) if one.hit in value.hits else [],
                text=value.texts.get(one.key, ""),
            )
            for one in plan.wakes
        ],
    )


# The AI's own memory


def branch(value: Branch) -> wire.BranchTold:
    return wire.BranchTold(
        heading=value.heading,
        path=value.path,
        version=value.version,
        modified=value.modified,
        children=[branch(child) for child in value.children],
    )


def entry(value: Remembered) -> wire.EntryTold:
    return wire.EntryTold(
        path=value.path,
        content=value.content,
        snapshot=[
            wire.KeptTold(
                key=None if one.key is None else str(one.key),
                text=one.text,
                tokens=one.tokens,
                similarity=one.similarity,
                said=one.said,
            )
            for one in value.snapshot
        ],
        created=value.created,
        modified=value.modified,
        accessed=value.accessed,
        version=value.version,
        ended=value.ended,
    )


def match(value: HeadingMatch) -> wire.MatchTold:
    return wire.MatchTold(
        entry=entry(value.entry), score=value.score, similarity=value.similarity, recency=value.recency
    )


# Events


def token(event: events.Token, decoder: IncrementalDecoder) -> dict[str, Any]:
    """Only whole characters: the token that ends one carries it."""
    text = decoder.decode(event.piece)
    return {"id": event.id, "position": str(event.position), "text": text, "tool": event.tool}


def brightened(event: events.Brightened) -> dict[str, Any]:
    return {"data": base64.b64encode(event.brightness.astype("<f4").tobytes()).decode()}


def woken(event: events.Woken, seen: Mapping[ChunkKey, SeenChunk], names: Names) -> dict[str, Any]:
    chunks = [
        {
            **chunk(seen[one.chunk.key]).model_dump(mode="json"),
            "part": one.part.value,
            "hit": str(one.hit),
            "similarity": one.similarity,
            "cost": one.cost,
            "words": list(one.words),
            "parts": dict(one.parts),
            "window": one.window,
            "window_name": names.get(one.window, ""),
            "said": one.said.isoformat(),
            "slept": one.slept,
        }
        for one in event.chunks
        if one.chunk.key in seen
    ]
    return {"chunks": chunks, "cost": event.cost, "room": event.room, "passed_over": event.passed_over}


def asleep(event: events.Asleep) -> dict[str, Any]:
    chunks = [
        {"key": str(one.key), "tokens": one.tokens, "brightness": one.brightness, "why": one.why.value}
        for one in event.chunks
    ]
    return {
        "chunks": chunks,
        "budget": event.budget,
        "over": event.over,
        "before_turn": event.before_turn,
    }


def heard(event: events.Heard, seen: Mapping[ChunkKey, SeenChunk]) -> dict[str, Any]:
    return {
        "turn_id": str(event.turn_id),
        "reply_turn": str(event.reply_turn),
        "said": event.said.isoformat(),
        "frames": event.frames,
        "chunks": live(event.chunks, seen),
    }


def spoken(event: events.Spoken, seen: Mapping[ChunkKey, SeenChunk]) -> dict[str, Any]:
    return {"turn_id": str(event.turn_id), "chunks": live(event.chunks, seen)}


def live(chunks: Iterable[Chunk], seen: Mapping[ChunkKey, SeenChunk]) -> list[dict[str, Any]]:
    """Another window may have deleted one of them meanwhile."""
    return [chunk(seen[one.key]).model_dump(mode="json") for one in chunks if one.key in seen]
