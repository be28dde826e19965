"""Model Context Protocol client: connections to MCP servers, and their tools, prompts and resources. Slash commands
that are not MCP prompts belong to `extensions.commands`.
"""
