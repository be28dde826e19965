"""One connection to a server: made, spoken over and closed within the task of whoever opened it.

What others ask of it they may ask from any task. This module imports `mcp`, which takes long: it is imported in a
thread, when a server is configured.
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
from holdfast.extensions.mcp.http import Seen, reaching
from holdfast.extensions.mcp.mending import mended
from holdfast.extensions.mcp.patience import Pace
from holdfast.extensions.mcp.schemas import fault_in
from holdfast.extensions.mcp.shapes import LISTS, Ask, ListName, Plan, Progress
from holdfast.extensions.mcp.states import FIRST_PAUSE, LONGEST_PAUSE
from holdfast.extensions.mcp.stdio import How, running
from holdfast.extensions.mcp.troubles import CallFailed, Expired, Gone
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
"""Characters of all schemas of a list together."""
_MOST_ROUNDS = 10
_BETWEEN_ROUNDS = 0.25
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
    """A stream that tells when something came, and when it has ended. Lists that come are mended on the way."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], connection: "Connection") -> None:
        self._stream = stream
        self._connection = connection
        self._pace = Pace()

    @property
    def last_context(self) -> object:
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
        except Gone as error:
            self._connection.end(str(error))
            raise StopAsyncIteration from None
        self._connection.heard_at = asyncio.get_running_loop().time()
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            for complaint in mended(item.message.result):
                self._connection.note(complaint)
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
        self._asks: list[Ask] = []
        self.heard_at = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()
        self.why = ""
        """Why it ended, as far as anybody knows."""

    def end(self, why: str = "") -> None:
        """It is of no more use: whoever opened it closes it."""
        self.why = self.why or why
        self.ended.set()

    def note(self, what: str) -> None:
        """For those who look at what it has printed."""
        self._plan.said(f"[{what}]\n".encode("utf-8", "replace"))

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
        if what == "tools":
            for complaint in await asyncio.to_thread(_without_faults, items):
                self.note(complaint)
        return items

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: Progress, ask: Ask) -> dict[str, Any]:
        """Whoever is cancelled meanwhile has it cancelled on the server, too. What the server wants to know of the
        person while it works is asked with `ask`.
        """
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        self._asks.append(ask)
        try:
            for _ in range(_MOST_ROUNDS):
                request = types.CallToolRequest(params=params)
                # Not `call_tool`: what a server returns is for the model to judge, not for a schema.
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
        """The same call again, with what the server wanted to know first: as the newest revision has it."""
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
        """Asked for the call that began last: the older revisions do not say for which."""
        if not self._asks:
            return types.ErrorData(code=types.INVALID_REQUEST, message="No tool is at work: nobody is asked.")
        return types.ElicitResult.model_validate(await self._asks[-1](_plain(params)))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        return _plain(await self._answer(self._client.get_prompt(name, dict(arguments))))

    async def read(self, uri: str) -> dict[str, Any]:
        return _plain(await self._answer(self._client.read_resource(uri)))

    async def ping(self) -> None:
        """Any answer will do, unless it is somebody else who says that the server is away."""
        try:
            await self._answer(self._client.send_ping())
        except CallFailed:
            if self._seen.status in _AWAY:
                raise Gone from None

    async def _answer(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                raise Gone(f"{error.message.rstrip('.')}.") from None
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

    async def listen(self) -> None:
        """Servers of the newest revision tell of their lists to those who ask for it. Ends when they cannot."""
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
                    # What comes is told to `on_message` as well.
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
            raise Gone(f"It did not answer within {seconds:g} seconds.") from None
        except MCPError as error:
            raise Gone(await _reason(error, how, seen)) from None
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


def _without_faults(tools: list[dict[str, Any]]) -> list[str]:
    """What is no schema is left out, and told; so is what would take too long to look at. Blocks."""
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
