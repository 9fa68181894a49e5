"""Export a memory, or a part of it, in the exchange format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from halo_weave.store.access import StoreHandle, checks_access
from halo_weave.store.database import Connection
from halo_weave.store.encoding import dequantized_floats, micros, pack_sources, unpack_sources, unpack_tokens
from halo_weave.store.exchange_format import FORMAT, VERSION, base64_of, iso_time, tokens_out
from halo_weave.store.json_stream import write_object
from halo_weave.store.records import ExportFilter, Progress, silent
from halo_weave.store.rows import READABLE_WINDOWS, check_window

Element = dict[str, Any]
ORIGIN = ("source", "first_turn", "mark")

# How columns of a query are written, by name; others are written unchanged.
FORMS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("turn", "answers", "parent", "head", "start", "next_turn", "next_position"), str),
    **dict.fromkeys(("created", "modified", "accessed", "ended", "completed", "made"), iso_time),
    **dict.fromkeys(("said", "since", "slept", "happened", "deleted", "undeleted", "merged"), iso_time),
    **dict.fromkeys(
        ("settings", "content", "snapshot", "value", "detail", "woken", "reason", "tags", "inherits"),
        json.loads,
    ),
    **dict.fromkeys(("brightness", "traces", "vectors"), base64_of),
    **dict.fromkeys(("pinned", "archived", "stale", "aside", "writes"), bool),
}


class SqlExport(StoreHandle):
    @checks_access
    def export(
        self,
        write: Callable[[str], object],
        *,
        now: datetime,
        subset: ExportFilter | None = None,
        vectors: bool = False,
        progress: Progress = silent,
    ) -> None:
        """Write the memory as it is now, while others continue writing. `progress` counts turns."""
        subset = subset or ExportFilter()
        subset = replace(subset, reader=self._person(subset.reader))
        if subset.window is not None:
            self.check_reads(subset.window)
        with self._db.reading() as db:
            _choose(db, subset)
            total = db.execute("SELECT count(*) FROM chosen").fetchone()[0]
            write_object(_sections(db, now, subset, vectors, lambda done: progress(done, total)), write)


def _choose(db: Connection, subset: ExportFilter) -> None:
    """Fill temporary tables with the turns and windows to export; they are dropped with the reader's transaction."""
    db.execute("CREATE TEMP TABLE chosen (turn INTEGER PRIMARY KEY)")
    if subset.window is not None:
        check_window(db, subset.window)
    values = {
        "everything": subset.everything,
        "window": subset.window,
        "reader": subset.reader,
        "first": subset.first_turn,
        "last": subset.last_turn,
        "since": None if subset.since is None else micros(subset.since),
        "until": None if subset.until is None else micros(subset.until),
    }
    # For a person's whole memory their own chunks; for a window that is shared with them also what was resurrected there.
    whole = "SELECT o.id FROM windows o WHERE o.owner = :reader"
    among = (
        f"AND t.window IN ({READABLE_WINDOWS if subset.window else whole})"
        if subset.reader is not None
        else ""
    )
    db.execute(
        f"""INSERT INTO chosen SELECT id FROM turns t WHERE
               (:window IS NULL OR t.window = :window
                   OR EXISTS (SELECT 1 FROM chunks c JOIN live l ON l.chunk = c.number AND l.window = :window
                              WHERE c.turn = t.id)
                   OR EXISTS (SELECT 1 FROM chunks c JOIN asleep a ON a.chunk = c.number AND a.window = :window
                              WHERE c.turn = t.id))
               AND (:first IS NULL OR t.id >= :first) AND (:last IS NULL OR t.id <= :last)
               AND (:since IS NULL OR t.said >= :since) AND (:until IS NULL OR t.said <= :until)
               {among}""",
        values,
    )
    if not subset.everything:  # a question and its answer are never separated
        db.execute(
            f"""INSERT INTO chosen
               SELECT t.id FROM turns a JOIN chosen ON chosen.turn = a.id JOIN turns t ON t.id = a.answers
                   WHERE 1 = 1 {among}
               UNION SELECT t.id FROM turns t JOIN chosen ON chosen.turn = t.answers WHERE 1 = 1 {among}
               ON CONFLICT DO NOTHING""",
            values,
        )
    db.execute("CREATE TEMP TABLE shown (window TEXT PRIMARY KEY)")
    whose = "AND w.owner = :reader" if subset.reader is not None else ""
    db.execute(
        f"""INSERT INTO shown SELECT id FROM windows w WHERE :everything {whose} OR w.id = :window
               OR EXISTS (SELECT 1 FROM chosen JOIN turns t ON t.id = chosen.turn WHERE t.window = w.id)""",
        values,
    )


def _sections(
    db: Connection, now: datetime, subset: ExportFilter, vectors: bool, progress: Callable[[int], None]
) -> Iterator[tuple[str, Any]]:
    yield "format", FORMAT
    yield "version", VERSION
    header = next(_elements(db, "SELECT id, created, next_turn, next_position FROM memory"))
    yield "memory", {**header, "exported": iso_time(micros(now)), "subset": not subset.everything}
    reader = subset.reader
    several = reader is None and subset.everything
    several = several and db.execute("SELECT 1 FROM people LIMIT 1").fetchone() is not None
    if several:
        yield "people", _elements(db, "SELECT id, name, created FROM people ORDER BY name")
    # In an export of one person's memory that person is the owner.
    owner = ", nullif(owner, '') AS owner" if reader is None else ""
    yield (
        "windows",
        _owned(
            db,
            f"""SELECT id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted, head,
                   tags, pinned, archived, inherits{owner}
               FROM windows JOIN shown ON shown.window = id ORDER BY created, id""",
        ),
    )
    if several:
        shares = "SELECT owner, window, person, writes, made FROM shares ORDER BY owner, window, person"
        yield "shares", _elements(db, shares)
    yield "turns", _turns(db, _tags(db, reader), progress)
    for table, own in (("live", "h.pinned, h.since, h.woken"), ("asleep", "h.slept, h.reason")):
        yield table, _held(db, table, own, subset.window)
    yield (
        "history",
        _elements(
            db,
            """SELECT h.window, c.turn, c.chunk, h.happened, h.event, h.detail FROM history h
               JOIN chunks c ON c.number = h.chunk JOIN chosen ON chosen.turn = c.turn
               WHERE h.window IS NULL OR h.window IN (SELECT window FROM shown) ORDER BY h.id""",
        ),
    )
    if subset.everything:
        own, values = ("", ()) if reader is None else ("WHERE owner = ?1", (reader,))
        yield "entries", _entries(db, owner, own, values)
        notes = f"SELECT name, content, created, modified{owner} FROM notes {own} ORDER BY name"
        yield "notes", _owned(db, notes, values)
        settings = f"SELECT key, value, modified{owner} FROM settings {own} ORDER BY key"
        yield "settings", _owned(db, settings, values)
    if vectors:
        current = "SELECT id AS generation, model, dimension, created, completed FROM generations WHERE state = 'current'"
        yield "generations", _elements(db, current)
        vectors_of = _elements(
            db,
            """SELECT v.generation, c.turn, c.chunk, v.vector, g.dimension,
                   CASE WHEN w.chunk IS NOT NULL THEN 1 END AS stale FROM vectors v
               JOIN generations g ON g.id = v.generation AND g.state = 'current' JOIN chunks c ON c.number = v.chunk
               JOIN chosen ON chosen.turn = c.turn
               LEFT JOIN wanted w ON w.generation = v.generation AND w.chunk = v.chunk ORDER BY c.turn, c.chunk""",
        )
        yield "vectors", map(_vector, vectors_of)


def _elements(db: Connection, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Element]:
    """The rows of a query, each column under its name and converted."""
    cursor = db.stream(sql, values)
    columns = [(column[0], FORMS.get(column[0])) for column in cursor.description]
    for row in cursor:
        yield {
            name: value if value is None or form is None else form(value)
            for (name, form), value in zip(columns, row, strict=True)
        }


def _owned(db: Connection, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Element]:
    """The same rows; the owner's do not name a person."""
    for element in _elements(db, sql, values):
        if element.get("owner", "") is None:
            del element["owner"]
        yield element


def _vector(element: Element) -> Element:
    """The stored vectors, in the form of an export."""
    floats = dequantized_floats(element["vector"], element.pop("dimension"))
    return _without_nulls({**element, "vector": base64_of(floats)})


def _without_nulls(element: Element) -> Element:
    return {name: value for name, value in element.items() if value is not None}


def _tokens(element: Element, count: int) -> Element:
    """Replace the token columns of an element by the exported form."""
    return tokens_out(unpack_tokens(element.pop("ids"), element.pop("lengths"), element.pop("raw"), count))


def _tags(db: Connection, reader: str | None) -> dict[tuple[str, int], list[Element]]:
    """The tags of chunks, by turn and chunk: everybody's, or those of a reader."""
    whose = "AND g.owner = ?" if reader is not None else ""
    rows = _owned(
        db,
        f"""SELECT c.turn, c.chunk, g.tag, g.made{", nullif(g.owner, '') AS owner" if reader is None else ""}
            FROM chunk_tags g JOIN chunks c ON c.number = g.chunk JOIN chosen ON chosen.turn = c.turn
            WHERE 1 = 1 {whose} ORDER BY c.turn, c.chunk, g.tag""",
        () if reader is None else (reader,),
    )
    found: dict[tuple[str, int], list[Element]] = {}
    for row in rows:
        found.setdefault((row.pop("turn"), row.pop("chunk")), []).append(row)
    return found


def _turns(
    db: Connection, tags: Mapping[tuple[str, int], list[Element]], progress: Callable[[int], None]
) -> Iterator[Element]:
    rows = _elements(
        db,
        """SELECT t.id AS turn, t.window, t.role, t.answers, t.parent, nullif(t.aside, 0) AS aside, t.speaker, t.said, i.source, i.turn AS first_turn, i.mark,
               c.chunk, c.start, k.fingerprint AS tokenizer, c.tags, c.deleted, c.undeleted, c.merged,
               (SELECT m.chunk FROM chunks m WHERE m.number = c.merged_into) AS merged_into,
               c.span, c.ids, c.lengths, c.raw
           FROM chosen CROSS JOIN turns t CROSS JOIN chunks c CROSS JOIN tokenizers k
           LEFT JOIN imported i ON i.here = t.id
           WHERE t.id = chosen.turn AND c.turn = t.id AND k.id = c.tokenizer
           ORDER BY t.id, c.start, c.chunk""",
    )
    for done, (_, group) in enumerate(groupby(rows, key=lambda row: row["turn"]), 1):
        names = ("turn", "window", "role", "answers", "parent", "aside", "speaker", "said", *ORIGIN)
        chunks = []
        for chunk in group:
            turn = {name: chunk.pop(name) for name in names}
            chunk.update(_tokens(chunk, chunk.pop("span")))
            chunk["tagged"] = tags.get((turn["turn"], chunk["chunk"]))
            chunks.append(_without_nulls(chunk))
        source, first_turn, mark = (turn.pop(name) for name in ORIGIN)
        turn = {**_without_nulls(turn), "answers": turn["answers"], "chunks": chunks}
        if source is not None:
            turn["origin"] = {"memory": source, "turn": str(first_turn), "mark": mark}
        use = _use(db, int(turn["turn"]))
        if use is not None:
            turn["use"] = use
        yield turn
        progress(done)


def _use(db: Connection, turn: int) -> Element | None:
    """The attribution of a reply; its tokens refer to sources by index."""
    row = db.execute("SELECT rest, tokens FROM sources WHERE turn = ?", (turn,)).fetchone()
    if row is None:
        return None
    chunks = db.execute(
        """SELECT u.place, c.turn, c.chunk, u.share FROM uses u JOIN chunks c ON c.number = u.chunk
           WHERE u.turn = ? ORDER BY u.place""",
        (turn,),
    ).fetchall()
    places = {place: i for i, (place, *_) in enumerate(chunks)}
    tokens = [
        [one._replace(place=places[one.place]) for one in sources if one.place in places]
        for sources in unpack_sources(row[1])
    ]
    return {
        "chunks": [{"turn": str(turn), "chunk": chunk, "share": share} for _, turn, chunk, share in chunks],
        "nothing": row[0],
        "tokens": base64_of(pack_sources(tokens)),
    }


def _held(db: Connection, table: str, own: str, window: str | None) -> Iterator[Element]:
    """The chunks of windows, live or pruned."""
    for element in _elements(
        db,
        f"""SELECT h.window, c.turn, c.chunk, h.brightness, h.traces, {own}, k.fingerprint AS tokenizer,
                length(h.brightness) / 4 AS span, h.ids, h.lengths, h.raw
            FROM {table} h JOIN shown ON shown.window = h.window JOIN chunks c ON c.number = h.chunk
            JOIN chosen ON chosen.turn = c.turn LEFT JOIN tokenizers k ON k.id = h.tokenizer
            WHERE ?1 IS NULL OR h.window = ?1 ORDER BY h.window, h.start""",
        (window,),
    ):
        tokenizer, span = element.pop("tokenizer"), element.pop("span")
        if element["traces"] is None:
            del element["traces"]
        if element["ids"] is None:
            del element["ids"], element["lengths"], element["raw"]
        else:
            element["reading"] = {"tokenizer": tokenizer, **_tokens(element, span)}
        yield element


def _entries(db: Connection, owner: str, own: str, values: tuple[Any, ...]) -> Iterator[Element]:
    columns = f"path, version, content, snapshot, model, vectors, created, modified, accessed{owner}"
    rows = _owned(
        db,
        f"""SELECT * FROM (SELECT {columns}, NULL AS ended FROM entries {own}
            UNION ALL SELECT {columns}, ended FROM entry_versions {own}) AS every ORDER BY {"owner, " if owner else ""}path, version""",
        values,
    )

    def place(row: Element) -> tuple[str, str]:
        return row.pop("owner", ""), row.pop("path")

    for (whose, path), versions in groupby(rows, key=place):
        yield {"path": path, **({"owner": whose} if whose else {}), "versions": list(versions)}
