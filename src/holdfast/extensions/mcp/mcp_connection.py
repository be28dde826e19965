"""One connection to an MCP server, opened and closed in the owner's task.

Requests can be sent from any task. This module imports `mcp`, which is slow to import. It is imported in a thread when
a server is configured.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import mcp_types as types
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast import __version__
from holdfast.extensions.mcp.bounded_waits import RateLimit
from holdfast.extensions.mcp.http_transport import ResponseMonitor, open_http_streams
from holdfast.extensions.mcp.mcp_types import (
    FIRST_DELAY,
    LISTS,
    MAX_DELAY,
    CallFailed,
    ConnectionClosed,
    ConnectionParams,
    ElicitationHandler,
    ListName,
    ProgressHandler,
    SessionExpired,
)
from holdfast.extensions.mcp.sanitize import sanitize_lists, schema_error
from holdfast.extensions.mcp.stdio_transport import ExitReason, run_program
from holdfast.tasks import TaskOwner

__all__ = ["McpConnection", "open_connection"]

T = TypeVar("T", bound=BaseModel)

MAX_PAGES = 50
_HANDSHAKE_REFUSED = frozenset({types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND})
_WRONG_ENDPOINT = (404, 405)
_UNAVAILABLE = (502, 503, 504)
_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_MAX_SCHEMAS = 512 * 1024
"""Maximum characters of all schemas of a list together."""
_MAX_INPUT_ROUNDS = 10
_INPUT_ROUND_PAUSE = 0.25
_EXIT_TIMEOUT = 1.0
_CHANGES: dict[type, ListName] = {
    types.ToolListChangedNotification: "tools",
    types.PromptListChangedNotification: "prompts",
    types.ResourceListChangedNotification: "resources",
}

# Errors of the library are reported in our own messages. Its log would contain a traceback for each unreachable server.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class _WatchedStream:
    """A read stream that records the time of each message and the end of the stream, and sanitizes the lists in
    responses.
    """

    def __init__(self, stream: ReadStream[SessionMessage | Exception], connection: "McpConnection") -> None:
        self._stream = stream
        self._connection = connection
        self._rate_limit = RateLimit()

    @property
    def last_context(self) -> object:
        """Pass through the context of the underlying stream, if it has one."""
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        await self._rate_limit.step()
        try:
            item = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._connection.end()
            raise
        except ConnectionClosed as error:
            self._connection.end(str(error))
            raise StopAsyncIteration from None
        self._connection.last_message_at = asyncio.get_running_loop().time()
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            for complaint in sanitize_lists(item.message.result):
                self._connection.log_note(complaint)
        return item

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return await self.__anext__()

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> "_WatchedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: ANN401 - three of them, as always
        return await self._stream.__aexit__(*error)


class McpConnection:
    """An open connection. Its requests raise `ConnectionClosed` when it has ended, and `CallFailed` when the server
    returns an error.
    """

    def __init__(self, params: ConnectionParams, monitor: ResponseMonitor) -> None:
        self._params = params
        self._monitor = monitor
        self._client: ClientSession
        self._elicitation_handlers: list[ElicitationHandler] = []
        self.last_message_at = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()
        self.reason = ""
        """The reason for the end, as far as it is known."""

    def end(self, reason: str = "") -> None:
        """Mark the connection as unusable. The task that opened it closes it."""
        self.reason = self.reason or reason
        self.ended.set()

    def log_note(self, text: str) -> None:
        """Append a note to the server's log."""
        self._params.write_log(f"[{text}]\n".encode("utf-8", "replace"))

    # Server properties

    @property
    def instructions(self) -> str:
        """Instructions for the system prompt."""
        return self._client.instructions or ""

    def has_capability(self, list_name: ListName) -> bool:
        """Return whether the server has the capability for this list."""
        capabilities = self._client.server_capabilities
        return capabilities is not None and getattr(capabilities, list_name) is not None

    # Requests

    async def list_all(self, list_name: ListName) -> list[dict[str, Any]]:
        """Return all pages of a list, up to `MAX_PAGES`."""
        client = self._client
        list_methods: dict[ListName, Callable[..., Awaitable[BaseModel]]] = {
            "tools": client.list_tools,
            "prompts": client.list_prompts,
            "resources": client.list_resources,
        }
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = _to_json(await self._send(list_methods[list_name](params=params)))
            items += page.get(list_name, [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if list_name == "tools":
            for complaint in await asyncio.to_thread(_replace_invalid_schemas, items):
                self.log_note(complaint)
        return items

    async def call_tool(
        self, tool: str, arguments: Mapping[str, Any], on_progress: ProgressHandler, on_elicitation: ElicitationHandler
    ) -> dict[str, Any]:
        """Call a tool and return its result. Cancelling this coroutine cancels the call on the server. `on_elicitation`
        answers elicitations of the server during the call.
        """
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        self._elicitation_handlers.append(on_elicitation)
        try:
            for _ in range(_MAX_INPUT_ROUNDS):
                request = types.CallToolRequest(params=params)
                # Not `call_tool`, which validates results against the output schema: the model judges the result.
                result = await self._send(
                    self._client.send_request(request, _CALL_RESULT, progress_callback=on_progress)
                )
                if not isinstance(result, types.InputRequiredResult):
                    return _to_json(result)
                params = await self._with_input_responses(params, result)
            raise CallFailed("It requests input repeatedly and never starts.")
        finally:
            self._elicitation_handlers.remove(on_elicitation)

    async def _with_input_responses(
        self, params: types.CallToolRequestParams, required: types.InputRequiredResult
    ) -> types.CallToolRequestParams:
        """Return the call with answers to the requested inputs, as the newest protocol revision requires."""
        context = ClientRequestContext(session=self._client, request_id=0)
        responses: types.InputResponses = {}
        for key, request in (required.input_requests or {}).items():
            answer = await self._client.dispatch_input_request(context, request)
            if isinstance(answer, types.ErrorData):
                raise CallFailed(answer.message)
            responses[key] = answer
        if not responses:
            await asyncio.sleep(_INPUT_ROUND_PAUSE)
        return params.model_copy(update={"input_responses": responses or None, "request_state": required.request_state})

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Forward an elicitation to the most recent call, because older protocol revisions do not name the call."""
        if not self._elicitation_handlers:
            return types.ErrorData(
                code=types.INVALID_REQUEST, message="No tool call is in progress, so the user is not asked."
            )
        return types.ElicitResult.model_validate(await self._elicitation_handlers[-1](_to_json(params)))

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the messages of a prompt."""
        return _to_json(await self._send(self._client.get_prompt(name, dict(arguments))))

    async def read_resource(self, uri: str) -> dict[str, Any]:
        """Return the contents of a resource."""
        return _to_json(await self._send(self._client.read_resource(uri)))

    async def ping(self) -> None:
        """Check the connection. Any response counts, except a gateway error that reports the server as unavailable."""
        try:
            await self._send(self._client.send_ping())
        except CallFailed:
            if self._monitor.status in _UNAVAILABLE:
                raise ConnectionClosed from None

    async def _send(self, sending: Awaitable[T]) -> T:
        try:
            return await sending
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise ConnectionClosed(f"{error.message.rstrip('.')}.") from None
            if self._monitor.is_session_unknown(error.message):
                raise SessionExpired from None
            raise CallFailed(error.message) from None
        except ValidationError as error:
            raise CallFailed(f"Its response does not follow the protocol ({error.error_count()} errors).") from None
        except RuntimeError as error:
            raise CallFailed(str(error)) from None

    # Handshake and notifications

    async def initialize(self, client: ClientSession) -> None:
        """Perform the `initialize` handshake, or `discover` for servers that support only the newer protocol."""
        self._client = client
        try:
            await client.initialize()
        except MCPError as error:
            if error.code not in _HANDSHAKE_REFUSED:
                raise
            await client.discover()

    async def watch_lists(self) -> None:
        """Subscribe to list changes, which servers of the newest revision require. Returns if it is not supported."""
        tools, prompts, resources = (self.has_capability(list_name) for list_name in LISTS)
        loop = asyncio.get_running_loop()
        delay = FIRST_DELAY
        while tools or prompts or resources:
            started_at = loop.time()
            try:
                async with listen(
                    self._client,
                    tools_list_changed=tools,
                    prompts_list_changed=prompts,
                    resources_list_changed=resources,
                ) as lists:
                    # Notifications are also delivered to `on_message`, so they are ignored here.
                    async for _ in lists:
                        pass
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
                self._params.on_disruption()
            except SubscriptionLost:
                self._params.on_disruption()
            delay = FIRST_DELAY if loop.time() - started_at > MAX_DELAY else min(2 * delay, MAX_DELAY)
            await asyncio.sleep(delay)
            for list_name in LISTS:
                self._params.on_list_changed(list_name)

    async def on_message(self, message: IncomingMessage) -> None:
        """Handle a notification that a list has changed."""
        if (list_name := _CHANGES.get(type(message))) is not None:
            self._params.on_list_changed(list_name)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Append a log notification to the server's log."""
        self._params.write_log(f"[{params.level}] {params.data}\n".encode("utf-8", "replace"))

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        """Return the workspace directory as the only root."""
        place = Path(self._params.directory)
        root = types.Root.model_validate({"uri": place.as_uri(), "name": place.name or "/"})
        return types.ListRootsResult(roots=[root])


@asynccontextmanager
async def open_connection(params: ConnectionParams, seconds: float) -> AsyncIterator[McpConnection]:
    """Open a connection that is ready for use within `seconds`. All its resources are released at the end of the block.

    Raises `StartFailed`, `LoginNeeded`, `ConnectionClosed`, or another exception, alone or in a group.
    """
    monitor = ResponseMonitor(params.on_disruption)
    connection = McpConnection(params, monitor)
    info = types.Implementation(name="holdfast", version=__version__)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(seconds):
                streams, exit_reason = await _open_streams(stack, params, monitor)
                client = ClientSession(
                    _WatchedStream(streams[0], connection),
                    streams[1],
                    client_info=info,
                    message_handler=connection.on_message,
                    logging_callback=connection.on_log,
                    list_roots_callback=connection.roots,
                    elicitation_callback=connection.elicit,
                )
                await connection.initialize(await stack.enter_async_context(client))
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    await stack.enter_async_context(_watching_lists(connection))
        except TimeoutError:
            raise ConnectionClosed(f"It did not answer within {seconds:g} seconds.") from None
        except MCPError as error:
            raise ConnectionClosed(await _handshake_error(error, exit_reason, monitor)) from None
        yield connection
        if not connection.reason and exit_reason is not None:
            connection.reason = await _await_exit_reason(exit_reason)


@asynccontextmanager
async def _watching_lists(connection: McpConnection) -> AsyncIterator[None]:
    tasks = TaskOwner()
    tasks.start(connection.watch_lists(), name="MCP list changes")
    try:
        yield
    finally:
        tasks.cancel_all()
        await tasks.drain()


async def _open_streams(
    stack: AsyncExitStack, plan: ConnectionParams, monitor: ResponseMonitor
) -> tuple[TransportStreams, ExitReason | None]:
    if plan.type == "stdio":
        reader, outbox, exit_reason = await stack.enter_async_context(run_program(plan))
        return (reader, outbox), exit_reason
    streams = open_http_streams(plan.type, plan.url, plan.headers, plan.tokens, monitor)
    return await stack.enter_async_context(streams), None


async def _handshake_error(error: MCPError, exit_reason: ExitReason | None, monitor: ResponseMonitor) -> str:
    """Return the reason for a failed handshake."""
    if exit_reason is not None and error.code == types.CONNECTION_CLOSED:
        return await _await_exit_reason(exit_reason)
    if monitor.status >= 400:
        hint = " If it uses the older SSE transport, set its type to sse." if monitor.status in _WRONG_ENDPOINT else ""
        return f"It answered with status {monitor.status}.{hint}"
    return f"It refused the handshake: {error.message}."


async def _await_exit_reason(exit_reason: ExitReason) -> str:
    """Return how the program ended. Raises `StartFailed` if it never ran."""
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT):
            return await exit_reason()
    except TimeoutError:
        return "It closed its output."


def _replace_invalid_schemas(tools: list[dict[str, Any]]) -> list[str]:
    """Replace invalid schemas, and those beyond the size limit, by an empty one. Returns the complaints. Blocks."""
    complaints: list[str] = []
    size = 0
    for tool in tools:
        size += len(str(tool["inputSchema"]))
        if error := schema_error(tool["inputSchema"]) if size <= _MAX_SCHEMAS else "there are too many of them":
            complaints.append(f"what {tool['name']} takes is not told: {error}")
            tool["inputSchema"] = {"type": "object"}
    return complaints


def _to_json(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
