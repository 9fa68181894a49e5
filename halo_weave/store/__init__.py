"""The memory on SQL: everything ever said, in SQLite or PostgreSQL, with export, import and sync."""

from __future__ import annotations
