"""Model-facing tools: the tools of MCP servers, and two built-in tools for MCP resources."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.models import ToolSpec
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.extensions.mcp.asking import ask_for
from holdfast.extensions.mcp.calls import Calls
from holdfast.extensions.mcp.contents import contents_of, outcome_of, resource_text
from holdfast.extensions.mcp.names import marked
from holdfast.extensions.mcp.schemas import shaped
from holdfast.extensions.mcp.server import McpServer
from holdfast.tools.base import BaseTool

__all__ = ["ListResources", "McpTool", "ReadResource", "specs_of"]

_LONGEST_ABOUT = 4_096
_MOST_SAID = 16 * 1024
_MOST_LISTED = 200


def specs_of(server: McpServer) -> dict[str, ToolSpec]:
    """Return the tool specifications of a server, keyed by the server's own tool names."""
    found: dict[str, ToolSpec] = {}
    for item in server.lists["tools"]:
        if (name := server.names.get(item["name"])) is not None:
            about = str(item.get("description") or item.get("title") or f"{item['name']} of {server.name}")
            found[item["name"]] = ToolSpec(
                name, about[:_LONGEST_ABOUT], json.dumps(shaped(item.get("inputSchema")), ensure_ascii=False)
            )
    return found


class McpTool:
    """A tool of an MCP server."""

    def __init__(self, server: McpServer, item: Mapping[str, Any], spec: ToolSpec, calls: Calls) -> None:
        self._server = server
        self._item = item
        self._name: str = item["name"]
        self._spec = spec
        self._calls = calls
        hints = item.get("annotations")
        self._only_reads = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True

    @property
    def spec(self) -> ToolSpec:
        """The specification for models."""
        return self._spec

    def under_another_name(self) -> "McpTool":
        """Return a copy with a different name for models, to resolve a collision. The server still receives its own
        name.
        """
        name = marked(self._spec.name, f"{self._server.name}:{self._name}")
        return McpTool(self._server, self._item, msgspec.structs.replace(self._spec, name=name), self._calls)

    @property
    def is_parallel(self) -> bool:
        """True if the tool is declared read-only. The declaration affects nothing else, because servers are not
        trusted.
        """
        return self._only_reads

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Request permission, call the tool, and report its progress."""
        about = f"Call {self._name} of the MCP server {self._server.name}"
        await context.permit(Permit(self._spec.name, "execute", context.workspace_path, about, arguments))
        said = 0

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            nonlocal said
            line = _progress(progress, total, message)
            if said + len(line) <= _MOST_SAID:
                said += len(line)
                context.say(line)

        ask = partial(ask_for, context, self._server.name)
        result = await self._calls.call(self._server, self._name, arguments, tell, ask)
        return outcome_of(result, takes_media=context.takes_images)


def _progress(progress: float, total: float | None, message: str | None) -> str:
    share = f"{progress:g}/{total:g}" if total else f"{progress:g}"
    return f"{share} {message}".strip() + "\n" if message else f"{share}\n"


class ListArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mcp_name: Annotated[str, Meta(description="The name of the MCP server.")]


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mcp_name: Annotated[str, Meta(description="The name of the MCP server.")]
    uri: Annotated[str, Meta(description="The resource, as list_mcp_resources names it.")]


Find = Callable[[str], McpServer | None]
Read = Callable[[McpServer, str], Awaitable[dict[str, Any]]]


def _found(find: Find, name: str) -> McpServer:
    if (server := find(name)) is None:
        raise ToolError(f"There is no MCP server called {name}.")
    return server


class ListResources(BaseTool[ListArguments]):
    """Lists the resources of an MCP server."""

    name = "list_mcp_resources"
    arguments = ListArguments
    is_parallel = True

    def __init__(self, find: Find) -> None:
        super().__init__()
        self._find = find

    async def act(self, context: ToolContext, arguments: ListArguments) -> ToolOutcome:
        """Request permission and return one line for each resource."""
        server = _found(self._find, arguments.mcp_name)
        about = f"List the resources of the MCP server {server.name}"
        params = {"mcp_name": server.name}
        await context.permit(Permit(self.name, "list", context.workspace_path, about, params))
        await server.connection()
        items = server.lists["resources"]
        lines = [_listed(item) for item in items[:_MOST_LISTED]]
        if len(items) > _MOST_LISTED:
            lines.append(f"… and {len(items) - _MOST_LISTED} more")
        return ToolOutcome("\n".join(lines) or f"The MCP server {server.name} has no resources.")


def _listed(item: Mapping[str, Any]) -> str:
    about = " ".join(str(item.get("description") or item.get("title") or item.get("name") or "").split())[:200]
    mime = f" ({item['mimeType']})" if item.get("mimeType") else ""
    return f"{item['uri']}{mime} {about}".rstrip()


class ReadResource(BaseTool[ReadArguments]):
    """Reads a resource of an MCP server."""

    name = "read_mcp_resource"
    arguments = ReadArguments
    is_parallel = True

    def __init__(self, find: Find, read: Read) -> None:
        super().__init__()
        self._find = find
        self._read = read

    async def act(self, context: ToolContext, arguments: ReadArguments) -> ToolOutcome:
        """Request permission and return the contents of the resource."""
        server = _found(self._find, arguments.mcp_name)
        about = f"Read {arguments.uri} from the MCP server {server.name}"
        params = {"mcp_name": server.name, "uri": arguments.uri}
        await context.permit(Permit(self.name, "read", context.workspace_path, about, params))
        contents = contents_of(await self._read(server, arguments.uri))
        return resource_text(contents, takes_media=context.takes_images)
