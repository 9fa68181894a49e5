"""One memory in a PostgreSQL database with pgvector, shared by many processes and machines."""

from __future__ import annotations

from halo_weave.stores.postgres.connection import PostgresDatabase
from halo_weave.stores.postgres.words import PostgresSearch
from halo_weave.stores.sql.store import SqlStore


class PostgresStore(PostgresSearch, SqlStore):
    """A memory in a database."""

    _db: PostgresDatabase

    def __init__(self, address: str, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        super().__init__(PostgresDatabase(address, busy_seconds=busy_seconds, read_only=read_only))
