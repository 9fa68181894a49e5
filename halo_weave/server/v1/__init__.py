"""The API that every chat client speaks, under `/v1`: its requests become turns of windows."""
