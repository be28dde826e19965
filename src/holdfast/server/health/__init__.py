"""Health checks behind `holdfast doctor`. A check reports findings and changes nothing.

Checks of MCP and language servers are beside their handlers in `server.routes`.
"""
