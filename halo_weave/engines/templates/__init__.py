"""Chat templates of models: render them in a sandbox, and find out how they write thoughts and tool calls."""
