"""Model-facing tools: the tools of MCP servers, with their calls, and two built-in tools for MCP resources."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.model_requests import ToolSpec
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.extensions.mcp.bounded_waits import DetachedWait, retrieve_exception
from holdfast.extensions.mcp.elicitation import elicit
from holdfast.extensions.mcp.mcp_server import McpServer
from holdfast.extensions.mcp.mcp_types import (
    CallFailed,
    ConnectionClosed,
    ElicitationHandler,
    ProgressHandler,
    SessionExpired,
    error_message,
)
from holdfast.extensions.mcp.sanitize import provider_schema
from holdfast.extensions.mcp.tool_naming import with_hash_suffix
from holdfast.extensions.mcp.tool_results import resource_contents, resource_outcome, tool_outcome
from holdfast.tasks import TaskOwner
from holdfast.tools.base import BaseTool

__all__ = ["ListResources", "McpTool", "McpToolCalls", "ReadResource", "tool_specs"]


if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import McpConnection

_DISCONNECT_TIMEOUT = 1.0


class McpToolCalls:
    """Runs the tool calls of one workspace. `check_server` is called with a server that may have stalled."""

    def __init__(self, detached_wait: DetachedWait, check_server: Callable[[McpServer], None]) -> None:
        self._detached_wait = detached_wait
        self._check_server = check_server

    async def call(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        on_progress: ProgressHandler,
        on_elicitation: ElicitationHandler,
    ) -> dict[str, Any]:
        """Call a tool and return its result. A call refused for an expired session is repeated once. Raises
        `CallFailed`.
        """
        with suppress(SessionExpired):
            return await self._attempt(server, tool, arguments, on_progress, on_elicitation)
        try:
            # The server refused the session before it started the tool, so the tool does not run twice.
            return await self._attempt(server, tool, arguments, on_progress, on_elicitation)
        except SessionExpired:
            raise CallFailed(
                f"The MCP server {server.name} refused {tool} twice: it did not know a session that it had just begun."
            ) from None

    async def _attempt(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        on_progress: ProgressHandler,
        on_elicitation: ElicitationHandler,
    ) -> dict[str, Any]:
        connection = await server.connection()
        timer = _InactivityTimer(float(server.settings.call_timeout), on_progress, on_elicitation)
        try:
            work = connection.call_tool(tool, arguments, timer.on_progress, timer.on_elicitation)
            return await self._detached_wait.wait(work, timer.remaining, name=f"{server.name}: {tool}")
        except SessionExpired:
            connection.end("It no longer knows this connection.")
            raise
        except ConnectionClosed as error:
            raise CallFailed(await _lost_connection_message(server, connection, tool, error)) from None
        except TimeoutError:
            self._check_server(server)
            raise CallFailed(
                f"{tool} of the MCP server {server.name} sent nothing for {timer.seconds:g} s and was cancelled. "
                "Whether it had effects is not known."
            ) from None
        finally:
            await timer.close()


class _InactivityTimer:
    """Inactivity timer of a call. Progress resets it, and it is suspended while the user answers an elicitation."""

    def __init__(self, seconds: float, on_progress: ProgressHandler, on_elicitation: ElicitationHandler) -> None:
        self.seconds = seconds
        self._on_progress = on_progress
        self._on_elicitation = on_elicitation
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._elicitations = TaskOwner()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward progress and reset the timer."""
        self._active_at = self._loop.time()
        await self._on_progress(progress, total, message)

    async def on_elicitation(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an elicitation. It is cancelled when the call ends."""
        task = self._elicitations.start(self._on_elicitation(params), name="MCP elicitation", done=retrieve_exception)
        await asyncio.wait({task})
        self._active_at = self._loop.time()
        return {"action": "cancel"} if task.cancelled() else task.result()

    def remaining(self) -> float | None:
        """Return the seconds until the timeout, or None without a limit."""
        if not self.seconds:
            return None
        return self.seconds if len(self._elicitations) else self._active_at + self.seconds - self._loop.time()

    async def close(self) -> None:
        """Cancel open elicitations and wait for them."""
        self._elicitations.cancel_all()
        await self._elicitations.drain()


async def _lost_connection_message(
    server: McpServer, connection: "McpConnection", tool: str, error: ConnectionClosed
) -> str:
    """Describe a lost connection. Waits briefly for the owner task to determine the cause."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCONNECT_TIMEOUT):
            await server.wait_disconnected()
    unknown = "Whether the tool had effects is not known."
    if not connection.ended.is_set() and server.status.state == "connected":
        return f"The MCP server {server.name} broke off its answer to {tool}. {error_message(error)} {unknown}"
    reason = server.status.reason or connection.reason or error_message(error)
    return (
        f"The MCP server {server.name} disconnected while {tool} was running. {reason} "
        f"It is started again when it is needed. {unknown}"
    )


_MAX_DESCRIPTION = 4_096
_MAX_PROGRESS = 16 * 1024
_MAX_LISTED = 200


def tool_specs(server: McpServer) -> dict[str, ToolSpec]:
    """Return the tool specifications of a server, keyed by the server's own tool names."""
    found: dict[str, ToolSpec] = {}
    for item in server.lists["tools"]:
        if (name := server.tool_names.get(item["name"])) is not None:
            description = str(item.get("description") or item.get("title") or f"{item['name']} of {server.name}")
            found[item["name"]] = ToolSpec(
                name,
                description[:_MAX_DESCRIPTION],
                json.dumps(provider_schema(item.get("inputSchema")), ensure_ascii=False),
            )
    return found


class McpTool:
    """A tool of an MCP server."""

    def __init__(self, server: McpServer, item: Mapping[str, Any], spec: ToolSpec, calls: McpToolCalls) -> None:
        self._server = server
        self._item = item
        self._name: str = item["name"]
        self._spec = spec
        self._calls = calls
        hints = item.get("annotations")
        self._is_read_only = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True

    @property
    def spec(self) -> ToolSpec:
        """The specification for models."""
        return self._spec

    def with_unique_name(self) -> "McpTool":
        """Return a copy with a different name for models, to resolve a collision. The server still receives its own
        name.
        """
        name = with_hash_suffix(self._spec.name, f"{self._server.name}:{self._name}")
        return McpTool(self._server, self._item, msgspec.structs.replace(self._spec, name=name), self._calls)

    @property
    def is_parallel(self) -> bool:
        """True if the tool is declared read-only. The declaration affects nothing else, because servers are not
        trusted.
        """
        return self._is_read_only

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Request permission, call the tool, and report its progress."""
        description = f"Call {self._name} of the MCP server {self._server.name}"
        await context.permit(Permit(self._spec.name, "execute", context.workspace_path, description, arguments))
        reported = 0

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal reported
            line = _progress_line(progress, total, message)
            if reported + len(line) <= _MAX_PROGRESS:
                reported += len(line)
                context.publish_output(line)

        on_elicitation = partial(elicit, context, self._server.name)
        result = await self._calls.call(self._server, self._name, arguments, on_progress, on_elicitation)
        return tool_outcome(result, takes_media=context.takes_images)


def _progress_line(progress: float, total: float | None, message: str | None) -> str:
    share = f"{progress:g}/{total:g}" if total else f"{progress:g}"
    return f"{share} {message}".strip() + "\n" if message else f"{share}\n"


class ListArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mcp_name: Annotated[str, Meta(description="The name of the MCP server.")]


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mcp_name: Annotated[str, Meta(description="The name of the MCP server.")]
    uri: Annotated[str, Meta(description="The URI of the resource, from list_mcp_resources.")]


FindServer = Callable[[str], McpServer | None]
ReadContents = Callable[[McpServer, str], Awaitable[dict[str, Any]]]


def _find_server(find: FindServer, name: str) -> McpServer:
    if (server := find(name)) is None:
        raise ToolError(f"There is no MCP server called {name}.")
    return server


class ListResources(BaseTool[ListArguments]):
    """Lists the resources of an MCP server."""

    name = "list_mcp_resources"
    arguments = ListArguments
    is_parallel = True

    def __init__(self, find: FindServer) -> None:
        super().__init__()
        self._find = find

    async def act(self, context: ToolContext, arguments: ListArguments) -> ToolOutcome:
        """Request permission and return one line for each resource."""
        server = _find_server(self._find, arguments.mcp_name)
        description = f"List the resources of the MCP server {server.name}"
        params = {"mcp_name": server.name}
        await context.permit(Permit(self.name, "list", context.workspace_path, description, params))
        await server.connection()
        items = server.lists["resources"]
        lines = [_resource_line(item) for item in items[:_MAX_LISTED]]
        if len(items) > _MAX_LISTED:
            lines.append(f"… and {len(items) - _MAX_LISTED} more")
        return ToolOutcome("\n".join(lines) or f"The MCP server {server.name} has no resources.")


def _resource_line(item: Mapping[str, Any]) -> str:
    description = " ".join(str(item.get("description") or item.get("title") or item.get("name") or "").split())[:200]
    mime = f" ({item['mimeType']})" if item.get("mimeType") else ""
    return f"{item['uri']}{mime} {description}".rstrip()


class ReadResource(BaseTool[ReadArguments]):
    """Reads a resource of an MCP server."""

    name = "read_mcp_resource"
    arguments = ReadArguments
    is_parallel = True

    def __init__(self, find: FindServer, read: ReadContents) -> None:
        super().__init__()
        self._find = find
        self._read = read

    async def act(self, context: ToolContext, arguments: ReadArguments) -> ToolOutcome:
        """Request permission and return the contents of the resource."""
        server = _find_server(self._find, arguments.mcp_name)
        description = f"Read {arguments.uri} from the MCP server {server.name}"
        params = {"mcp_name": server.name, "uri": arguments.uri}
        await context.permit(Permit(self.name, "read", context.workspace_path, description, params))
        contents = resource_contents(await self._read(server, arguments.uri))
        return resource_outcome(contents, takes_media=context.takes_images)
