"""Stored embeddings by generation, and what the search index needs to follow changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.core.quantization import pack_codes, packed_size, unpack_codes
from halo_weave.core.resurrection import RecallCandidate
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, UnknownGeneration
from halo_weave.store.access import StoreHandle, checks_access, server_only
from halo_weave.store.database import Connection, Database
from halo_weave.store.encoding import maybe_moment, micros, moment
from halo_weave.store.records import (
    ChunkPlace,
    ChunksToEmbed,
    IndexChanges,
    Numbers,
    Serving,
    VectorGeneration,
    Vectors,
)
from halo_weave.store.rows import ROWS_PER_STEP, VISIBLE, json_array, pack_json, request_embedding

STREAM = 2_000  # vectors read at a time
MAX_SNAPSHOTS = 64  # snapshots that are remembered; more than the servers of one memory
NOT_ASIDE = "chunk NOT IN (SELECT number FROM chunks WHERE aside = 1)"  # a chunk aside keeps its vectors


class SqlEmbeddings(StoreHandle):
    # Vectors

    @server_only
    def generations(self) -> list[VectorGeneration]:
        """All generations with their figures. Counting takes longer in large memories."""
        return list(all_generations(self._db))

    @server_only
    def serving(self) -> Serving | None:
        """The current generation, without counting."""
        with self._db.querying() as db:
            row = db.execute(
                "SELECT id, model, dimension FROM generations WHERE state = 'current'"
            ).fetchone()
        return Serving(*row) if row else None

    @server_only
    def begin_generation(self, model: str, dimension: int, *, now: datetime) -> VectorGeneration:
        """The generation of this embedder: the current one, an incomplete one, or a new one that needs a vector for
        every chunk.

        The first generation of a memory is current at once; a later one is built beside it until `complete_generation`.
        """
        if dimension < 1:
            raise BadInput(f"An embedder with {dimension} dimensions cannot be used.")
        with self._db.writing() as db:
            row = db.execute(
                "SELECT id FROM generations WHERE model = ? AND dimension = ? AND state <> 'retired' ORDER BY state DESC",
                (model, dimension),
            ).fetchone()
            if row is None:
                first = db.execute("SELECT 1 FROM generations WHERE state = 'current'").fetchone() is None
                row = db.execute(
                    "INSERT INTO generations (model, dimension, state, created) VALUES (?, ?, ?, ?) RETURNING id",
                    (model, dimension, "current" if first else "building", micros(now)),
                ).fetchone()
                db.execute(
                    f"""INSERT INTO wanted (generation, chunk, sequence)
                        SELECT ?, c.number, n.sequence FROM chunks c JOIN changes n ON n.chunk = c.number WHERE {VISIBLE}""",
                    row,
                )
        return next(generation for generation in self.generations() if generation.id == row[0])

    @server_only
    def wanted(self, generation: int, limit: int) -> ChunksToEmbed:
        """Chunks whose vector is missing or outdated, newest first: recent text is searched soonest."""
        with self._db.reading() as db:
            rows = db.execute(
                "SELECT chunk FROM wanted WHERE generation = ? ORDER BY chunk DESC LIMIT ?",
                (generation, limit),
            ).fetchall()
            return ChunksToEmbed(np.array([row[0] for row in rows], np.int64), db.last_change())

    @server_only
    def add_vectors(
        self, generation: int, wanted: ChunksToEmbed, vectors: Vectors, counts: Sequence[int] | None = None
    ) -> int:
        """Add vectors for `wanted.numbers`, in that order: one for each chunk, or as many as `counts` says.

        A chunk deleted meanwhile gets none; one changed meanwhile stays wanted. Returns how many chunks got theirs.
        """
        each = [1] * len(wanted.numbers) if counts is None else list(counts)
        if len(each) != len(wanted.numbers) or min(each, default=1) < 1:
            raise BadInput("Every chunk needs at least one vector.")
        with self._db.writing() as db:
            dimension, model = _embedder(db, generation)
            if vectors.shape != (sum(each), dimension):
                raise BadInput(
                    f"Vectors of shape {vectors.shape} do not fit {len(wanted.numbers)} chunks of {model}, which has "
                    f"{dimension} dimensions. With another embedder, run: halo-weave reindex"
                )
            if not np.isfinite(vectors).all():
                raise BadInput("A vector with a value that is not a number cannot be stored.")
            numbers = wanted.numbers.tolist()
            present = {
                number
                for (number,) in db.execute(
                    f"SELECT c.number FROM chunks c WHERE c.number IN (SELECT value FROM json_each(?)) AND {VISIBLE}",
                    (json_array(numbers),),
                )
            }
            ends = np.cumsum(each).tolist()
            rows = [
                (number, pack_codes(vectors[end - count : end]))
                for number, count, end in zip(numbers, each, ends, strict=True)
                if number in present
            ]
            db.put_vectors(generation, dimension, rows)
            db.execute(
                """DELETE FROM wanted WHERE generation = ? AND sequence <= ?
                   AND chunk IN (SELECT value FROM json_each(?))""",
                (generation, wanted.seen, json_array(numbers)),
            )
            db.mark_changed([number for number, _ in rows])
        return len(rows)

    @server_only
    def request_embeddings(self, numbers: Iterable[int]) -> None:
        """Request new vectors of these chunks, in every generation that is current or being built."""
        with self._db.writing() as db:
            requested = [int(number) for number in numbers]
            db.mark_changed(requested)
            request_embedding(db, requested)

    @server_only
    def vectors(self, generation: int) -> Iterator[tuple[Numbers, Vectors]]:
        """All vectors of a generation in blocks, from one consistent state. Each has its chunk's number."""
        with self._db.reading() as db:
            dimension, _ = _embedder(db, generation)
            cursor = db.stream(
                f"SELECT chunk, vector FROM vectors WHERE generation = ? AND {NOT_ASIDE}", (generation,)
            )
            while rows := cursor.fetchmany(STREAM):
                yield _block(rows, dimension)

    @server_only
    def vectors_of(self, generation: int, numbers: Iterable[int]) -> tuple[Numbers, Vectors]:
        """The vectors of these chunks, with the chunks' numbers."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT chunk, vector, (SELECT dimension FROM generations WHERE id = ?1) FROM vectors
                    WHERE generation = ?1 AND chunk IN (SELECT value FROM json_each(?2)) AND {NOT_ASIDE}""",
                (generation, json_array(int(number) for number in numbers)),
            ).fetchall()
        if rows:
            return _block(rows, rows[0][2])
        with self._db.querying() as db:
            dimension, _ = _embedder(db, generation)
        return _block([], dimension)

    @server_only
    def complete_generation(self, generation: int, *, now: datetime) -> None:
        """Make this generation the current one. Refused while it lacks vectors."""
        with self._db.writing() as db:
            row = db.execute("SELECT state FROM generations WHERE id = ?", (generation,)).fetchone()
            if row is None or row[0] == "retired":
                raise BadInput(f"There is no generation {generation} of vectors that could be used.")
            missing = db.execute(
                """SELECT count(*) FROM wanted w WHERE w.generation = ?
                   AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = w.generation AND v.chunk = w.chunk)""",
                (generation,),
            ).fetchone()[0]
            if missing:
                raise BadInput(
                    f"Generation {generation} still lacks {missing} vectors. Run: halo-weave reindex"
                )
            db.execute(
                "UPDATE generations SET state = 'retired' WHERE state = 'current' AND id <> ?", (generation,)
            )
            db.execute(
                "UPDATE generations SET state = 'current', completed = ? WHERE id = ?",
                (micros(now), generation),
            )
            db.execute(
                "DELETE FROM wanted WHERE generation IN (SELECT id FROM generations WHERE state = 'retired')"
            )

    @server_only
    def delete_old_vectors(self) -> int:
        """Delete the vectors of retired generations, in small steps that let others write. Returns how many."""
        deleted = 0
        while True:
            with self._db.writing() as db:
                count = db.execute(
                    """DELETE FROM vectors WHERE id IN (SELECT v.id FROM vectors v JOIN generations g
                       ON g.id = v.generation WHERE g.state = 'retired' LIMIT ?)""",
                    (ROWS_PER_STEP,),
                ).rowcount
            if not count:
                return deleted
            deleted += count

    # What changed

    @server_only
    def sequence(self) -> int:
        """A number that grows with every change of a chunk: if it is the same, nothing changed."""
        with self._db.querying() as db:
            return db.last_change()

    @server_only
    def changes(self, since: int) -> IndexChanges:
        """Chunks that were added, changed, embedded, merged, deleted or undeleted after this sequence number."""
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT n.chunk, {VISIBLE} FROM changes n JOIN chunks c ON c.number = n.chunk
                    WHERE n.sequence > ? ORDER BY n.sequence""",
                (since,),
            ).fetchall()
            return IndexChanges(
                db.last_change(),
                np.array([number for number, present in rows if present], np.int64),
                np.array([number for number, present in rows if not present], np.int64),
            )

    # Index snapshots

    @server_only
    def record_index_snapshot(self, snapshot_id: str, generation: int) -> bool:
        """Remember that a file contains the index of a generation as of now, or earlier.

        It is remembered until the memory is cleared or repaired, or some dozens came after it. False: the generation is
        gone, so the file is useless.
        """
        schema = self._db.schema()
        with self._db.writing() as db:
            db.execute("DELETE FROM images WHERE id <= (SELECT max(id) FROM images) - ?", (MAX_SNAPSHOTS,))
            noted = db.execute(
                "INSERT INTO images (mark, schema) SELECT ?, ? FROM generations WHERE id = ?",
                (snapshot_id, schema, generation),
            )
            return noted.rowcount == 1

    @server_only
    def knows_index_snapshot(self, snapshot_id: str) -> bool:
        """Whether the file was made of this memory or of an earlier state of it. An older backup does not know it."""
        schema = self._db.schema()
        with self._db.querying() as db:
            sql = "SELECT 1 FROM images WHERE mark = ? AND schema = ?"
            return db.execute(sql, (snapshot_id, schema)).fetchone() is not None

    # The chunk table and recall

    @server_only
    def chunk_places(self, since: int = 0) -> Iterator[ChunkPlace]:
        """The places of chunks that were added or changed after this sequence number, in any order, from one consistent
        state."""
        with self._db.reading() as db:
            rows = db.stream(
                f"""SELECT c.number, c.turn, c.chunk, t.role, c.window, c.start, t.said, t.speaker, c.told
                    FROM changes n JOIN chunks c ON c.number = n.chunk JOIN turns t ON t.id = c.turn
                    WHERE n.sequence > ? AND {VISIBLE}""",
                (since,),
            )
            yield from map(ChunkPlace._make, rows)

    @checks_access
    def recall_candidates(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, RecallCandidate]:
        """What a recall plan needs of these chunks and of the openings that are resurrected with them. Live, deleted
        and merged chunks are left out."""
        if window_id:
            self.check_reads(window_id)
        with self._db.querying() as db:
            rows = db.execute(
                """WITH asked AS (
                       SELECT t.id AS turn, CAST(j.value ->> 1 AS BIGINT) AS chunk,
                           coalesce(t.answers, (SELECT max(r.id) FROM turns r WHERE r.answers = t.id AND r.aside = 0)) AS pair
                       FROM json_each(:keys) j JOIN turns t ON t.id = CAST(j.value ->> 0 AS BIGINT)),
                   family AS (
                       SELECT turn, chunk FROM asked UNION SELECT turn, 0 FROM asked UNION SELECT pair, 0 FROM asked)
                   SELECT c.turn, c.chunk, t.role, c.start,
                       coalesce(length(a.brightness) / 4, c.span), coalesce(a.peak, 0),
                       o.turn, p.role, c.window, coalesce(c.tags LIKE '%"thought"%', 1 = 0), t.said
                   FROM family f JOIN chunks c ON c.turn = f.turn AND c.chunk = f.chunk JOIN turns t ON t.id = c.turn
                   LEFT JOIN asleep a ON a.window = :window AND a.start = c.start
                   LEFT JOIN turns p ON p.id =
                       coalesce(t.answers, (SELECT max(r.id) FROM turns r WHERE r.answers = t.id AND r.aside = 0))
                   LEFT JOIN chunks o ON o.turn = p.id AND o.chunk = 0 AND o.deleted IS NULL AND o.aside = 0
                   WHERE c.deleted IS NULL AND c.merged IS NULL AND c.aside = 0 AND coalesce(a.gone, 0) = 0
                   AND NOT EXISTS (SELECT 1 FROM live l WHERE l.window = :window AND l.start = c.start)""",
                {"keys": pack_json([key[:2] for key in keys]), "window": window_id},
            ).fetchall()
        found = {}
        for turn, chunk, role, start, tokens, peak, other, other_role, window, thought, said in rows:
            if not self._may_read(window):
                continue
            key = ChunkKey(turn, chunk, Role(role))
            pair_key = None if other is None else ChunkKey(other, 0, Role(other_role))
            found[key] = RecallCandidate(
                key, tokens, peak, start, pair_key, window, bool(thought), moment(said)
            )
        return found


def all_generations(database: Database) -> tuple[VectorGeneration, ...]:
    with database.querying() as db:
        rows = db.execute(
            """SELECT id, model, dimension, state, created, completed,
                   (SELECT count(*) FROM vectors WHERE generation = g.id),
                   (SELECT count(*) FROM wanted WHERE generation = g.id)
               FROM generations g ORDER BY id"""
        ).fetchall()
    return tuple(
        VectorGeneration(
            number, model, dimension, state, moment(created), maybe_moment(completed), vectors, wanted
        )
        for number, model, dimension, state, created, completed, vectors, wanted in rows
    )


def _embedder(db: Connection, generation: int) -> tuple[int, str]:
    """The dimension and the model of a generation."""
    row = db.execute("SELECT dimension, model FROM generations WHERE id = ?", (generation,)).fetchone()
    if row is None:
        raise UnknownGeneration(
            f"There is no generation {generation} of vectors. To make them: halo-weave reindex"
        )
    return row  # type: ignore[no-any-return]


def _block(rows: Sequence[tuple[Any, ...]], dimension: int) -> tuple[Numbers, Vectors]:
    """Rows of a chunk's number and its vectors."""
    vectors = unpack_codes(b"".join([row[1] for row in rows]), dimension)
    size = packed_size(dimension)
    counts = [len(row[1]) // size for row in rows]
    return np.repeat(np.array([row[0] for row in rows], np.int64), counts), vectors
