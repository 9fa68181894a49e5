"""Figures, verification, backup and clearing."""

from __future__ import annotations

from halo_weave.errors import BadInput, StoreBusy, StoreError
from halo_weave.records import Finding, Stats
from halo_weave.store import Progress, silent
from halo_weave.stores.packing import moment
from halo_weave.stores.sql.search import SqlSearch
from halo_weave.stores.sql.verify import CHECKS

SAID = "chunks INDEXED BY chunks_by_place WHERE merged IS NULL AND aside = 0"  # the index alone answers


class SqlUpkeep(SqlSearch):
    def stats(self, *, reader: str | None = None) -> Stats:
        """Of a `reader`: what belongs to them. The ids and the size are those of the whole memory."""
        here = "window IN (SELECT id FROM windows WHERE owner = :reader)" if reader is not None else "1 = 1"
        own = "owner = :reader" if reader is not None else "1 = 1"
        generations, schema, size = tuple(self.generations()), self._db.schema(), self._db.size()
        with self._db.reading() as db:

            def one(sql: str) -> int:
                return int(db.execute(sql, {"reader": reader}).fetchone()[0])

            name, created, next_turn, next_position = db.execute(
                "SELECT id, created, next_turn, next_position FROM memory"
            ).fetchone()
            return Stats(
                id=name,
                created=moment(created),
                next_turn=next_turn,
                next_position=next_position,
                turns=one(f"SELECT count(*) FROM turns WHERE aside = 0 AND {here}"),
                chunks=one(f"SELECT count(*) FROM {SAID} AND {here}"),
                tokens=one(f"SELECT coalesce(sum(span), 0) FROM {SAID} AND {here}"),
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

    def verify(self, *, repair: bool = False, progress: Progress = silent) -> list[Finding]:
        findings: list[Finding] = []
        checks = {**self._db.checks, **CHECKS}
        for done, (name, check) in enumerate(checks.items()):
            progress(done, len(checks))
            try:
                with self._db.reading() as db:
                    faults = list(check(db))
            except StoreBusy:
                raise
            except StoreError as error:
                return [*findings, Finding.of(error, name)]
            for sentence, mend in faults:
                if repair and mend is not None:
                    with self._db.writing(durable=True) as db:
                        mend(db)
                        db.execute("DELETE FROM images")  # what they hold may be what was mended
                findings.append(Finding(name, sentence, repair and mend is not None))
        progress(len(checks), len(checks))
        return findings

    def clear(self, *, confirm: bool = False) -> None:
        if not confirm:
            raise BadInput("Clearing a memory cannot be undone. Confirm it explicitly.")
        # An import that goes on while its windows vanish could only break off.
        with self._db.alone(patience=0), self._db.writing(durable=True) as db:
            self._db.empty(db)
            db.execute("UPDATE memory SET next_turn = 1, next_position = 0")
        self._db.vacuum()
