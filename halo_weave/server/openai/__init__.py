"""The OpenAI-compatible API under `/v1`: its requests become turns of windows."""
