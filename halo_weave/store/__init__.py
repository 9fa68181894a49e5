"""The store: all turns and chunks, in SQLite or PostgreSQL, with export, import and sync."""
