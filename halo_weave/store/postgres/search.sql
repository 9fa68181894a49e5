-- What PostgreSQL needs to search by itself. Words: the terms of each chunk, and for each term the chunks that hold it.
-- Vectors: what `vectors` holds, once more as pgvector searches it.

CREATE EXTENSION IF NOT EXISTS vector;

ALTER TABLE memory
    ADD COLUMN changed BIGINT NOT NULL DEFAULT 0,      -- the number of the last change
    ADD COLUMN worded BIGINT NOT NULL DEFAULT 0,       -- chunks in the word index
    ADD COLUMN terms BIGINT NOT NULL DEFAULT 0,        -- terms in it, each as often as it stands there
    ADD COLUMN moving TEXT;                            -- the memory that is being moved here, until it is whole

CREATE TABLE words (
    rowid BIGINT PRIMARY KEY REFERENCES chunks(number) DEFERRABLE,
    terms TEXT NOT NULL
);

CREATE TABLE postings (
    term TEXT COLLATE "C" NOT NULL,
    chunk BIGINT NOT NULL REFERENCES words(rowid) ON DELETE CASCADE DEFERRABLE,
    often INTEGER NOT NULL,
    size INTEGER NOT NULL,                             -- terms of the chunk
    PRIMARY KEY (term, chunk) INCLUDE (often, size)
);

CREATE INDEX postings_by_chunk ON postings(chunk);

CREATE TABLE embeddings (
    generation BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    "window" TEXT COLLATE "C" NOT NULL,                -- where the chunk was said
    embedding halfvec NOT NULL,
    FOREIGN KEY (generation, chunk) REFERENCES vectors(generation, chunk) ON DELETE CASCADE DEFERRABLE
);

CREATE INDEX embeddings_by_chunk ON embeddings(generation, chunk);

CREATE INDEX embeddings_by_window ON embeddings(generation, "window");

CREATE FUNCTION text_of(raw BYTEA) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(raw, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN encode(raw, 'escape');
END
$$;
