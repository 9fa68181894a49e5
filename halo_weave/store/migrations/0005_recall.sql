-- How much of a chunk tells something, 0 to 1: questions and answers that know nothing are no facts.

ALTER TABLE chunks ADD COLUMN told REAL NOT NULL DEFAULT 1;
UPDATE chunks SET told = told_of(CAST(raw AS BLOB));

-- Terms are stemmed by language before they are indexed, so the index itself does not.

DROP TABLE words;
CREATE VIRTUAL TABLE words USING fts5(terms, tokenize = "unicode61 remove_diacritics 2");
INSERT INTO words (rowid, terms)
    SELECT c.number, terms_of(CAST(c.raw AS BLOB), t.speaker, t.said) FROM chunks c JOIN turns t ON t.id = c.turn
    WHERE c.deleted IS NULL AND c.merged IS NULL;

-- What a user marked as the wrong memory for a question: it sinks for questions like it.

CREATE TABLE wrong (
    chunk INTEGER NOT NULL REFERENCES chunks(number),
    question TEXT NOT NULL,
    made INTEGER NOT NULL,
    PRIMARY KEY (chunk, question)
) WITHOUT ROWID;

-- Vectors with one byte for each number and a scale, see core/coding.py.

UPDATE vectors SET vector = codes_of(vector, (SELECT dimension FROM generations g WHERE g.id = generation));

-- Chunks of earlier versions that are too long to wake up: they are divided once.

CREATE INDEX chunks_too_long ON chunks(span) WHERE span > 256;

-- The floor of relevance is on another scale now: what was set before means nothing on it.

UPDATE windows SET settings = json_remove(settings, '$.relevance_floor') WHERE json_valid(settings);
UPDATE settings SET value = json_remove(value, '$.relevance_floor') WHERE key = 'windows' AND json_valid(value);
