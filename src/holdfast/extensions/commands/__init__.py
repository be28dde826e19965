"""User-defined slash commands, read from Markdown files: discovery and expansion to prompts. Prompts of MCP servers
belong to `extensions.mcp`, the commands of the terminal to `tui`.
"""
