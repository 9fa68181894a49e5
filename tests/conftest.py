"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, settings

import tests.fakes
from halo_weave.store.sqlite import SqliteDatabase
from tests.store.material import SHARED_MEMORY

assert tests.fakes  # adds the engine `scripted`

# A slow machine is no defect: nothing here is judged by the clock.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

# Files of tests are in memory, where waiting for the disk takes no time. Tests of the disk say so (stores/disk).
if os.access(SHARED_MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))


@pytest.fixture(scope="session", autouse=True)
def _api_described_once() -> Iterator[None]:
    """A server describes its API at its first request, which takes a while. All of ours have the same addresses."""
    described: dict[type[FastAPI], dict[str, Any]] = {}
    describe = FastAPI.openapi

    def once(app: FastAPI) -> dict[str, Any]:
        kind = type(app)
        if kind is FastAPI:  # somebody else's, in a test
            return describe(app)
        if app.openapi_schema is None:
            if kind not in described:
                described[kind] = deepcopy(describe(app))
            app.openapi_schema = deepcopy(described[kind])
        return app.openapi_schema

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastAPI, "openapi", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _tables_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Making the tables of a new memory takes as long as many a test. All of ours begin with a copy of an empty one."""
    empty = tmp_path_factory.mktemp("empty") / "memory.sqlite"
    SqliteDatabase(empty).close()
    open_to_write = SqliteDatabase._open_to_write

    def copied(self: SqliteDatabase) -> None:
        if not self.path.exists():
            with suppress(OSError):  # the disk of a test may be full or read-only
                _copy_memory(empty, self.path)
        open_to_write(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteDatabase, "_open_to_write", copied)
        yield


def _copy_memory(empty: Path, path: Path) -> None:
    """An empty memory with an id of its own. If another process makes one there meanwhile, that one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        shutil.copyfile(empty, made)
        with closing(sqlite3.connect(made)) as db, db:
            db.execute("UPDATE memory SET id = ?, created = ?", (uuid.uuid4().hex, time.time_ns() // 1000))
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        for left in (made, made.with_name(f"{made.name}-wal"), made.with_name(f"{made.name}-shm")):
            left.unlink(missing_ok=True)
