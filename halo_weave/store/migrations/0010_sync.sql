-- What is known to the folder that this memory is synchronised with, see stores/sql/syncing.py.

CREATE TABLE synced (
    kind TEXT NOT NULL,                  -- window, turn, entry, note, setting: of what; bundle: a file that is known
    key TEXT NOT NULL,
    told TEXT NOT NULL,                  -- JSON: the registers; of a bundle: whether it is ours, and needed by none
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
