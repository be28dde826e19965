"""Built-in tools: a module for each tool or pair of tools, and a Markdown file with its description for models.

Belongs here: arguments, permission requests, results. Does not belong here: access to files and processes
(`workspace`), permission rules (`permissions`), tools of MCP and language servers (`extensions`).
"""
