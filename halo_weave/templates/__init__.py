"""Chat templates: what the model reads, how it thinks aloud, and how it calls tools, as its own template says."""
