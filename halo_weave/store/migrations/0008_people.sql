-- People: each has a key and a memory of their own. The empty id is the owner of the server; what is here is theirs.

CREATE TABLE people (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    key_hash TEXT,                       -- SHA-256, in hexadecimal; null: there is no key
    created INTEGER NOT NULL,
    revoked INTEGER
);
CREATE INDEX people_by_key ON people(key_hash);

CREATE TABLE shares (
    owner TEXT NOT NULL DEFAULT '',
    window TEXT NOT NULL,                -- empty: all windows of the owner
    person TEXT NOT NULL,                -- who may read
    writes INTEGER NOT NULL,             -- 1: and write
    made INTEGER NOT NULL,
    PRIMARY KEY (person, owner, window)
) WITHOUT ROWID;
CREATE INDEX shares_by_owner ON shares(owner, window);

ALTER TABLE windows ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX windows_by_owner ON windows(owner, created);

-- Keepsakes, settings and the names of chats belong to someone, too.

CREATE TABLE owned_entries (
    owner TEXT NOT NULL DEFAULT '',
    path TEXT NOT NULL,
    parent TEXT NOT NULL,
    heading TEXT NOT NULL,
    content TEXT NOT NULL,               -- JSON
    snapshot TEXT NOT NULL,              -- JSON: the chunks that explain it, whole
    model TEXT NOT NULL,                 -- of the snapshot's vectors
    vectors BLOB NOT NULL,               -- float32, one vector for each chunk of the snapshot
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    accessed INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (owner, path)
);
INSERT INTO owned_entries (owner, path, parent, heading, content, snapshot, model, vectors, created, modified, accessed, version)
    SELECT '', path, parent, heading, content, snapshot, model, vectors, created, modified, accessed, version FROM entries;
DROP TABLE entries;
ALTER TABLE owned_entries RENAME TO entries;

CREATE TABLE owned_versions (
    owner TEXT NOT NULL DEFAULT '',
    path TEXT NOT NULL,
    version INTEGER NOT NULL,
    content TEXT NOT NULL,
    snapshot TEXT NOT NULL,
    model TEXT NOT NULL,
    vectors BLOB NOT NULL,
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    accessed INTEGER NOT NULL,
    ended INTEGER NOT NULL,              -- when it was replaced or deleted
    PRIMARY KEY (owner, path, version)
);
INSERT INTO owned_versions (owner, path, version, content, snapshot, model, vectors, created, modified, accessed, ended)
    SELECT '', path, version, content, snapshot, model, vectors, created, modified, accessed, ended FROM entry_versions;
DROP TABLE entry_versions;
ALTER TABLE owned_versions RENAME TO entry_versions;

CREATE TABLE owned_notes (
    owner TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL,
    content TEXT NOT NULL,               -- JSON
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    PRIMARY KEY (owner, name)
);
INSERT INTO owned_notes (owner, name, content, created, modified)
    SELECT '', name, content, created, modified FROM notes;
DROP TABLE notes;
ALTER TABLE owned_notes RENAME TO notes;

CREATE TABLE owned_settings (
    owner TEXT NOT NULL DEFAULT '',
    key TEXT NOT NULL,
    value TEXT NOT NULL,                 -- JSON
    modified INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
);
INSERT INTO owned_settings (owner, key, value, modified) SELECT '', key, value, modified FROM settings;
DROP TABLE settings;
ALTER TABLE owned_settings RENAME TO settings;

CREATE TABLE owned_chats (
    owner TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL,
    window TEXT NOT NULL REFERENCES windows(id),
    PRIMARY KEY (owner, name)
) WITHOUT ROWID;
INSERT INTO owned_chats (owner, name, window) SELECT '', name, window FROM chats;
DROP TABLE chats;
ALTER TABLE owned_chats RENAME TO chats;
