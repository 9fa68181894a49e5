-- Tags of chunks. Each person has their own, and sees no others.

CREATE TABLE chunk_tags (
    owner TEXT NOT NULL DEFAULT '',      -- whose tag it is
    tag TEXT NOT NULL,
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    made INTEGER NOT NULL,
    PRIMARY KEY (owner, tag, chunk)
) WITHOUT ROWID;
CREATE INDEX chunk_tags_by_chunk ON chunk_tags(chunk);
