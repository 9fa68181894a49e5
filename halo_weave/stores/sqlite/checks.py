"""What only SQLite can tell of its file: pages, references, and the index of FTS5."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from halo_weave.stores.sql.seam import Check, Connection, Fault


def _check_file(db: Connection) -> Iterator[Fault]:
    for (sentence,) in db.execute("PRAGMA integrity_check(20)"):
        if sentence != "ok":
            yield f"The file is damaged: {sentence}.", None
    for table, row, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield f"Row {row} of {table} points to something in {parent} that is not there.", None


def _check_word_index(db: Connection) -> Iterator[Fault]:
    """FTS5 compares its index with the words it holds. This is a write as SQLite sees it, so it has its own connection;
    where nothing may be written, the check is left out."""
    file = next(name for _, schema, name in db.execute("PRAGMA database_list") if schema == "main")
    own = sqlite3.connect(file, isolation_level=None)
    try:
        own.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT"):
            yield (
                "The word index does not fit the words it holds.",
                lambda db: db.execute("INSERT INTO words (words) VALUES ('rebuild')"),
            )
    finally:
        own.close()


CHECKS: dict[str, Check] = {"file": _check_file, "word index": _check_word_index}
