"""Commands that search and explain: search, tag, reindex, why, calibrate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from halo_weave.app import calibrate_engine, open_engine, open_local_embedder
from halo_weave.chat.recall_plan import is_related_hit, search_and_plan_recall, tag_filter
from halo_weave.chat.runtime import effective_settings
from halo_weave.chat.windows import checked_tags, find_window
from halo_weave.cli.app import Data, Json, Model, app, embedder_of, folder_of, options_of, progress_bar
from halo_weave.cli.store import (
    counted_progress,
    now,
    open_to_change,
    open_to_read,
    print_json,
    print_result,
    to_json,
)
from halo_weave.cli.terminal import plain, with_count
from halo_weave.config import configured_settings, read_config
from halo_weave.core.attribution import MIN_SHARE
from halo_weave.core.resurrection import RecallHit, RecallPlan
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import SearchFilter
from halo_weave.errors import BadInput
from halo_weave.models import catalogue
from halo_weave.paths import index_snapshot_file
from halo_weave.search.embedding_worker import reindex as embed_anew
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.state_file import remember_embedder
from halo_weave.store.records import OWNER, PUBLIC_EVENT_KINDS, StoredChunk
from halo_weave.store.sql_store import SqlStore

EmbedderFile = Annotated[
    str | None,
    typer.Option("--embedder", help="An embedding model, any GGUF; off for words alone. Default: MiniLM."),
]


@contextmanager
def open_search(
    store: SqlStore, embedder: str | None, *, writes: bool = False, snapshot_path: Path | None = None
) -> Iterator[MemorySearch]:
    """Open search for one command: wait for the embedder, but not until everything is embedded."""
    chosen = embedder_of(read_config(), embedder, store.folder)
    opened = None if chosen == "off" else lambda: open_local_embedder(chosen)
    recall = MemorySearch(store, opened, writes=writes, snapshot_path=snapshot_path)
    try:
        recall.embedder()
        yield recall
    finally:
        recall.close()


@app.command()
def search(
    words: Annotated[str, typer.Argument(help="A question, or words of what was said.")],
    data: Data = None,
    window: Annotated[
        str | None, typer.Option("--window", help="Only what was said in this window: its name or id.")
    ] = None,
    role: Annotated[Role | None, typer.Option("--role", help="Only what was said in this role.")] = None,
    speaker: Annotated[str, typer.Option("--speaker", help="Only what someone of this name said.")] = "",
    since: Annotated[
        datetime | None, typer.Option("--since", help="Only what was said on this day or later.")
    ] = None,
    before: Annotated[
        datetime | None, typer.Option("--before", help="Only what was said before this day.")
    ] = None,
    tag: Annotated[
        str, typer.Option("--tag", help="Only what has this tag, or was said in a window that has it.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many chunks.")] = 10,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", min=0, help="What would be resurrected within this many tokens, pairs included."
        ),
    ] = None,
    embedder: EmbedderFile = None,
    as_json: Json = False,
) -> None:
    """Find what was said, by meaning and by words."""
    only = SearchFilter(role, speaker, since and since.astimezone(), before and before.astimezone())
    with open_to_read(data) as store:
        if window is not None:
            window = find_window(store.windows(), window).id
            only = only.within(frozenset({window}))
        if tag:
            only = only.with_tag(tag_filter(store, [tag]))
        snapshot_path = index_snapshot_file(folder_of(read_config(), data))
        with open_search(store, embedder, snapshot_path=snapshot_path) as recall:
            budget_json: dict[str, Any] = {}
            if budget is None:
                settings = _settings(store, window)
                hits = recall.search(
                    words,
                    window=window,
                    limit=limit,
                    now=now(),
                    user_weight=settings.user_weight,
                    only=only,
                )
                scored = {hit.key: hit for hit in hits if is_related_hit(hit)}
                shown = dict.fromkeys(scored, "")
            else:
                scored, plan = _would_resurrect(store, recall, words, budget, window, only)
                budget_json = {"budget": budget, "cost": plan.cost}
                shown = {planned.key: str(planned.reason) for planned in plan.chunks}
            status = recall.status()
        records = {record.key: record for record in store.chunks_by_key(shown)}
        tags = store.chunk_tags(shown)
        names = store.window_names()
    shown_hits = [
        _described(record, names.get(record.window, ""), scored.get(key), part, tags.get(key, ()))
        for key, part in shown.items()
        if (record := records.get(key))
    ]
    if as_json:
        print_json({"query": words, **budget_json, "embedder": status["state"], "hits": shown_hits})
        return
    if status["sentence"]:
        typer.echo(status["sentence"], err=True)
    if not shown_hits:
        typer.echo("Nothing was found.")
    console = Console()
    for shown_hit in shown_hits:
        said = datetime.fromisoformat(shown_hit["said"]).astimezone()
        head = plain(
            f"{shown_hit['key']}  {shown_hit['speaker']}  {said:%Y-%m-%d %H:%M}  {shown_hit['window_name']}",
            "bold",
        )
        if shown_hit["similarity"] is not None:
            parts = ", ".join(f"{name} {value:.2f}" for name, value in shown_hit["parts"].items())
            head.append(f"  {shown_hit['similarity']:.2f} ({parts})", style="dim")
        if shown_hit["tags"]:
            head.append(f"  {', '.join(shown_hit['tags'])}", style="italic")
        if shown_hit["part"] not in ("", "hit"):
            head.append(f"  {shown_hit['part']}", style="dim")
        console.print(head)
        console.print(plain(shown_hit["text"]))
    if budget is not None:
        typer.echo(f"{budget_json['cost']} of {with_count(budget, 'token')}", err=True)


def _settings(store: SqlStore, window: str | None) -> Settings:
    """The settings of the memory, or of a window in it."""
    record = store.window(window) if window else None
    return effective_settings(store, record, configured_settings(read_config()))


def _would_resurrect(
    store: SqlStore, recall: MemorySearch, words: str, budget: int, window: str | None, only: SearchFilter
) -> tuple[dict[ChunkKey, RecallHit], RecallPlan]:
    """Plan recall as in a turn: by the stored settings, and only hits that are similar enough. In a window, live chunks
    are left out."""
    record = store.window(window) if window else None
    hits, plan, *_ = search_and_plan_recall(
        words,
        budget,
        _settings(store, window),
        store=store,
        search=recall.search,
        now=now(),
        window_id=window or "",
        live={one.key for one in store.live(window)} if window else (),
        only=only,
        owner=record.owner if record else OWNER,
    )
    return hits, plan


def _described(
    record: StoredChunk, name: str, hit: RecallHit | None, part: str, tags: Sequence[str]
) -> dict[str, Any]:
    return {
        "key": str(record.key),
        "window": record.window,
        "window_name": name,
        "speaker": record.speaker,
        "said": record.said.isoformat(),
        "tokens": len(record.chunk),
        "part": part,
        "similarity": hit.similarity if hit else None,
        "parts": dict(hit.parts) if hit else {},
        "words": list(hit.words) if hit else [],
        "tags": list(tags),
        "text": record.chunk.text,
    }


@app.command()
def tag(
    key: Annotated[str, typer.Argument(help="A chunk, such as 12.0.user: search shows its key.")],
    data: Data = None,
    tags: Annotated[
        str | None, typer.Option("--tags", help="Its new tags, separated by commas; empty for none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tag a chunk. Without --tags: show its tags."""
    chunk = ChunkKey.parse(key)
    with open_to_read(data) if tags is None else open_to_change(data) as store:
        store.chunk(chunk)
        if tags is not None:
            store.tag_chunk(chunk, checked_tags([tag for tag in tags.split(",") if tag.strip()]), now=now())
        stored = store.chunk_tags([chunk]).get(chunk, ())
    has = f"tagged {', '.join(stored)}" if stored else "no tags"
    print_result(as_json, {"key": str(chunk), "tags": list(stored)}, f"{chunk}: {has}")


@app.command()
def reindex(data: Data = None, embedder: EmbedderFile = None, as_json: Json = False) -> None:
    """Embed all of memory again, also with another embedder. It can be stopped and run again."""
    config = read_config()
    folder = folder_of(config, data)
    file = embedder_of(config, embedder, folder)
    if file == "off":
        raise BadInput("Nothing can be embedded without an embedder: it is off. Name one with --embedder.")
    if file is None:
        with counted_progress("Getting the embedder") as getting:
            catalogue.ensure(catalogue.DEFAULT_EMBEDDER, lambda what, done, total: getting(done, total))
    with (
        open_to_change(data) as store,
        open_local_embedder(file) as made,
        counted_progress("Embedding") as embedding,
    ):
        generation = embed_anew(store, made, now=now, progress=embedding)
    if embedder:
        remember_embedder(folder, embedder)
    are = "is" if generation.vectors == 1 else "are"
    sentence = f"{with_count(generation.vectors, 'chunk')} {are} embedded by {generation.model}."
    print_result(as_json, generation, sentence)


@app.command()
def calibrate(data: Data = None, model: Model = None, as_json: Json = False) -> None:
    """Recalibrate the model's retrieval heads."""
    options = options_of(read_config(), data=data, model=model, embedder="off")
    with progress_bar() as report, closing(open_engine(options, report)) as engine:
        calibration, name = calibrate_engine(options, engine, report, force=True), engine.info.name
    if as_json:
        heads = [head._asdict() for head in calibration.heads]
        print_json({"model": name, "message": calibration.sentence, "heads": heads})
        return
    console = Console(highlight=False)
    console.print(plain(f"{name}: {calibration.sentence}"))
    if calibration.heads:
        table = Table(box=SIMPLE)
        for title in ("layer", "head", "copying", "needles", "weight"):
            table.add_column(title, justify="right")
        for head in calibration.heads:
            table.add_row(
                str(head.layer),
                str(head.head),
                f"{head.copying:.2f}",
                f"{head.needles:.2f}",
                f"{head.weight:.2f}",
            )
        console.print(table)


@app.command()
def why(
    key: Annotated[str, typer.Argument(help="The key of a chunk, such as 12.0.user.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show the history of a chunk, which replies used it, and what its own reply used."""
    named = ChunkKey.parse(key)
    with open_to_read(data) as store:
        record, history = store.chunk(named), store.history(key=named)
        uses, use = store.used_in(named), store.use_of(named.turn_id)
        names = store.window_names()
        sources = {
            one.key: one for one in store.chunks_by_key([one.key for one in use.chunks] if use else [])
        }
    if as_json:
        shares = [{"key": str(source.key), "share": source.share} for source in use.chunks] if use else []
        print_json(
            {
                "key": str(record.key),
                "text": record.chunk.text,
                "window": record.window,
                "speaker": record.speaker,
                "said": record.said,
                "history": [
                    {
                        **to_json(event),
                        "key": str(event.key),
                        "event": PUBLIC_EVENT_KINDS.get(event.event, event.event),
                    }
                    for event in history
                ],
                "used_by": [{**to_json(used), "turn_id": str(used.turn_id)} for used in uses],
                "attribution": {"chunks": shares, "nothing": use.nothing} if use else None,
            }
        )
        return
    console = Console(highlight=False)
    said = record.said.astimezone()
    console.print(
        plain(
            f"{record.key}  {record.speaker}  {said:%Y-%m-%d %H:%M}  {names.get(record.window, '')}", "bold"
        )
    )
    console.print(plain(record.chunk.text))
    for event in history:
        where = f" in {names.get(event.window, '')}" if event.window else ""
        reason = event.detail.get("why") or event.detail.get("by") or ""
        console.print(
            plain(
                f"{event.happened.astimezone():%Y-%m-%d %H:%M}  {PUBLIC_EVENT_KINDS.get(event.event, event.event)}{where}  {reason}".rstrip()
            )
        )
    for used in uses:
        where = names.get(used.window, "")
        console.print(plain(f"{used.share:4.0%} of the reply in turn {used.turn_id}, {where}, came from it."))
    if use:
        console.print(plain("Its reply took:", "bold"))
        for source in use.chunks:
            if source.share >= MIN_SHARE:
                text = " ".join(sources[source.key].chunk.text.split())[:80] if source.key in sources else ""
                console.print(plain(f"{source.share:4.0%} from {source.key}  {text}"))
        console.print(plain(f"{use.nothing:4.0%} from nothing in particular, or from itself"))
    elif named.role is Role.ASSISTANT:
        console.print(plain("It is not known where this reply came from."))
