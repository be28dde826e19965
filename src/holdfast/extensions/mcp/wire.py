"""One connection to a server: made, spoken over and closed within the task of whoever opened it.

What others ask of it they may ask from any task. This module imports `mcp`, which takes long: it is imported in a
thread, when a server is configured.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, ValidationError

from holdfast import __version__
from holdfast.extensions.mcp.http import Seen, reaching
from holdfast.extensions.mcp.shapes import ListName, Plan, Progress
from holdfast.extensions.mcp.stdio import How, running
from holdfast.extensions.mcp.troubles import CallFailed, Expired, Gone

__all__ = ["Connection", "opened"]

MOST_PAGES = 50
_HANDSHAKE_REFUSED = frozenset({types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND})
_NOT_HERE = (404, 405)
_ENDING = 1.0
_CHANGES: dict[type, ListName] = {
    types.ToolListChangedNotification: "tools",
    types.PromptListChangedNotification: "prompts",
    types.ResourceListChangedNotification: "resources",
}

# What it logs is told by us, in our words; some of it would be a traceback for every server that is away.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class _Watched:
    """A stream that tells when something came, and when it has ended."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], connection: "Connection") -> None:
        self._stream = stream
        self._connection = connection

    @property
    def last_context(self) -> object:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._connection.end()
            raise
        self._connection.heard_at = asyncio.get_running_loop().time()
        return item

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: ANN401 - three of them, as always
        return await self._stream.__aexit__(*error)


class Connection:
    """An open connection. Raises `Gone` when it has ended, `CallFailed` when the server refuses."""

    def __init__(self, plan: Plan, seen: Seen) -> None:
        self._plan = plan
        self._seen = seen
        self._client: ClientSession
        self.heard_at = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()
        self.why = ""
        """Why it ended, as far as anybody knows."""

    def end(self, why: str = "") -> None:
        """It is of no more use: whoever opened it closes it."""
        self.why = self.why or why
        self.ended.set()
        self._plan.ended()

    # What the server is

    @property
    def instructions(self) -> str:
        return self._client.instructions or ""

    def offers(self, what: ListName) -> bool:
        capabilities = self._client.server_capabilities
        return capabilities is not None and getattr(capabilities, what) is not None

    # What it is asked

    async def listed(self, what: ListName) -> list[dict[str, Any]]:
        """All of a list, page by page. A server that does not know the question has none."""
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
        return items

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
        """Whoever is cancelled meanwhile has it cancelled on the server, too."""
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        request = types.CallToolRequest(params=params)
        # Not `call_tool`: what a server returns is for the model to judge, not for a schema.
        asked = self._client.send_request(request, types.CallToolResult, progress_callback=progress)
        return _plain(await self._answer(asked))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        return _plain(await self._answer(self._client.get_prompt(name, dict(arguments))))

    async def read(self, uri: str) -> dict[str, Any]:
        return _plain(await self._answer(self._client.read_resource(uri)))

    async def ping(self) -> None:
        """Any answer will do."""
        try:
            await self._answer(self._client.send_ping())
        except CallFailed:
            return

    async def _answer(self, asked: Awaitable[BaseModel]) -> BaseModel:
        try:
            return await asked
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise Gone from None
            if self._seen.has_forgotten(error.message):
                raise Expired from None
            raise CallFailed(error.message) from None
        except ValidationError as error:
            raise CallFailed(f"It answered what the protocol does not know ({error.error_count()} mistakes).") from None
        except RuntimeError as error:
            raise CallFailed(str(error)) from None

    # How it begins

    async def greet(self, client: ClientSession) -> None:
        """The handshake that nearly all servers know; for one that does not, the newer way."""
        self._client = client
        try:
            await client.initialize()
        except MCPError as error:
            if error.code not in _HANDSHAKE_REFUSED:
                raise
            await client.discover()

    async def on_message(self, message: IncomingMessage) -> None:
        if (what := _CHANGES.get(type(message))) is not None:
            self._plan.changed(what)

    async def on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._plan.said(f"[{params.level}] {params.data}\n".encode("utf-8", "replace"))

    async def roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        place = Path(self._plan.directory)
        root = types.Root.model_validate({"uri": place.as_uri(), "name": place.name or "/"})
        return types.ListRootsResult(roots=[root])


@asynccontextmanager
async def opened(plan: Plan, seconds: float) -> AsyncIterator[Connection]:
    """A connection that is ready to be used after at most so many seconds. When this ends, nothing of it is left.

    Raises `CannotBegin`, `LoginNeeded`, `Gone`, or whatever else went wrong, alone or in a group.
    """
    seen = Seen()
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
                )
                await connection.greet(await stack.enter_async_context(client))
        except TimeoutError:
            raise Gone(f"It did not answer within {seconds:g} seconds.") from None
        except MCPError as error:
            raise Gone(await _reason(error, how, seen)) from None
        yield connection
        if not connection.why and how is not None:
            connection.why = await _ending(how)


async def _streams(stack: AsyncExitStack, plan: Plan, seen: Seen) -> tuple[TransportStreams, How | None]:
    if plan.type == "stdio":
        lines, mail, how = await stack.enter_async_context(running(plan))
        return (lines, mail), how
    reached = reaching(plan.type, plan.url, plan.headers, plan.tokens, seen)
    return await stack.enter_async_context(reached), None


async def _reason(error: MCPError, how: How | None, seen: Seen) -> str:
    """Why there was no handshake."""
    if how is not None and error.code == types.CONNECTION_CLOSED:
        return await _ending(how)
    if seen.status >= 400:
        hint = " If it speaks the older SSE, set its type to sse." if seen.status in _NOT_HERE else ""
        return f"It answered with status {seen.status}.{hint}"
    return f"It refused the handshake: {error.message}."


async def _ending(how: How) -> str:
    """Raises `CannotBegin` if the program never ran."""
    try:
        async with asyncio.timeout(_ENDING):
            return await how()
    except TimeoutError:
        return "It closed its output."


def _plain(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
