"""Servers of tools as objects of this process, in virtual time: programs whose pipes are memory.

The client is the real one, from the settings down to the lines on the pipes. A program answers as its table of
methods says; a method can also hang, end the program, or be an error.
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
from holdfast.workspace.process.guard import CannotStart

__all__ = ["Context", "Program", "Site", "ends", "hangs", "in_virtual_time", "now", "play", "refuses", "tool"]

T = TypeVar("T")
Json = dict[str, Any]
Handler = Callable[["Program", Json], Json | None]

TOOLS = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}, "logging": {}}


def tool(name: str, **more: Any) -> Json:  # noqa: ANN401 - any JSON
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}, **more}


class _Loop(SeededLoop):
    """What would run in a thread runs at once: files of a test are quick."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]  # noqa: ANN401
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it to its end. Afterwards there must be no task left, and no error that nobody has seen."""
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
            asyncio.get_running_loop().call_soon(self._program.hear, json.loads(line))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._program.lose_input()


class Program:
    """One start of a server."""

    def __init__(self, site: "Site", command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.site = site
        self.command = tuple(command)
        self.environment = dict(environment)
        self.began_at = asyncio.get_running_loop().time()
        self.stdin = _Stdin(self)
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.heard: list[Json] = []
        self.killed_at: float | None = None
        self.is_closed = False
        self.stops: list[float] = []
        """The graces with which it was asked to end."""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # The program's side

    def hear(self, message: Json) -> None:
        if self._ended.done():
            return
        self.heard.append(message)
        self.site.news.set()
        handler = self.site.methods.get(message.get("method", ""))
        if handler is None:
            if "id" in message and "method" in message:
                self.say(id=message["id"], result={})
            return
        answer = handler(self, message)
        if answer is not None and "id" in message:
            self.say(id=message["id"], **answer)

    def say(self, **message: Any) -> None:  # noqa: ANN401 - any JSON
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
        if not self.site.is_stubborn:
            self.end()

    def count(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.heard)

    # The client's side

    def kill(self) -> None:
        if self.killed_at is None:
            self.killed_at = asyncio.get_running_loop().time()
        if not self.site.is_undying:
            self.end(137)

    def close(self) -> None:
        self.kill()
        self.is_closed = True
        if not self._ended.done():
            self.stdout.feed_eof()
            self.stderr.feed_eof()

    async def stop(self, grace: float) -> None:
        self.stops.append(grace)
        if self.site.is_stubborn:
            await asyncio.wait({self._ended}, timeout=grace)
            self.kill()
        else:
            self.end()
        await asyncio.shield(self._ended)

    async def wait(self) -> int:
        if self.site.cannot_run:
            raise CannotStart(self.site.cannot_run)
        return await asyncio.shield(self._ended)


def _initialize(_: Program, message: Json) -> Json:
    version = message["params"]["protocolVersion"]
    about = {"name": "memory", "version": "1"}
    return {"result": {"protocolVersion": version, "capabilities": TOOLS, "serverInfo": about}}


class Site:
    """A workspace with servers of tools. `methods` is what programs answer from now on."""

    def __init__(self, top: Path, pause: float = 0.3, **servers: Json) -> None:
        self.place = SettingsFiles(top)
        self.programs: list[Program] = []
        self.events: list[LiveEvent] = []
        self.news = asyncio.Event()
        self.is_stubborn = False
        """Programs do not end by themselves."""
        self.is_undying = False
        """Programs do not end when they are killed either."""
        self.cannot_spawn = ""
        self.cannot_run = ""
        self.items: dict[str, list[Json]] = {"tools": [tool("go")], "prompts": [], "resources": []}
        self.methods: dict[str, Handler] = {
            "initialize": _initialize,
            **{f"{what}/list": self._lister(what) for what in self.items},
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
        """Write the settings, as a person does."""
        self.place.write(self.place.data / "config.json", json.dumps({"mcp": servers}))
        if not hasattr(self, "configuration"):
            self.configuration = self.place.open()
        self.configuration.current()

    def _lister(self, what: str) -> Handler:
        return lambda _, message: {"result": {what: list(self.items[what])}}

    def _publish(self, event: LiveEvent) -> None:
        self.events.append(event)
        self.news.set()

    async def _spawn(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> Program:
        assert has_input
        assert directory == str(self.place.project)
        if self.cannot_spawn:
            raise OSError(2, self.cannot_spawn)
        program = Program(self, arguments, environment)
        self.programs.append(program)
        self.news.set()
        return program

    @property
    def last(self) -> Program:
        return self.programs[-1]

    def state(self, name: str = "s") -> McpInfo:
        return self.mcp.states()[name]

    def told(self) -> list[tuple[str, str, int]]:
        """Every notice: its kind, the state and the number of tools."""
        notices = [event.change.object for event in self.events if isinstance(event, McpEvent)]
        return [(notice.type, notice.state, notice.tool_count) for notice in notices]

    async def until(self, condition: Callable[[], object]) -> None:
        """Until something that is told makes it true."""
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def stands(self, *states: str, name: str = "s") -> McpInfo:
        await self.until(lambda: self.state(name).state in states)
        return self.state(name)

    async def call(
        self, tool: str = "mcp_s_go", *, context: "Context | None" = None, **arguments: object
    ) -> ToolOutcome:
        found = next(item for item in self.mcp.tools() if item.spec.name == tool)
        return await found.run(cast(ToolContext, context or Context(self)), arguments)

    def unreleased(self) -> list[Program]:
        """Programs that were started, and not both killed and closed."""
        return [program for program in self.programs if program.killed_at is None or not program.is_closed]


class Context:
    """What a tool is given: everything is permitted, and what it says is noted."""

    def __init__(self, site: Site, answer: Callable[[Any], Awaitable[Any]] | None = None) -> None:
        self.workspace_path = str(site.place.project)
        self.takes_images = False
        self.said: list[str] = []
        self.permits: list[Any] = []
        self._answer = answer

    async def permit(self, permit: Any) -> None:  # noqa: ANN401
        self.permits.append(permit)

    def publish_output(self, text: str) -> None:
        self.said.append(text)

    async def ask_questions(self, batch: Any) -> Any:  # noqa: ANN401
        assert self._answer is not None
        return await self._answer(batch)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def play(top: Path, story: Callable[[Site], Coroutine[Any, Any, None]], pause: float = 0.3, **servers: Json) -> None:
    """Open the workspace, tell the story, close it, and see that nothing is left."""

    async def main() -> None:
        site = Site(top, pause, **(servers or {"s": {"command": "x"}}))
        try:
            site.mcp.start()
            await story(site)
        finally:
            site.is_undying = False
            await site.mcp.close()
        assert site.unreleased() == []

    in_virtual_time(main)


# What a program may do when a method is called


def ends(program: Program, _: Json) -> None:
    program.print("last words\n")
    program.end(3)


def refuses(_: Program, __: Json) -> Json:
    return {"error": {"code": -32603, "message": "not today"}}


def hangs(_: Program, __: Json) -> None:
    return None
