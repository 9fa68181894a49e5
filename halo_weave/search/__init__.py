"""Search over all stored chunks: embedders, vector index, word index, query analysis and ranking."""
