"""What the AI keeps on purpose: notes, structured memory, and the tools that reach them."""
