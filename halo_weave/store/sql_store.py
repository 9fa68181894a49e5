"""SqlStore: the store's methods on SQL, statistics, verification, backup and clearing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from halo_weave.errors import BadInput, StoreBusy, StoreError
from halo_weave.store.access import checks_access, for_everyone, server_only
from halo_weave.store.attribution import SqlAttribution
from halo_weave.store.branches import SqlBranches
from halo_weave.store.chunk_edits import SqlChunkEdits, SqlTags, SqlTimestampRemoval
from halo_weave.store.database import Coordinator, Database
from halo_weave.store.embeddings import SqlEmbeddings, all_generations
from halo_weave.store.encoding import moment
from halo_weave.store.export import SqlExport
from halo_weave.store.importing import SqlImport
from halo_weave.store.people import SqlPeople
from halo_weave.store.records import (
    MemoryStats,
    Numbers,
    Progress,
    Scores,
    VectorSearch,
    VerifyFinding,
    silent,
)
from halo_weave.store.structured_memory import SqlStructuredMemory
from halo_weave.store.sync import SqlSync
from halo_weave.store.transcript import SqlTranscript
from halo_weave.store.verification import CHECKS
from halo_weave.store.windows import SqlWindows
from halo_weave.store.working_sets import SqlWorkingSets


@contextmanager
def atomic_backup(target: Path) -> Iterator[Path]:
    """Yields a temporary name to write to. When the block ends normally, the complete file gets its own name."""
    if target.is_dir():
        raise BadInput(f"{target} is a folder. Name a file for the backup.")
    if target.exists():
        raise BadInput(f"{target} exists already. Name another file for the backup.")
    if not target.parent.is_dir():
        raise BadInput(
            f"There is no folder {target.parent}. Make it first, or name another file for the backup."
        )
    partial = target.with_name(target.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


SAID_CHUNKS = (
    "chunks INDEXED BY chunks_by_place WHERE merged IS NULL AND aside = 0"  # the index alone answers
)


class SqlMaintenance(SqlEmbeddings):
    @checks_access
    def stats(self, *, reader: str | None = None) -> MemoryStats:
        """Figures; for a `reader`, of what belongs to them. Ids and size are always those of the whole memory."""
        reader = self._person(reader)
        here = "window IN (SELECT id FROM windows WHERE owner = :reader)" if reader is not None else "1 = 1"
        own = "owner = :reader" if reader is not None else "1 = 1"
        schema, size = self._db.schema(), self._db.size() if self.access is None else 0
        generations = all_generations(self._db)
        with self._db.reading() as db:

            def one(sql: str) -> int:
                return int(db.execute(sql, {"reader": reader}).fetchone()[0])

            name, created, next_turn, next_position = db.execute(
                "SELECT id, created, next_turn, next_position FROM memory"
            ).fetchone()
            return MemoryStats(
                id=name,
                created=moment(created),
                next_turn=next_turn,
                next_position=next_position,
                turns=one(f"SELECT count(*) FROM turns WHERE aside = 0 AND {here}"),
                chunks=one(f"SELECT count(*) FROM {SAID_CHUNKS} AND {here}"),
                tokens=one(f"SELECT coalesce(sum(span), 0) FROM {SAID_CHUNKS} AND {here}"),
                deleted_chunks=one(f"SELECT count(*) FROM chunks WHERE deleted IS NOT NULL AND {here}"),
                aside_chunks=one(f"SELECT count(*) FROM chunks WHERE aside = 1 AND {here}"),
                windows=one(f"SELECT count(*) FROM windows WHERE deleted IS NULL AND {own}"),
                drafts=one(f"SELECT count(*) FROM drafts WHERE {here}"),
                entries=one(f"SELECT count(*) FROM entries WHERE {own}"),
                notes=one(f"SELECT count(*) FROM notes WHERE {own}"),
                generations=generations,
                schema=schema,
                bytes=size,
            )

    @server_only
    def verify(self, *, repair: bool = False, progress: Progress = silent) -> list[VerifyFinding]:
        """Everything that is wrong with the memory; empty if nothing is."""
        findings: list[VerifyFinding] = []
        checks = {**self._db.checks, **CHECKS}
        for done, (name, check) in enumerate(checks.items()):
            progress(done, len(checks))
            try:
                with self._db.reading() as db:
                    faults = list(check(db))
            except StoreBusy:
                raise
            except StoreError as error:
                return [*findings, VerifyFinding.of(error, name)]
            for sentence, mend in faults:
                if repair and mend is not None:
                    with self._db.writing(durable=True) as db:
                        mend(db)
                        db.execute("DELETE FROM images")  # they may contain what was repaired
                findings.append(VerifyFinding(name, sentence, repair and mend is not None))
        progress(len(checks), len(checks))
        return findings

    @server_only
    def clear(self, *, confirm: bool = False) -> None:
        """Delete all that was said and saved, and start ids again; settings stay."""
        if not confirm:
            raise BadInput("Clearing a memory cannot be undone. Confirm it explicitly.")
        # Otherwise a running import would fail when its windows disappear.
        with self._db.import_lock(timeout=0), self._db.writing(durable=True) as db:
            self._db.empty(db)
            db.execute("UPDATE memory SET next_turn = 1, next_position = 0")
        self._db.vacuum()


class SqlStore(
    SqlTranscript,
    SqlBranches,
    SqlAttribution,
    SqlChunkEdits,
    SqlTimestampRemoval,
    SqlWindows,
    SqlWorkingSets,
    SqlStructuredMemory,
    SqlTags,
    SqlPeople,
    SqlMaintenance,
    SqlExport,
    SqlImport,
    SqlSync,
):
    """All that was ever said, the state of each window, and the indexes to find it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    @checks_access
    def place(self) -> str:
        """Where the memory is, as its user knows it: a path or an address."""
        return self._db.place if self.access is None else ""

    @property
    @for_everyone
    def fleet(self) -> Coordinator:
        return self._db.fleet

    @property
    @for_everyone
    def folder(self) -> Path:
        """The folder for temporary files."""
        return self._db.folder

    @for_everyone
    def memory_id(self) -> str:
        """The random id of this memory."""
        with self._db.querying() as db:
            return str(db.execute("SELECT id FROM memory").fetchone()[0])

    @for_everyone
    def version(self) -> int:
        """Changes whenever anything was committed, by any thread or process."""
        return self._db.version()

    @server_only
    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What each database does in its own way

    @server_only
    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        """For each term the numbers of the chunks that contain it and their BM25 (higher is better), in any order.

        Both are empty if more than `limit` chunks of all windows contain the term. `window`: only chunks of this
        window.
        """
        raise NotImplementedError

    @server_only
    def vector_search(self, generation: int) -> VectorSearch | None:
        """The store's own index over these vectors; None if it has none: then the process loads them itself."""
        raise NotImplementedError

    @server_only
    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        """Copy the memory as it is now, while others continue writing. The target is never incomplete."""
        raise NotImplementedError
