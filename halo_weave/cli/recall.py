"""Commands that find: search, reindex."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from halo_weave.cli.app import app
from halo_weave.cli.glow import counted, plain
from halo_weave.cli.memory import answer, bar, now, opened_to_change, opened_to_read, say
from halo_weave.cli.starting import Data, Json, embedder_of, folder_of
from halo_weave.config import configured_settings, read_config
from halo_weave.core.resurrection import RecallHit, ResurrectionPlan
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.embedders.standard import open_embedder
from halo_weave.errors import BadInput
from halo_weave.index.recall import Recall
from halo_weave.index.reindex import reindex as embed_anew
from halo_weave.lastrun import remember_embedder
from halo_weave.llama import catalogue
from halo_weave.places import akin_folder, image_file
from halo_weave.ports import Only
from halo_weave.records import OWNER, ChunkRecord
from halo_weave.settings import Settings
from halo_weave.store import Store
from halo_weave.weave.effective import stored_settings
from halo_weave.weave.waking import plan_waking, stands_out, tagged
from halo_weave.weave.windows import checked_tags, find_window

EmbedderFile = Annotated[
    str | None,
    typer.Option("--embedder", help="An embedding model, any GGUF; off for words alone. Default: MiniLM."),
]


@contextmanager
def recalling(
    store: Store, embedder: str | None, *, writes: bool = False, image: Path | None = None
) -> Iterator[Recall]:
    """Search for one command: it waits until the embedder is open, but not until everything is embedded."""
    chosen = embedder_of(read_config(), embedder, store.folder)
    opened = None if chosen == "off" else lambda: open_embedder(chosen)
    recall = Recall(store, opened, writes=writes, akin=akin_folder(), image=image)
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
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many chunks.")] = 10,
    budget: Annotated[
        int | None,
        typer.Option("--budget", min=0, help="What would wake up within so many tokens, pairs included."),
    ] = None,
    embedder: EmbedderFile = None,
    as_json: Json = False,
) -> None:
    """Find what was said, by meaning and by words."""
    only = Only(role, speaker, since and since.astimezone(), before and before.astimezone())
    with opened_to_read(data) as store:
        if window is not None:
            window = find_window(store.windows(), window).id
            only = only.within(frozenset({window}))
        if tag:
            only = only.with_tag(tagged(store, [tag]))
        image = image_file(folder_of(read_config(), data))
        with recalling(store, embedder, image=image) as recall:
            told: dict[str, Any] = {}
            if budget is None:
                settings = _settings(store, window)
                found = recall.search(
                    words,
                    window=window,
                    limit=limit,
                    now=now(),
                    user_weight=settings.user_weight,
                    mmr_lambda=settings.mmr_lambda,
                    only=only,
                )
                scored = {hit.key: hit for hit in found if stands_out(hit)}
                shown = dict.fromkeys(scored, "")
            else:
                scored, plan = _would_wake(store, recall, words, budget, window, only)
                told = {"budget": budget, "cost": plan.cost}
                shown = {waking.key: str(waking.part) for waking in plan.wakes}
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
        say({"query": words, **told, "embedder": status["state"], "hits": shown_hits})
        return
    if status["sentence"]:
        typer.echo(status["sentence"], err=True)
    if not shown_hits:
        typer.echo("Nothing was found.")
    console = Console()
    for one in shown_hits:
        said = datetime.fromisoformat(one["said"]).astimezone()
        head = plain(f"{one['key']}  {one['speaker']}  {said:%Y-%m-%d %H:%M}  {one['window_name']}", "bold")
        if one["similarity"] is not None:
            parts = ", ".join(f"{name} {value:.2f}" for name, value in one["parts"].items())
            head.append(f"  {one['similarity']:.2f} ({parts})", style="dim")
        if one["tags"]:
            head.append(f"  {', '.join(one['tags'])}", style="italic")
        if one["part"] not in ("", "hit"):
            head.append(f"  {one['part']}", style="dim")
        console.print(head)
        console.print(plain(one["text"]))
    if budget is not None:
        typer.echo(f"{told['cost']} of {counted(budget, 'token')}", err=True)


def _settings(store: Store, window: str | None) -> Settings:
    """Those of the memory, or of a window in it."""
    record = store.window(window) if window else None
    return stored_settings(store, record, configured_settings(read_config()))


def _would_wake(
    store: Store, recall: Recall, words: str, budget: int, window: str | None, only: Only
) -> tuple[dict[ChunkKey, RecallHit], ResurrectionPlan]:
    """As in a turn: by the stored settings, and only what is near enough. In a window, what is live there stays out."""
    record = store.window(window) if window else None
    hits, plan, _ = plan_waking(
        words,
        budget,
        _settings(store, window),
        store=store,
        recall=recall,
        now=now(),
        window_id=window or "",
        live={one.key for one in store.live(window)} if window else (),
        only=only,
        owner=record.owner if record else OWNER,
    )
    return hits, plan


def _described(
    record: ChunkRecord, name: str, hit: RecallHit | None, part: str, tags: Sequence[str]
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
    key: Annotated[str, typer.Argument(help="A chunk, such as 12.0.user: search tells its key.")],
    data: Data = None,
    tags: Annotated[
        str | None, typer.Option("--tags", help="Its tags from now on, separated by commas; empty for none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tag a chunk. Without --tags: the tags that it has."""
    chunk = ChunkKey.parse(key)
    with opened_to_read(data) if tags is None else opened_to_change(data) as store:
        store.chunk(chunk)
        if tags is not None:
            given = checked_tags([one for one in tags.split(",") if one.strip()])
            store.tag_chunk(chunk, given, now=now())
        found = store.chunk_tags([chunk]).get(chunk, ())
    has = f"tagged {', '.join(found)}" if found else "no tags"
    answer(as_json, {"key": str(chunk), "tags": list(found)}, f"{chunk}: {has}")


@app.command()
def reindex(data: Data = None, embedder: EmbedderFile = None, as_json: Json = False) -> None:
    """Embed all of memory, anew if the embedder is another one. It can be stopped and run again."""
    config = read_config()
    folder = folder_of(config, data)
    file = embedder_of(config, embedder, folder)
    if file == "off":
        raise BadInput("Nothing can be embedded without an embedder: it is off. Name one with --embedder.")
    if file is None:
        with bar("Getting the embedder") as getting:
            catalogue.ensure(catalogue.EMBEDDER, lambda what, done, total: getting(done, total))
    with opened_to_change(data) as store, open_embedder(file) as made, bar("Embedding") as embedding:
        generation = embed_anew(store, made, now=now, progress=embedding)
    if embedder:
        remember_embedder(folder, embedder)
    are = "is" if generation.vectors == 1 else "are"
    sentence = f"{counted(generation.vectors, 'chunk')} {are} embedded by {generation.model}."
    answer(as_json, generation, sentence)
