-- Files that hold the index of this memory as it was at some moment. By its mark a file is known to be of this memory,
-- and this memory to have gone on from that moment.

CREATE TABLE images (
    id INTEGER PRIMARY KEY,
    mark TEXT NOT NULL UNIQUE,
    schema INTEGER NOT NULL   -- of the memory then: a later one may count something else
);
