-- Branches: each turn follows another one, and each window has a last turn. What leads up to it is the window's current
-- branch. Turns that are on no window's current branch are aside: in the record, in no window, in no search.

ALTER TABLE turns ADD COLUMN parent INTEGER REFERENCES turns(id);  -- null: it follows none
ALTER TABLE turns ADD COLUMN aside INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN mark INTEGER;                         -- of its role and words, see core/marks.py
ALTER TABLE chunks ADD COLUMN aside INTEGER NOT NULL DEFAULT 0;    -- as its turn
ALTER TABLE windows ADD COLUMN head INTEGER REFERENCES turns(id);  -- null: nothing was said

UPDATE turns SET parent = (SELECT max(p.id) FROM turns p WHERE p.window = turns.window AND p.id < turns.id);
UPDATE windows SET head = (SELECT max(t.id) FROM turns t WHERE t.window = windows.id);

CREATE INDEX turns_by_parent ON turns(parent, window);
CREATE INDEX turns_by_mark ON turns(mark) WHERE mark IS NOT NULL;
CREATE INDEX windows_by_head ON windows(head);
CREATE INDEX chunks_aside ON chunks(number) WHERE aside = 1;

DROP INDEX chunks_by_place;
CREATE INDEX chunks_by_place ON chunks(window, start, span, merged, aside);

-- Chats of other programs, by the names that these give them.
CREATE TABLE chats (
    name TEXT PRIMARY KEY,
    window TEXT NOT NULL REFERENCES windows(id)
) WITHOUT ROWID;
