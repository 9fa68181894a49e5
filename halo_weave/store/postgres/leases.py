"""Leases of windows, and notifications between the servers that share one PostgreSQL memory."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from halo_weave.errors import HaloWeaveError, LeaseLost, WindowBusy
from halo_weave.store.database import RemoteChange, is_running, this_process

if TYPE_CHECKING:
    from halo_weave.store.postgres.database import PostgresDatabase

log = logging.getLogger(__name__)
Raw = psycopg.Connection[Any]
LEASE_SECONDS = 15.0  # seconds after which a lease that is not renewed ends
POLL_SECONDS = 0.5  # seconds between two polls of the notifications
NEWS_KEPT_SECONDS = 3600.0  # seconds for which notifications are kept
CLEANUP_EVERY = 1_000  # notifications after which old ones are deleted
CHANNEL = "halo_weave"
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_INSERT_NEWS = f"""INSERT INTO feed ("window", event, origin, told) SELECT one, %s, %s, {_NOW} FROM unnest(%s::text[]) AS one"""
_NOTIFY = "SELECT pg_notify(%s, current_schema())"


class PostgresFleet:
    """Leases are rows: the holder, when it expires by the database's clock, and a number that grows with each holder.

    Each transaction that writes a window compares the number. All writers of a memory take turns, also those that take
    a lease, so that no transaction of an earlier holder is running when a new one begins.
    """

    def __init__(self, db: PostgresDatabase) -> None:
        self._db = db
        self.term = LEASE_SECONDS
        self.owner = f"{this_process()} {secrets.token_hex(4)}"
        self._held: dict[str, int] = {}
        self._hear: Callable[[RemoteChange], object] | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._ending = threading.Event()
        self._seen = 0  # the number of the last notification
        self._read = self._renewed = 0.0  # by the monotonic clock: when that was last done

    # Leases

    @contextmanager
    def lease(self, window_id: str) -> Iterator[None]:
        self._held[window_id] = self._take(window_id)
        self._start()
        try:
            yield
        finally:
            token = self._held.pop(window_id)
            with suppress(HaloWeaveError), self._db.writing() as db:  # otherwise it expires
                # A lease that is not ours any more is left unchanged; others are notified nevertheless.
                db.raw.execute(
                    'UPDATE leases SET owner = NULL WHERE "window" = %s AND token = %s AND owner = %s',
                    (window_id, token, self.owner),
                )
                db.raw.execute(_INSERT_NEWS, ("changed", self.owner, [window_id]))
                db.raw.execute(_NOTIFY, (CHANNEL,))

    def _take(self, window_id: str) -> int:
        given = {"window": window_id, "owner": self.owner, "term": int(self.term * 1e6)}
        take = f"""INSERT INTO leases ("window", token, owner, expires)
                   VALUES (%(window)s, 1, %(owner)s, {_NOW} + %(term)s)
                   ON CONFLICT ("window") DO UPDATE
                   SET token = leases.token + 1, owner = excluded.owner, expires = excluded.expires"""
        free = f"WHERE leases.owner IS NULL OR leases.owner = excluded.owner OR leases.expires <= {_NOW}"
        with self._db.querying() as db:  # a refused caller does not make writers wait
            owner, left = self._holder(db.raw, window_id)
        if self._writes(owner, left):
            raise WindowBusy(_busy(owner, left))
        with self._db.writing() as db:
            row = db.raw.execute(f"{take} {free} RETURNING token", given).fetchone()
            if row is None:
                owner, left = self._holder(db.raw, window_id)
                if is_running(owner) is not False:
                    raise WindowBusy(_busy(owner, left))
                row = db.raw.execute(f"{take} RETURNING token", given).fetchone()
            assert row is not None
            return int(row[0])

    def _holder(self, raw: Raw, window_id: str) -> tuple[str, float]:
        row = raw.execute(
            f'SELECT owner, (expires - {_NOW}) / 1e6::float8 FROM leases WHERE "window" = %s', (window_id,)
        ).fetchone()
        return (row[0] or "", row[1]) if row else ("", 0.0)

    def _writes(self, owner: str, left: float) -> bool:
        """Whether a holder is another process that still writes."""
        return owner not in ("", self.owner) and left > 0 and is_running(owner) is not False

    def written(self, window_id: str) -> bool:
        with self._db.querying() as db:
            return self._writes(*self._holder(db.raw, window_id))

    def check(self, raw: Raw, window_id: str) -> None:
        """Within a transaction: check that this process may write the window. Without a lease, take it from a process
        that lost it."""
        row = raw.execute(
            f'SELECT token, owner, (expires - {_NOW}) / 1e6::float8 FROM leases WHERE "window" = %s',
            (window_id,),
        ).fetchone()
        token, owner, left = row or (0, None, 0.0)
        held = self._held.get(window_id)
        if held is not None:
            if (token, owner) != (held, self.owner):  # a crash of the database may have given a number twice
                raise LeaseLost(
                    "This server did not answer for a while, or what may be read here has changed, so another one has "
                    "taken this window over. What was shown by then is kept. Load the window again."
                )
        elif owner is not None and owner != self.owner:
            if left > 0 and is_running(owner) is not False:
                raise WindowBusy(_busy(owner, left))
            raw.execute('UPDATE leases SET owner = NULL, token = token + 1 WHERE "window" = %s', (window_id,))

    def fence(self, raw: Raw, windows: Sequence[str]) -> None:
        raw.execute(
            'UPDATE leases SET owner = NULL, token = token + 1 WHERE "window" = ANY(%s) AND owner <> %s',
            (list(windows), self.owner),
        )

    def writes(self, raw: Raw, owner: str, window_id: str) -> bool | None:
        """Whether a process still writes a window; None: unknown."""
        row = raw.execute(
            f'SELECT owner, expires > {_NOW} FROM leases WHERE "window" = %s', (window_id,)
        ).fetchone()
        if row is None:
            return is_running(owner)
        return bool(row[1]) and str(row[0] or "").startswith(owner) and is_running(owner) is not False

    def stop(self, window_id: str) -> bool:
        with self._db.writing() as db:
            request = db.raw.execute(
                f"""INSERT INTO feed ("window", event, token, origin, told)
                    SELECT "window", 'stop', token, %s, {_NOW} FROM leases
                    WHERE "window" = %s AND owner <> %s AND expires > {_NOW} RETURNING token""",
                (self.owner, window_id, self.owner),
            ).fetchone()
            db.raw.execute(_NOTIFY, (CHANNEL,))
        return request is not None

    # News

    def tell(
        self, windows: Iterable[str], event: Literal["changed", "deleted", "erased"] = "changed"
    ) -> None:
        if each := list(windows):
            with suppress(HaloWeaveError), self._db.writing() as db:
                db.raw.execute(_INSERT_NEWS, (event, self.owner, each))

    def listen(self, hear: Callable[[RemoteChange], object]) -> None:
        with (
            self._db.reading() as db
        ):  # notifications from now on are received, however long the thread takes to start
            self._seen, self._read = _last(db.raw), time.monotonic()
        self._hear = hear
        self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="halo-weave-fleet", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread, which ends within a moment."""
        self._ending.set()

    def _run(self) -> None:
        """Read notifications by number, continuing where the last connection ended, so that none is missed."""
        while not self._ending.is_set():
            try:
                with self._db.connected() as raw:
                    raw.execute(f"LISTEN {CHANNEL}")
                    self._catch_up(raw)
                    while not self._ending.is_set():
                        self._keep(raw)
                        for _ in raw.notifies(timeout=min(POLL_SECONDS, self.term / 3), stop_after=1):
                            pass
            except (psycopg.Error, HaloWeaveError) as error:
                log.info("News of other servers are missed for now: %s", error)
                self._ending.wait(POLL_SECONDS)

    def _catch_up(self, raw: Raw) -> None:
        """The number to continue from. After a long time without a connection, earlier notifications may be deleted."""
        if self._read and time.monotonic() - self._read < NEWS_KEPT_SECONDS / 2:
            return
        self._seen = _last(raw)
        raw.execute(f"DELETE FROM feed WHERE told < {_NOW} - %s", (int(NEWS_KEPT_SECONDS * 1e6),))
        if self._read:
            self._notify(RemoteChange(None, "changed"), None, "")

    def _keep(self, raw: Raw) -> None:
        """Renew the leases, and read notifications."""
        if time.monotonic() - self._renewed > self.term / 3:
            self._renew(raw)
            self._renewed = time.monotonic()
        rows = raw.execute(
            'SELECT number, "window", event, token, origin FROM feed WHERE number > %s ORDER BY number',
            (self._seen,),
        ).fetchall()
        self._read = time.monotonic()
        for number, window_id, event, token, origin in rows:
            self._seen = number
            self._notify(RemoteChange(window_id, event), token, origin)
            if number % CLEANUP_EVERY == 0:
                raw.execute(f"DELETE FROM feed WHERE told < {_NOW} - %s", (int(NEWS_KEPT_SECONDS * 1e6),))

    def _notify(self, news: RemoteChange, token: int | None, origin: str) -> None:
        mine = news.event != "stop" or (news.window is not None and self._held.get(news.window) == token)
        if self._hear is not None and origin != self.owner and mine:
            try:
                self._hear(news)
            except Exception:
                log.exception("News of another server could not be passed on.")

    def _renew(self, raw: Raw) -> None:
        held = dict(self._held)
        if held:
            raw.execute(
                f"""UPDATE leases SET expires = {_NOW} + %s
                    FROM unnest(%s::text[], %s::bigint[]) AS mine(name, token)
                    WHERE leases."window" = mine.name AND leases.token = mine.token AND owner = %s""",
                (int(self.term * 1e6), list(held), list(held.values()), self.owner),
            )


def _last(raw: Raw) -> int:
    row = raw.execute("SELECT coalesce(max(number), 0) FROM feed").fetchone()
    return int(row[0]) if row else 0


def _busy(owner: str, left: float) -> str:
    host, pid = (*owner.split(" "), "", "")[:2]
    return (
        f"This window is being written to by the server on {host} (process {pid}). Wait for it or stop the reply; "
        f"if that server is gone, the window is free in {max(1, round(left))} seconds."
    )
