-- Times are microseconds since 1970, UTC. Ids and positions are 64-bit integers. Window ids are short random text,
-- so that windows of two memories never collide.

CREATE TABLE memory (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL,                    -- names this memory in exports
    created INTEGER NOT NULL,
    next_turn INTEGER NOT NULL CHECK (next_turn >= 1),
    next_position INTEGER NOT NULL CHECK (next_position >= 0),
    cleared_turn INTEGER NOT NULL DEFAULT 1  -- ids below this one were wiped by a clear
);

CREATE TABLE windows (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    system_prompt TEXT NOT NULL,
    user_name TEXT NOT NULL,
    ai_name TEXT NOT NULL,
    settings TEXT NOT NULL,              -- JSON object
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    deleted INTEGER
);

CREATE TABLE tokenizers (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE
);

-- What was said

CREATE TABLE turns (
    id INTEGER PRIMARY KEY,
    window TEXT NOT NULL REFERENCES windows(id),
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    answers INTEGER REFERENCES turns(id),
    speaker TEXT NOT NULL,               -- the name at the time it was said
    said INTEGER NOT NULL
);
CREATE INDEX turns_by_answers ON turns(answers) WHERE answers IS NOT NULL;
CREATE INDEX turns_by_time ON turns(said);
CREATE INDEX turns_by_window ON turns(window, id);

CREATE TABLE chunks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- within this file; search and vectors go by it
    turn INTEGER NOT NULL REFERENCES turns(id),
    chunk INTEGER NOT NULL CHECK (chunk >= 0),
    window TEXT NOT NULL REFERENCES windows(id),
    start INTEGER NOT NULL CHECK (start >= 0),
    span INTEGER NOT NULL CHECK (span > 0),
    tokenizer INTEGER NOT NULL REFERENCES tokenizers(id),
    deleted INTEGER,
    undeleted INTEGER,
    merged INTEGER,                      -- when its tokens joined the chunk before it
    merged_into INTEGER REFERENCES chunks(number),
    tags TEXT,                           -- JSON array
    ids BLOB NOT NULL,                   -- little-endian, 2 or 4 bytes a token
    lengths BLOB NOT NULL,               -- bytes of each piece; 1 or 4 bytes a token
    raw BLOB NOT NULL,
    UNIQUE (turn, chunk)
);
CREATE UNIQUE INDEX chunks_by_start ON chunks(start);
CREATE INDEX chunks_by_place ON chunks(window, start, span, merged);

CREATE TABLE drafts (
    turn INTEGER PRIMARY KEY,
    window TEXT NOT NULL REFERENCES windows(id),
    start INTEGER NOT NULL,
    answers INTEGER,
    tokenizer INTEGER NOT NULL REFERENCES tokenizers(id),
    owner TEXT NOT NULL,                 -- the process that writes it
    begun INTEGER NOT NULL,
    saved INTEGER NOT NULL,
    tokens INTEGER NOT NULL
);
CREATE TABLE draft_parts (
    turn INTEGER NOT NULL REFERENCES drafts(turn) ON DELETE CASCADE,
    at INTEGER NOT NULL,                 -- index of the part's first token
    span INTEGER NOT NULL,
    ids BLOB NOT NULL,
    lengths BLOB NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY (turn, at)
) WITHOUT ROWID;

-- What windows know of it. Live and asleep are apart, so that no work on what is live depends on what sleeps.
-- ids, lengths and raw are there only if the window reads the chunk with another tokenizer than it was said with.

CREATE TABLE live (
    window TEXT NOT NULL REFERENCES windows(id),
    start INTEGER NOT NULL,
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    pinned INTEGER NOT NULL,
    since INTEGER NOT NULL,
    woken TEXT,                          -- JSON: why it woke up; null if it is live since it was said
    tokenizer INTEGER REFERENCES tokenizers(id),
    brightness BLOB NOT NULL,            -- float32, little-endian
    ids BLOB,
    lengths BLOB,
    raw BLOB,
    PRIMARY KEY (window, start)
) WITHOUT ROWID;
CREATE INDEX live_by_chunk ON live(chunk);

CREATE TABLE asleep (
    window TEXT NOT NULL REFERENCES windows(id),
    start INTEGER NOT NULL,
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    gone INTEGER NOT NULL,               -- 1 while the chunk is deleted
    peak REAL NOT NULL,
    slept INTEGER NOT NULL,
    reason TEXT NOT NULL,                -- JSON
    tokenizer INTEGER REFERENCES tokenizers(id),
    brightness BLOB NOT NULL,            -- at deletion; float32, little-endian
    ids BLOB,
    lengths BLOB,
    raw BLOB,
    PRIMARY KEY (window, start)
) WITHOUT ROWID;
CREATE INDEX asleep_by_chunk ON asleep(chunk);
CREATE INDEX asleep_by_time ON asleep(window, gone, slept, start);
CREATE INDEX asleep_by_peak ON asleep(window, gone, peak, start);

CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    window TEXT REFERENCES windows(id),  -- null: in all of memory
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    happened INTEGER NOT NULL,
    event TEXT NOT NULL,
    detail TEXT NOT NULL                 -- JSON
);
CREATE INDEX history_by_chunk ON history(chunk, id);
CREATE INDEX history_by_window ON history(window, id);

-- Finding it again

CREATE VIRTUAL TABLE words USING fts5(terms, tokenize = "porter unicode61 remove_diacritics 2");

CREATE TABLE generations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    dimension INTEGER NOT NULL CHECK (dimension > 0),
    state TEXT NOT NULL CHECK (state IN ('building', 'current', 'retired')),
    created INTEGER NOT NULL,
    completed INTEGER
);
CREATE UNIQUE INDEX generations_current ON generations(state) WHERE state = 'current';

CREATE TABLE vectors (
    id INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL REFERENCES generations(id),
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    vector BLOB NOT NULL,                -- float32, little-endian
    UNIQUE (generation, chunk)
);
CREATE INDEX vectors_by_chunk ON vectors(chunk);

-- Chunks whose vector is missing or out of date.
CREATE TABLE wanted (
    generation INTEGER NOT NULL REFERENCES generations(id),
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    sequence INTEGER NOT NULL,           -- of the change that asked for it
    PRIMARY KEY (generation, chunk)
) WITHOUT ROWID;

-- The latest change of each chunk, for processes that keep an index in memory.
CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    chunk INTEGER NOT NULL UNIQUE REFERENCES chunks(number)
);

-- The AI's own memory, and settings

CREATE TABLE entries (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    heading TEXT NOT NULL,
    content TEXT NOT NULL,               -- JSON
    snapshot TEXT NOT NULL,              -- JSON: the chunks that explain it, whole
    model TEXT NOT NULL,                 -- of the snapshot's vectors
    vectors BLOB NOT NULL,               -- float32, one vector for each chunk of the snapshot
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    accessed INTEGER NOT NULL,
    version INTEGER NOT NULL
);
CREATE INDEX entries_by_parent ON entries(parent);
CREATE INDEX entries_by_heading ON entries(heading);
CREATE INDEX entries_by_time ON entries(modified);

CREATE TABLE entry_versions (
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
    PRIMARY KEY (path, version)
);

CREATE TABLE notes (
    name TEXT PRIMARY KEY,
    content TEXT NOT NULL,               -- JSON
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL
);

CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,                 -- JSON
    modified INTEGER NOT NULL
);

-- What came from other memories, and under which id, so that it comes only once.

CREATE TABLE imported (
    source TEXT NOT NULL,
    turn INTEGER NOT NULL,
    mark TEXT NOT NULL,                  -- tells apart two turns that got the same id in two copies of a memory
    here INTEGER NOT NULL,
    shift INTEGER NOT NULL,              -- of its positions
    PRIMARY KEY (source, turn, mark)
) WITHOUT ROWID;
CREATE UNIQUE INDEX imported_by_here ON imported(here);

-- Ids set apart for a file that is imported, so that an import that was interrupted goes on with the same ones.
CREATE TABLE imports (
    source TEXT NOT NULL,
    first_turn INTEGER NOT NULL,         -- as in the file
    end_turn INTEGER NOT NULL,
    turn_shift INTEGER NOT NULL,
    shift INTEGER NOT NULL,              -- of positions
    PRIMARY KEY (source, first_turn, turn_shift)
) WITHOUT ROWID;
