-- What woke up for the question that a reply answers, and why.

CREATE TABLE remembered (
    turn INTEGER NOT NULL REFERENCES turns(id),      -- the reply
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    reason TEXT NOT NULL,                            -- JSON
    PRIMARY KEY (turn, chunk)
) WITHOUT ROWID;

ALTER TABLE sources ADD COLUMN start INTEGER;  -- position of the reply's first token
