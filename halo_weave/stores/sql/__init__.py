"""The store's methods as SQL that SQLite and PostgreSQL both understand; what differs is behind `seam`."""
