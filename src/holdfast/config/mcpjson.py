"""`.mcp.json`: the file in which projects name their MCP servers for any agent. Pure.

It says `mcpServers` where our files say `mcp`, and leaves out how a server is reached where that can be seen.
"""

from typing import Any

from holdfast.config.lines import KeyPath

__all__ = ["as_settings"]

_WAYS = {"streamable-http": "http", "streamable_http": "http", "streamableHttp": "http", "local": "stdio"}
_OTHERS = frozenset({"description", "alwaysAllow", "autoApprove", "trust", "icon", "gallery", "version", "$schema"})
"""Keys of other programs, which mean nothing here and are no mistakes."""


def as_settings(tree: dict[str, Any], lines: dict[KeyPath, int]) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The same in our words, with the lines it was written on."""
    servers = tree.get("mcpServers", {})
    if not isinstance(servers, dict):
        return {"mcp": servers}, _moved(lines)
    return {"mcp": {name: _server(given) for name, given in servers.items()}}, _moved(lines)


def _server(given: object) -> object:
    if not isinstance(given, dict):
        return given
    server = {name: value for name, value in given.items() if name not in _OTHERS}
    way = server.get("type", "http" if "url" in server and "command" not in server else "stdio")
    server["type"] = _WAYS.get(way, way) if isinstance(way, str) else way
    return server


def _moved(lines: dict[KeyPath, int]) -> dict[KeyPath, int]:
    return {("mcp", *path[1:]): line for path, line in lines.items() if path[:1] == ("mcpServers",)}
