"""The model's tools: notes, structured memory, and how it calls them."""
