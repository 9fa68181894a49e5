"""The HTTP server: the page and its API, an OpenAI-compatible API, the KoboldAI API and MCP."""
