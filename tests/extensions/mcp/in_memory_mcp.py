"""MCP servers in this process, in virtual time: programs whose pipes are memory.

The client is the real one, from the settings to the lines on the pipes. A program answers as its table of methods
specifies; a method can also hang, end the program, or return an error.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from config.settings_files import SettingsFiles
from holdfast.config.credentials import Credentials
from holdfast.domain.events import LiveEvent, McpEvent
from holdfast.domain.extensions import McpInfo
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.mcp.extension import McpExtension
from holdfast.testing.seeded_loop import SeededLoop
from holdfast.workspace.process.guard_client import CannotStart

__all__ = [
    "Context",
    "McpFixture",
    "Program",
    "ends",
    "hangs",
    "in_virtual_time",
    "now",
    "refuses",
    "run_scenario",
    "tool",
]

T = TypeVar("T")
Json = dict[str, Any]
Handler = Callable[["Program", Json], Json | None]

TOOLS = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}, "logging": {}}


def tool(name: str, **more: Any) -> Json:  # noqa: ANN401 - any JSON
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}, **more}


class _Loop(SeededLoop):
    """Loop that runs executor jobs at once: the files of a test are small."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]  # noqa: ANN401
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. Afterwards there must be no task left and no unretrieved error."""
    loop = _Loop(lambda _: 0)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main())
        rest = [task.get_name() for task in asyncio.all_tasks(loop)]
        assert rest == [], f"tasks are left: {rest}"
        assert loop.failures == []
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.abandon()


class _Stdin:
    """A pipe that is never full, as the client sees it."""

    def __init__(self, program: "Program") -> None:
        self._program = program
        self.is_closed = False
        self.transport = self
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            asyncio.get_running_loop().call_soon(self._program.receive, json.loads(line))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._program.lose_input()


class Program:
    """One start of a server."""

    def __init__(self, fixture: "McpFixture", command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.fixture = fixture
        self.command = tuple(command)
        self.environment = dict(environment)
        self.began_at = asyncio.get_running_loop().time()
        self.stdin = _Stdin(self)
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.received: list[Json] = []
        self.killed_at: float | None = None
        self.is_closed = False
        self.stops: list[float] = []
        """The grace periods of the stop requests."""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # Server side

    def receive(self, message: Json) -> None:
        if self._ended.done():
            return
        self.received.append(message)
        self.fixture.changed.set()
        handler = self.fixture.methods.get(message.get("method", ""))
        if handler is None:
            if "id" in message and "method" in message:
                self.send(id=message["id"], result={})
            return
        answer = handler(self, message)
        if answer is not None and "id" in message:
            self.send(id=message["id"], **answer)

    def send(self, **message: Any) -> None:  # noqa: ANN401 - any JSON
        if not self._ended.done():
            self.stdout.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def print(self, text: str) -> None:
        self.stderr.feed_data(text.encode())

    def end(self, code: int = 0) -> None:
        if not self._ended.done():
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            self._ended.set_result(code)

    def lose_input(self) -> None:
        if not self.fixture.is_stubborn:
            self.end()

    def count(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.received)

    # Client side

    def kill(self) -> None:
        if self.killed_at is None:
            self.killed_at = asyncio.get_running_loop().time()
        if not self.fixture.is_undying:
            self.end(137)

    def close(self) -> None:
        self.kill()
        self.is_closed = True
        if not self._ended.done():
            self.stdout.feed_eof()
            self.stderr.feed_eof()

    async def stop(self, grace: float) -> None:
        self.stops.append(grace)
        if self.fixture.is_stubborn:
            await asyncio.wait({self._ended}, timeout=grace)
            self.kill()
        else:
            self.end()
        await asyncio.shield(self._ended)

    async def wait(self) -> int:
        if self.fixture.cannot_run:
            raise CannotStart(self.fixture.cannot_run)
        return await asyncio.shield(self._ended)


def _initialize(_: Program, message: Json) -> Json:
    version = message["params"]["protocolVersion"]
    about = {"name": "memory", "version": "1"}
    return {"result": {"protocolVersion": version, "capabilities": TOOLS, "serverInfo": about}}


class McpFixture:
    """A workspace with MCP servers. `methods` has the answers of programs from now on."""

    def __init__(self, top: Path, pause: float = 0.3, **servers: Json) -> None:
        self.place = SettingsFiles(top)
        self.programs: list[Program] = []
        self.events: list[LiveEvent] = []
        self.changed = asyncio.Event()
        self.is_stubborn = False
        """Programs do not end by themselves."""
        self.is_undying = False
        """Programs do not end when they are killed."""
        self.cannot_spawn = ""
        self.cannot_run = ""
        self.items: dict[str, list[Json]] = {"tools": [tool("go")], "prompts": [], "resources": []}
        self.methods: dict[str, Handler] = {
            "initialize": _initialize,
            **{f"{what}/list": self._list_handler(what) for what in self.items},
            "tools/call": lambda _, message: {"result": {"content": [{"type": "text", "text": "done"}]}},
        }
        self.configure(**servers)
        self.ground = ExtensionContext(
            str(self.place.project),
            self.place.data,
            self.configuration,
            Credentials(str(top / "credentials.toml"), {"HOLDFAST_KEYRING": "0"}),
            cast(Any, self._spawn),
            {"GIVEN": "by the client"},
            self._publish,
            lambda: (("WITHHELD",), ("a-secret-value",)),
        )
        self.mcp = McpExtension(self.ground, pause)

    def configure(self, **servers: Json) -> None:
        """Write the settings file."""
        self.place.write(self.place.data / "config.json", json.dumps({"mcp": servers}))
        if not hasattr(self, "configuration"):
            self.configuration = self.place.open()
        self.configuration.current()

    def _list_handler(self, what: str) -> Handler:
        return lambda _, message: {"result": {what: list(self.items[what])}}

    def _publish(self, event: LiveEvent) -> None:
        self.events.append(event)
        self.changed.set()

    async def _spawn(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> Program:
        assert has_input
        assert directory == str(self.place.project)
        if self.cannot_spawn:
            raise OSError(2, self.cannot_spawn)
        program = Program(self, arguments, environment)
        self.programs.append(program)
        self.changed.set()
        return program

    @property
    def last(self) -> Program:
        return self.programs[-1]

    def state(self, name: str = "s") -> McpInfo:
        return self.mcp.states()[name]

    def published(self) -> list[tuple[str, str, int]]:
        """Return the published events: kind, state and number of tools."""
        notices = [event.change.object for event in self.events if isinstance(event, McpEvent)]
        return [(notice.type, notice.state, notice.tool_count) for notice in notices]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a published event that makes the condition true."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def wait_for_state(self, *states: str, name: str = "s") -> McpInfo:
        await self.wait_until(lambda: self.state(name).state in states)
        return self.state(name)

    async def call(
        self, tool: str = "mcp_s_go", *, context: "Context | None" = None, **arguments: object
    ) -> ToolOutcome:
        found = next(item for item in self.mcp.tools() if item.spec.name == tool)
        return await found.run(cast(ToolContext, context or Context(self)), arguments)

    def unreleased(self) -> list[Program]:
        """Return programs that were started and not both killed and closed."""
        return [program for program in self.programs if program.killed_at is None or not program.is_closed]


class Context:
    """Context of a tool call: every permission is granted, and the output is recorded."""

    def __init__(self, fixture: McpFixture, answer: Callable[[Any], Awaitable[Any]] | None = None) -> None:
        self.workspace_path = str(fixture.place.project)
        self.takes_images = False
        self.reported: list[str] = []
        self.permits: list[Any] = []
        self._answer = answer

    async def permit(self, permit: Any) -> None:  # noqa: ANN401
        self.permits.append(permit)

    def publish_output(self, text: str) -> None:
        self.reported.append(text)

    async def ask_questions(self, batch: Any) -> Any:  # noqa: ANN401
        assert self._answer is not None
        return await self._answer(batch)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def run_scenario(
    top: Path, scenario: Callable[[McpFixture], Coroutine[Any, Any, None]], pause: float = 0.3, **servers: Json
) -> None:
    """Open the workspace, run the scenario, close the workspace, and check that nothing is left."""

    async def main() -> None:
        fixture = McpFixture(top, pause, **(servers or {"s": {"command": "x"}}))
        try:
            fixture.mcp.start()
            await scenario(fixture)
        finally:
            fixture.is_undying = False
            await fixture.mcp.close()
        assert fixture.unreleased() == []

    in_virtual_time(main)


# Behaviours of a program when a method is called


def ends(program: Program, _: Json) -> None:
    program.print("last words\n")
    program.end(3)


def refuses(_: Program, __: Json) -> Json:
    return {"error": {"code": -32603, "message": "not today"}}


def hangs(_: Program, __: Json) -> None:
    return None
