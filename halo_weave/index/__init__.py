"""Finding what sleeps: meaning, words, and how they become one ranking."""
