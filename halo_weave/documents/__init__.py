"""Files that are attached to a message, read as text."""
