-- Earlier versions showed the model time stamps at the beginning of its own answers, and it wrote some itself. They are taken
-- out of what is stored: see remove_stamps in stores/sql/stamps.py. 1: that was done.

ALTER TABLE memory ADD COLUMN stamps_removed INTEGER NOT NULL DEFAULT 0;
