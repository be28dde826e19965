"""Model-facing tools: the tools of MCP servers, and two built-in tools for MCP resources."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.models import ToolSpec
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.extensions.mcp.detached_wait import DetachedWait, seen
from holdfast.extensions.mcp.elicitation import ask_for
from holdfast.extensions.mcp.mcp_server import McpServer
from holdfast.extensions.mcp.mcp_types import Ask, CallFailed, ConnectionClosed, Expired, Progress, sentence
from holdfast.extensions.mcp.sanitize import shaped
from holdfast.extensions.mcp.tool_naming import marked
from holdfast.extensions.mcp.tool_results import contents_of, outcome_of, resource_text
from holdfast.tasks import TaskOwner
from holdfast.tools.base import BaseTool

__all__ = ["ListResources", "McpTool", "McpToolCalls", "ReadResource", "specs_of"]


# Tool calls of MCP servers, with an inactivity timeout. A cancelled run cancels its calls on the server.

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import Connection


_AFTER = 1.0


class McpToolCalls:
    """Runs the tool calls of one workspace. `look_after` is called with a server that may have stalled."""

    def __init__(self, patience: DetachedWait, look_after: Callable[[McpServer], None]) -> None:
        self._patience = patience
        self._look_after = look_after

    async def call(
        self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress, ask: Ask
    ) -> dict[str, Any]:
        """Call a tool and return its result. A call refused for an expired session is repeated once. Raises
        `CallFailed`.
        """
        with suppress(Expired):
            return await self._once(server, tool, arguments, tell, ask)
        try:
            # The server refused the session before it started the tool, so the tool does not run twice.
            return await self._once(server, tool, arguments, tell, ask)
        except Expired:
            raise CallFailed(
                f"The MCP server {server.name} refused {tool} twice: it did not know a session that it had just begun."
            ) from None

    async def _once(
        self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress, ask: Ask
    ) -> dict[str, Any]:
        connection = await server.connection()
        life = _Life(float(server.settings.call_timeout), tell, ask)
        try:
            work = connection.call(tool, arguments, life.heard, life.asked)
            return await self._patience.wait(work, life.left, name=f"{server.name}: {tool}")
        except Expired:
            connection.end("It does not know this connection any more.")
            raise
        except ConnectionClosed as error:
            raise CallFailed(await _why_gone(server, connection, tool, error)) from None
        except TimeoutError:
            self._look_after(server)
            raise CallFailed(
                f"{tool} of the MCP server {server.name} said nothing for {life.seconds:g} s and was cancelled. "
                "Whether it did anything is not known."
            ) from None
        finally:
            await life.end()


class _Life:
    """Inactivity timer of a call. Progress resets it, and it is suspended while the user answers an elicitation."""

    def __init__(self, seconds: float, tell: Progress, ask: Ask) -> None:
        self.seconds = seconds
        self._tell = tell
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._questions = TaskOwner()

    async def heard(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward progress and reset the timer."""
        self._heard_at = self._loop.time()
        await self._tell(progress, total, message)

    async def asked(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an elicitation. It is cancelled when the call ends."""
        question = self._questions.start(self._ask(wanted), name="a question of a server of tools", done=seen)
        await asyncio.wait({question})
        self._heard_at = self._loop.time()
        return {"action": "cancel"} if question.cancelled() else question.result()

    def left(self) -> float | None:
        """Return the seconds until the timeout, or None without a limit."""
        if not self.seconds:
            return None
        return self.seconds if len(self._questions) else self._heard_at + self.seconds - self._loop.time()

    async def end(self) -> None:
        """Cancel open elicitations and wait for them."""
        self._questions.cancel_all()
        await self._questions.drain()


async def _why_gone(server: McpServer, connection: "Connection", tool: str, error: ConnectionClosed) -> str:
    """Describe a lost connection. Waits briefly for the owner task to determine the cause."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_AFTER):
            await server.parted()
    unknown = "Whether the tool did anything is not known."
    if not connection.ended.is_set() and server.standing.state == "connected":
        return f"The MCP server {server.name} broke off its answer to {tool}. {sentence(error)} {unknown}"
    why = server.standing.reason or connection.why or sentence(error)
    return (
        f"The MCP server {server.name} went away while {tool} was at work. {why} "
        f"It is started again when it is needed. {unknown}"
    )


# Model-facing tools: the tools of MCP servers, and two built-in tools for MCP resources.

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

    def __init__(self, server: McpServer, item: Mapping[str, Any], spec: ToolSpec, calls: McpToolCalls) -> None:
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
                context.publish_output(line)

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
