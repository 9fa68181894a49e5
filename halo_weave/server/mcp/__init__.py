"""Memory for other programs over MCP: tools, resources and a prompt, over stdio and HTTP."""
