"""A memory in a PostgreSQL database with pgvector, shared by several processes and machines."""
