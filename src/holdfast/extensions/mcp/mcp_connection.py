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
from holdfast.extensions.mcp.detached_wait import RateLimit
from holdfast.extensions.mcp.http_transport import Seen, reaching
from holdfast.extensions.mcp.mcp_types import (
    FIRST_PAUSE,
    LISTS,
    LONGEST_PAUSE,
    Ask,
    CallFailed,
    ConnectionClosed,
    Expired,
    ListName,
    Plan,
    Progress,
)
from holdfast.extensions.mcp.sanitize import fault_in, mended
from holdfast.extensions.mcp.stdio_transport import How, running
from holdfast.tasks import TaskOwner

__all__ = ["Connection", "opened"]

T = TypeVar("T", bound=BaseModel)

MOST_PAGES = 50
_HANDSHAKE_REFUSED = frozenset({types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND})
_NOT_HERE = (404, 405)
_AWAY = (502, 503, 504)
_CALLED: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_MOST_SCHEMAS = 512 * 1024
"""Maximum characters of all schemas of a list together."""
_MOST_ROUNDS = 10
_BETWEEN_ROUNDS = 0.25
_ENDING = 1.0
_CHANGES: dict[type, ListName] = {
    types.ToolListChangedNotification: "tools",
    types.PromptListChangedNotification: "prompts",
    types.ResourceListChangedNotification: "resources",
}

# Errors of the library are reported in our own messages. Its log would contain a traceback for each unreachable server.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class _Watched:
    """A read stream that records the time of each message and the end of the stream, and sanitizes the lists in
    responses.
    """

    def __init__(self, stream: ReadStream[SessionMessage | Exception], connection: "Connection") -> None:
        self._stream = stream
        self._connection = connection
        self._pace = RateLimit()

    @property
    def last_context(self) -> object:
        """Pass through the context of the underlying stream, if it has one."""
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        await self._pace.step()
        try:
            item = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._connection.end()
            raise
        except ConnectionClosed as error:
            self._connection.end(str(error))
            raise StopAsyncIteration from None
        self._connection.heard_at = asyncio.get_running_loop().time()
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            for complaint in mended(item.message.result):
                self._connection.note(complaint)
        return item

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return await self.__anext__()

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> "_Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: ANN401 - three of them, as always
        return await self._stream.__aexit__(*error)


class Connection:
    """An open connection. Its requests raise `ConnectionClosed` when it has ended, and `CallFailed` when the server
    returns an error.
    """

    def __init__(self, plan: Plan, seen: Seen) -> None:
        self._plan = plan
        self._seen = seen
        self._client: ClientSession
        self._asks: list[Ask] = []
        self.heard_at = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()
        self.why = ""
        """The reason for the end, as far as it is known."""

    def end(self, why: str = "") -> None:
        """Mark the connection as unusable. The task that opened it closes it."""
        self.why = self.why or why
        self.ended.set()

    def note(self, what: str) -> None:
        """Append a note to the server's log."""
        self._plan.said(f"[{what}]\n".encode("utf-8", "replace"))

    # Server properties

    @property
    def instructions(self) -> str:
        """Instructions for the system prompt."""
        return self._client.instructions or ""

    def offers(self, what: ListName) -> bool:
        """Return whether the server has the capability for this list."""
        capabilities = self._client.server_capabilities
        return capabilities is not None and getattr(capabilities, what) is not None

    # Requests

    async def listed(self, what: ListName) -> list[dict[str, Any]]:
        """Return all pages of a list, up to `MOST_PAGES`."""
        client = self._client
        asked: dict[ListName, Callable[..., Awaitable[BaseModel]]] = {
            "tools": client.list_tools,
            "prompts": client.list_prompts,
            "resources": client.list_resources,
        }
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = _plain(await self._answer(asked[what](params=params)))
            items += page.get(what, [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
        if what == "tools":
            for complaint in await asyncio.to_thread(_without_faults, items):
                self.note(complaint)
        return items

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: Progress, ask: Ask) -> dict[str, Any]:
        """Call a tool and return its result. Cancelling this coroutine cancels the call on the server. `ask` answers
        elicitations of the server during the call.
        """
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        self._asks.append(ask)
        try:
            for _ in range(_MOST_ROUNDS):
                request = types.CallToolRequest(params=params)
                # Not `call_tool`, which validates results against the output schema: the model judges the result.
                result = await self._answer(self._client.send_request(request, _CALLED, progress_callback=progress))
                if not isinstance(result, types.InputRequiredResult):
                    return _plain(result)
                params = await self._with_answers(params, result)
            raise CallFailed("It asks again and again, and never begins.")
        finally:
            self._asks.remove(ask)

    async def _with_answers(
        self, params: types.CallToolRequestParams, wanted: types.InputRequiredResult
    ) -> types.CallToolRequestParams:
        """Return the call with answers to the requested inputs, as the newest protocol revision requires."""
        context = ClientRequestContext(session=self._client, request_id=0)
        given: types.InputResponses = {}
        for key, request in (wanted.input_requests or {}).items():
            answer = await self._client.dispatch_input_request(context, request)
            if isinstance(answer, types.ErrorData):
                raise CallFailed(answer.message)
            given[key] = answer
        if not given:
            await asyncio.sleep(_BETWEEN_ROUNDS)
        return params.model_copy(update={"input_responses": given or None, "request_state": wanted.request_state})

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Forward an elicitation to the most recent call, because older protocol revisions do not name the call."""
        if not self._asks:
            return types.ErrorData(code=types.INVALID_REQUEST, message="No tool is at work: nobody is asked.")
        return types.ElicitResult.model_validate(await self._asks[-1](_plain(params)))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the messages of a prompt."""
        return _plain(await self._answer(self._client.get_prompt(name, dict(arguments))))

    async def read(self, uri: str) -> dict[str, Any]:
        """Return the contents of a resource."""
        return _plain(await self._answer(self._client.read_resource(uri)))

    async def ping(self) -> None:
        """Check the connection. Any response counts, except a gateway error that reports the server as unavailable."""
        try:
            await self._answer(self._client.send_ping())
        except CallFailed:
            if self._seen.status in _AWAY:
                raise ConnectionClosed from None

    async def _answer(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise ConnectionClosed(f"{error.message.rstrip('.')}.") from None
            if self._seen.has_forgotten(error.message):
                raise Expired from None
            raise CallFailed(error.message) from None
        except ValidationError as error:
            raise CallFailed(f"It answered what the protocol does not know ({error.error_count()} mistakes).") from None
        except RuntimeError as error:
            raise CallFailed(str(error)) from None

    # Handshake and notifications

    async def greet(self, client: ClientSession) -> None:
        """Perform the `initialize` handshake, or `discover` for servers that support only the newer protocol."""
        self._client = client
        try:
            await client.initialize()
        except MCPError as error:
            if error.code not in _HANDSHAKE_REFUSED:
                raise
            await client.discover()

    async def listen(self) -> None:
        """Subscribe to list changes, which servers of the newest revision require. Returns if it is not supported."""
        tools, prompts, resources = (self.offers(what) for what in LISTS)
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while tools or prompts or resources:
            begun = loop.time()
            try:
                async with listen(
                    self._client,
                    tools_list_changed=tools,
                    prompts_list_changed=prompts,
                    resources_list_changed=resources,
                ) as news:
                    # Notifications are also delivered to `on_message`, so they are ignored here.
                    async for _ in news:
                        pass
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
                self._plan.faltered()
            except SubscriptionLost:
                self._plan.faltered()
            pause = FIRST_PAUSE if loop.time() - begun > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)
            for what in LISTS:
                self._plan.changed(what)

    async def on_message(self, message: IncomingMessage) -> None:
        """Handle a notification that a list has changed."""
        if (what := _CHANGES.get(type(message))) is not None:
            self._plan.changed(what)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Append a log notification to the server's log."""
        self._plan.said(f"[{params.level}] {params.data}\n".encode("utf-8", "replace"))

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        """Return the workspace directory as the only root."""
        place = Path(self._plan.directory)
        root = types.Root.model_validate({"uri": place.as_uri(), "name": place.name or "/"})
        return types.ListRootsResult(roots=[root])


@asynccontextmanager
async def opened(plan: Plan, seconds: float) -> AsyncIterator[Connection]:
    """Open a connection that is ready for use within `seconds`. All its resources are released at the end of the block.

    Raises `CannotBegin`, `LoginNeeded`, `ConnectionClosed`, or another exception, alone or in a group.
    """
    seen = Seen(plan.faltered)
    connection = Connection(plan, seen)
    info = types.Implementation(name="holdfast", version=__version__)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(seconds):
                streams, how = await _streams(stack, plan, seen)
                client = ClientSession(
                    _Watched(streams[0], connection),
                    streams[1],
                    client_info=info,
                    message_handler=connection.on_message,
                    logging_callback=connection.on_log,
                    list_roots_callback=connection.roots,
                    elicitation_callback=connection.elicit,
                )
                await connection.greet(await stack.enter_async_context(client))
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    await stack.enter_async_context(_listening(connection))
        except TimeoutError:
            raise ConnectionClosed(f"It did not answer within {seconds:g} seconds.") from None
        except MCPError as error:
            raise ConnectionClosed(await _reason(error, how, seen)) from None
        yield connection
        if not connection.why and how is not None:
            connection.why = await _ending(how)


@asynccontextmanager
async def _listening(connection: Connection) -> AsyncIterator[None]:
    tasks = TaskOwner()
    tasks.start(connection.listen(), name="hear of lists that change")
    try:
        yield
    finally:
        tasks.cancel_all()
        await tasks.drain()


async def _streams(stack: AsyncExitStack, plan: Plan, seen: Seen) -> tuple[TransportStreams, How | None]:
    if plan.type == "stdio":
        lines, mail, how = await stack.enter_async_context(running(plan))
        return (lines, mail), how
    reached = reaching(plan.type, plan.url, plan.headers, plan.tokens, seen)
    return await stack.enter_async_context(reached), None


async def _reason(error: MCPError, how: How | None, seen: Seen) -> str:
    """Return the reason for a failed handshake."""
    if how is not None and error.code == types.CONNECTION_CLOSED:
        return await _ending(how)
    if seen.status >= 400:
        hint = " If it speaks the older SSE, set its type to sse." if seen.status in _NOT_HERE else ""
        return f"It answered with status {seen.status}.{hint}"
    return f"It refused the handshake: {error.message}."


async def _ending(how: How) -> str:
    """Return how the program ended. Raises `CannotBegin` if it never ran."""
    try:
        async with asyncio.timeout(_ENDING):
            return await how()
    except TimeoutError:
        return "It closed its output."


def _without_faults(tools: list[dict[str, Any]]) -> list[str]:
    """Replace invalid schemas, and those beyond the size limit, by an empty one. Returns the complaints. Blocks."""
    complaints: list[str] = []
    size = 0
    for tool in tools:
        size += len(str(tool["inputSchema"]))
        if fault := fault_in(tool["inputSchema"]) if size <= _MOST_SCHEMAS else "there are too many of them":
            complaints.append(f"what {tool['name']} takes is not told: {fault}")
            tool["inputSchema"] = {"type": "object"}
    return complaints


def _plain(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
