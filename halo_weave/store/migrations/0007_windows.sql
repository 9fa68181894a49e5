-- How windows are kept in order, and which of their words are those that all windows share.

ALTER TABLE windows ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';      -- JSON array
ALTER TABLE windows ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE windows ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE windows ADD COLUMN inherits TEXT NOT NULL DEFAULT '[]';  -- JSON array: system_prompt, user_name, ai_name

-- Windows that never had other words than the first ones share them.
UPDATE windows SET inherits = '["system_prompt"]'
    WHERE system_prompt = 'You are a helpful assistant with a long memory. Answer plainly and briefly.';
UPDATE windows SET inherits = json_insert(inherits, '$[#]', 'user_name') WHERE user_name = 'User';
UPDATE windows SET inherits = json_insert(inherits, '$[#]', 'ai_name') WHERE ai_name = 'AI';
