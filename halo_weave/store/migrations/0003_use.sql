-- What a reply took from chunks that were said before it, and which tokens each of its tokens came from.

CREATE TABLE uses (
    turn INTEGER NOT NULL REFERENCES turns(id),      -- the reply
    place INTEGER NOT NULL,                          -- by which `sources` names the chunk
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    share REAL NOT NULL,
    PRIMARY KEY (turn, place)
) WITHOUT ROWID;
CREATE INDEX uses_by_chunk ON uses(chunk, turn);

CREATE TABLE sources (
    turn INTEGER PRIMARY KEY REFERENCES turns(id),   -- the reply
    rest REAL NOT NULL,                              -- its share that came from nothing in particular
    tokens BLOB NOT NULL                             -- see stores/packing.py
);
