"""Extensions that users configure: MCP servers, language servers, skills, hooks, slash commands and sub-agents.
Built-in tools belong to `tools`, and the decision which extension tools a run may use to `engine` and `permissions`.
"""
