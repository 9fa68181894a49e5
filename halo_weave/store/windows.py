"""Windows: names, prompts, persona and settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from halo_weave.errors import UnknownWindow
from halo_weave.settings import with_current_names
from halo_weave.store.access import StoreHandle, checks_access, owns_window, reads_window
from halo_weave.store.database import Connection
from halo_weave.store.encoding import maybe_moment, micros, moment
from halo_weave.store.records import (
    OWNER,
    OWNER_NAME,
    PERSONA,
    PERSONA_KEY,
    Json,
    WindowRecord,
    WindowStats,
    stored_persona,
)
from halo_weave.store.rows import READABLE_WINDOWS, check_window, merged_settings, pack_json

COLUMNS = (
    "id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted, head, "
    "tags, pinned, archived, inherits, owner"
)


class SqlWindows(StoreHandle):
    @checks_access
    def create_window(
        self,
        name: str,
        *,
        now: datetime,
        system_prompt: str = "",
        user_name: str = "User",
        ai_name: str = "AI",
        settings: Mapping[str, Json] | None = None,
        tags: Sequence[str] = (),
        inherits: Collection[str] = (),
        owner: str = OWNER,
    ) -> WindowRecord:
        owner, window_id = self._person(owner) or OWNER, secrets.token_hex(5)
        with self._db.writing(durable=True) as db:
            while db.execute("SELECT 1 FROM windows WHERE id = ?", (window_id,)).fetchone():
                window_id = secrets.token_hex(5)
            row = db.execute(
                f"INSERT INTO windows ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, ?, 0, 0, ?, ?) RETURNING {COLUMNS}",
                (
                    window_id,
                    name,
                    system_prompt,
                    user_name,
                    ai_name,
                    pack_json(dict(settings or {})),
                    micros(now),
                    micros(now),
                    pack_json(list(tags)),
                    pack_json([name for name in PERSONA if name in inherits]),
                    owner,
                ),
            ).fetchone()
        if self.access is not None:
            self.access = self.access.with_own(window_id)
        return _window(row)

    @reads_window
    def window(self, window_id: str) -> WindowRecord:
        """A window, deleted or not."""
        with self._db.querying() as db:
            row = db.execute(f"SELECT {COLUMNS} FROM windows WHERE id = ?", (window_id,)).fetchone()
        if row is None:
            raise UnknownWindow(f"There is no window {window_id!r}. To see them: halo-weave windows")
        return _window(row)

    @checks_access
    def windows(self, *, deleted: bool = False, reader: str | None = None) -> list[WindowRecord]:
        """Windows in order of creation; deleted ones on request. `reader`: only those that this person may read."""
        reader = self._person(reader)
        among = "" if reader is None else f"AND id IN ({READABLE_WINDOWS})"
        with self._db.querying() as db:
            rows = db.execute(
                f"SELECT {COLUMNS} FROM windows WHERE (deleted IS NULL OR :deleted) {among} ORDER BY created, id",
                {"deleted": deleted, "reader": reader},
            ).fetchall()
        return [_window(row) for row in rows]

    @checks_access
    def chat_window(self, name: str, *, owner: str = OWNER) -> str | None:
        """The window of a chat that an API client knows by this name; None if there is none."""
        with self._db.querying() as db:
            row = db.execute(
                """SELECT c.window FROM chats c JOIN windows w ON w.id = c.window
                   WHERE c.owner = ? AND c.name = ? AND w.deleted IS NULL""",
                (self._person(owner), name),
            ).fetchone()
        return row[0] if row and self._may_read(row[0]) else None

    @checks_access
    def name_chat(self, name: str, window_id: str, *, owner: str = OWNER) -> None:
        """Let an API client know this window by this name."""
        self.check_writes(window_id)
        with self._db.writing() as db:
            check_window(db, window_id)
            db.execute(
                """INSERT INTO chats (owner, name, window) VALUES (?, ?, ?)
                   ON CONFLICT (owner, name) DO UPDATE SET window = excluded.window""",
                (self._person(owner), name, window_id),
            )

    @checks_access
    def window_names(self, *, reader: str | None = None) -> dict[str, str]:
        """The names of all windows by id, deleted ones too. For a `reader` only those that they may read, with the
        owner's name for other people's."""
        reader = self._person(reader)
        with self._db.reading() as db:
            if reader is None:
                return dict(db.execute("SELECT id, name FROM windows"))
            rows = db.execute(
                f"""SELECT w.id, w.name, w.owner, p.name FROM windows w LEFT JOIN people p ON p.id = w.owner
                    WHERE w.id IN ({READABLE_WINDOWS})""",
                {"reader": reader},
            ).fetchall()
        return {
            window_id: name if owner == reader else f"{name}, of {whose or OWNER_NAME}"
            for window_id, name, owner, whose in rows
        }

    @owns_window
    def change_window(
        self,
        window_id: str,
        *,
        now: datetime,
        name: str | None = None,
        system_prompt: str | None = None,
        user_name: str | None = None,
        ai_name: str | None = None,
        settings: Mapping[str, Json] | None = None,
        reset: Collection[str] = (),
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        inherits: Collection[str] = (),
    ) -> WindowRecord:
        """Change what is given; settings in `reset` are removed. What was said keeps the names it was said under.

        Given texts are the window's own from now on; those that it `inherits` follow those of all windows again.
        """
        texts = {"system_prompt": system_prompt, "user_name": user_name, "ai_name": ai_name}
        with self._db.writing(durable=True) as db:
            check_window(db, window_id)
            stored = db.execute(
                "SELECT settings, inherits, owner FROM windows WHERE id = ?", (window_id,)
            ).fetchone()
            own = {about for about, text in texts.items() if text is not None}
            shared = [about for about in PERSONA if about in ({*json.loads(stored[1])} - own | {*inherits})]
            persona = persona_of(db, stored[2])
            texts |= {about: persona[about] for about in inherits}
            row = db.execute(
                f"""UPDATE windows SET name = coalesce(?, name), system_prompt = coalesce(?, system_prompt),
                        user_name = coalesce(?, user_name), ai_name = coalesce(?, ai_name),
                        tags = coalesce(?, tags), pinned = coalesce(?, pinned), archived = coalesce(?, archived),
                        inherits = ?, settings = ?, modified = ?
                    WHERE id = ? RETURNING {COLUMNS}""",
                (
                    name,
                    *texts.values(),
                    None if tags is None else pack_json(list(tags)),
                    pinned,
                    archived,
                    pack_json(shared),
                    pack_json(
                        merged_settings(with_current_names(json.loads(stored[0])), settings or {}, reset)
                    ),
                    micros(now),
                    window_id,
                ),
            ).fetchone()
        return _window(row)

    @checks_access
    def change_persona(
        self, changes: Mapping[str, str], *, now: datetime, owner: str = OWNER
    ) -> tuple[str, ...]:
        """Change the texts that all windows of a person share, and those of the windows that inherit them. Returns
        these windows."""
        owner = self._person(owner) or OWNER
        changed: dict[str, None] = {}
        with self._db.writing(durable=True) as db:
            persona = {**persona_of(db, owner), **changes}
            db.execute(
                """INSERT INTO settings (owner, key, value, modified) VALUES (?, ?, ?, ?)
                   ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, modified = excluded.modified""",
                (owner, PERSONA_KEY, pack_json(persona), micros(now)),
            )
            for about in PERSONA:
                rows = db.execute(
                    f"""UPDATE windows SET {about} = :text, modified = :now
                        WHERE owner = :owner AND deleted IS NULL AND {about} <> :text
                        AND inherits LIKE '%"{about}"%' RETURNING id""",
                    {"text": persona[about], "now": micros(now), "owner": owner},
                ).fetchall()
                changed |= dict.fromkeys(window_id for (window_id,) in rows)
        return tuple(changed)

    @owns_window
    def delete_window(self, window_id: str, *, now: datetime) -> None:
        """Delete the window; what was said in it stays in memory."""
        with self._db.writing(durable=True) as db:
            check_window(db, window_id)
            db.check_lease(window_id)
            db.execute("UPDATE windows SET deleted = ? WHERE id = ?", (micros(now), window_id))

    @reads_window
    def window_stats(self, window_id: str) -> WindowStats:
        window = self.window(window_id)
        with self._db.reading() as db:
            live, tokens = db.execute(
                "SELECT count(*), coalesce(sum(length(brightness)), 0) / 4 FROM live WHERE window = ?",
                (window_id,),
            ).fetchone()
            pruned = db.execute(
                "SELECT count(*) FROM asleep WHERE window = ? AND gone = 0", (window_id,)
            ).fetchone()[0]
            said = db.execute(
                "SELECT coalesce(sum(span), 0) FROM chunks INDEXED BY chunks_by_place WHERE window = ? AND merged IS NULL AND aside = 0",
                (window_id,),
            ).fetchone()[0]
            last = db.execute(
                """SELECT c.raw, (SELECT t.said FROM turns t WHERE t.id = c.turn)
                   FROM chunks c INDEXED BY chunks_by_place
                   WHERE c.window = ? AND c.deleted IS NULL AND c.merged_into IS NULL AND c.aside = 0 ORDER BY c.start DESC LIMIT 1""",
                (window_id,),
            ).fetchone()
        text = last[0].decode("utf-8", errors="replace") if last else ""
        return WindowStats(window, live, tokens, pruned, said, text, maybe_moment(last[1]) if last else None)


def persona_of(db: Connection, owner: str = OWNER) -> dict[str, str]:
    """The texts that all windows of a person share."""
    row = db.execute(
        "SELECT value FROM settings WHERE owner = ? AND key = ?", (owner, PERSONA_KEY)
    ).fetchone()
    return stored_persona(json.loads(row[0]) if row else None)


def _window(row: tuple[Any, ...]) -> WindowRecord:
    window_id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted, head, *more = (
        row
    )
    tags, pinned, archived, inherits, owner = more
    return WindowRecord(
        window_id,
        name,
        system_prompt,
        user_name,
        ai_name,
        with_current_names(json.loads(settings)),
        moment(created),
        moment(modified),
        maybe_moment(deleted),
        head,
        tuple(json.loads(tags)),
        bool(pinned),
        bool(archived),
        tuple(json.loads(inherits)),
        owner,
    )
