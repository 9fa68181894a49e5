"""Memory for other programs over MCP: six tools, resources and a prompt, over stdio and HTTP."""
