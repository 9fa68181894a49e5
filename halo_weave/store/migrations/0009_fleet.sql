-- Several servers on one memory. A file is used by one server: there, both tables stay empty.

CREATE TABLE leases (
    window TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,   -- grows with each holder: whoever has an older one may not write
    owner TEXT,               -- the process that writes the window; null: none
    expires INTEGER NOT NULL  -- microseconds, by the database's clock
) WITHOUT ROWID;

-- What other servers should look at again, in the order it was told.
CREATE TABLE feed (
    number INTEGER PRIMARY KEY,
    window TEXT NOT NULL,
    event TEXT NOT NULL,
    token INTEGER,            -- of the lease that the event is about
    origin TEXT NOT NULL,     -- the process that told it
    told INTEGER NOT NULL
);
