"""Chat templates of models: rendering them in a sandbox, and what they reveal about thoughts and tool calls."""
