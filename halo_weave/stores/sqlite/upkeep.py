"""Figures, verification, backup and clearing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from halo_weave.errors import BadInput, StoreBusy, StoreError
from halo_weave.records import Finding, Stats
from halo_weave.store import Progress, silent
from halo_weave.stores.packing import moment
from halo_weave.stores.sqlite.search import SqliteSearch
from halo_weave.stores.sqlite.verify import CHECKS

STEP = 512  # pages copied at a time
KEPT = {"memory", "migrations", "settings"}
SAID = "chunks INDEXED BY chunks_by_place WHERE merged IS NULL AND aside = 0"  # the index alone answers


class SqliteUpkeep(SqliteSearch):
    def stats(self) -> Stats:
        generations, path = tuple(self.generations()), self._db.path
        files = (path, path.with_name(path.name + "-wal"))
        with self._db.reading() as db:

            def one(sql: str) -> int:
                return int(db.execute(sql).fetchone()[0])

            name, created, next_turn, next_position = db.execute(
                "SELECT id, created, next_turn, next_position FROM memory"
            ).fetchone()
            return Stats(
                id=name,
                created=moment(created),
                next_turn=next_turn,
                next_position=next_position,
                turns=one("SELECT count(*) FROM turns WHERE aside = 0"),
                chunks=one(f"SELECT count(*) FROM {SAID}"),
                tokens=one(f"SELECT coalesce(sum(span), 0) FROM {SAID}"),
                deleted_chunks=one("SELECT count(*) FROM chunks WHERE deleted IS NOT NULL"),
                aside_chunks=one("SELECT count(*) FROM chunks WHERE aside = 1"),
                windows=one("SELECT count(*) FROM windows WHERE deleted IS NULL"),
                drafts=one("SELECT count(*) FROM drafts"),
                entries=one("SELECT count(*) FROM entries"),
                notes=one("SELECT count(*) FROM notes"),
                generations=generations,
                schema=one("PRAGMA user_version"),
                bytes=sum(file.stat().st_size for file in files if file.exists()),
            )

    def verify(self, *, repair: bool = False, progress: Progress = silent) -> list[Finding]:
        findings: list[Finding] = []
        for done, (name, check) in enumerate(CHECKS.items()):
            progress(done, len(CHECKS))
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
                findings.append(Finding(name, sentence, repair and mend is not None))
        progress(len(CHECKS), len(CHECKS))
        return findings

    def backup(self, target: Path, *, progress: Progress = silent) -> None:
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
            with self._db.reading() as db, self._db.translated(target):
                db.execute("SELECT 1 FROM memory").fetchone()  # from here on this reader sees one moment
                with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                    db.backup(copy, pages=STEP, progress=lambda _, left, total: progress(total - left, total))
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole in itself
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def clear(self, *, confirm: bool = False) -> None:
        if not confirm:
            raise BadInput("Clearing a memory cannot be undone. Confirm it explicitly.")
        # An import that goes on while its windows vanish could only break off.
        with self._db.alone(patience=0), self._db.writing(durable=True) as db:
            db.execute("PRAGMA defer_foreign_keys = ON")
            tables = db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            ).fetchall()
            for (table,) in tables:
                if table not in KEPT and not table.startswith(("sqlite_", "words")):
                    db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM words")
            db.execute("UPDATE memory SET next_turn = 1, next_position = 0")
        self._db.vacuum()
