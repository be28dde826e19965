"""Language servers in this process, in virtual time: programs whose pipes are memory."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from config.settings_files import SettingsFiles
from extensions.mcp.in_memory_mcp import in_virtual_time
from holdfast.config.credentials import Credentials
from holdfast.domain.events import LiveEvent, LspEvent
from holdfast.domain.extensions import LspInfo, LspState
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.workspace.process.guard_client import CannotStart

__all__ = ["LspFixture", "Program", "hangs", "now", "run_scenario"]

Json = dict[str, Any]
Handler = Callable[["Program", Json], object]
SILENT = object()


class _Stdin:
    def __init__(self, program: "Program") -> None:
        self._program = program
        self._unread = b""

    def write(self, data: bytes) -> None:
        self._unread += data
        while b"\r\n\r\n" in self._unread:
            head, _, rest = self._unread.partition(b"\r\n\r\n")
            length = int(head.rpartition(b":")[2])
            body, self._unread = rest[:length], rest[length:]
            asyncio.get_running_loop().call_soon(self._program.receive, json.loads(body))

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self._program.fixture.is_deaf:
            await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Ignored: the program ends on request only."""


class Program:
    """One launch of a server."""

    def __init__(
        self, fixture: "LspFixture", command: Sequence[str], root: str, environment: Mapping[str, str]
    ) -> None:
        self.fixture = fixture
        self.command = tuple(command)
        self.root = root
        self.environment = dict(environment)
        self.began_at = asyncio.get_running_loop().time()
        self.stdin = _Stdin(self)
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self.received: list[Json] = []
        self.killed_at: float | None = None
        self.is_closed = False
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # Server side

    def receive(self, message: Json) -> None:
        if self._ended.done():
            return
        self.received.append(message)
        self.fixture.changed.set()
        method = message.get("method", "")
        if method == "exit":
            self.end()
            return
        handler = self.fixture.methods.get(method)
        answer = handler(self, message) if handler is not None else None
        if "id" in message and method and answer is not SILENT:
            self.send(id=message["id"], **(answer if isinstance(answer, dict) else {"result": None}))

    def send(self, **message: Any) -> None:  # noqa: ANN401 - any JSON
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def send_bytes(self, data: bytes) -> None:
        if not self._ended.done():
            self.stdout.feed_data(data)

    def publish(self, path: str, *texts: str, version: int | None = None) -> None:
        spot = {"line": 0, "character": 0}
        found = [{"range": {"start": spot, "end": spot}, "severity": 1, "message": text} for text in texts]
        params: Json = {"uri": file_uri(path), "diagnostics": found}
        self.send(
            method="textDocument/publishDiagnostics", params=params | ({} if version is None else {"version": version})
        )

    def end(self, code: int = 0, words: str = "") -> None:
        if not self._ended.done():
            if words:
                self.stderr.feed_data(words.encode())
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            self._ended.set_result(code)

    def count(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.received)

    def params(self, method: str) -> list[Json]:
        return [message["params"] for message in self.received if message.get("method") == method]

    # Client side

    def kill(self) -> None:
        if self.killed_at is None:
            self.killed_at = asyncio.get_running_loop().time()
        self.end(137)

    def close(self) -> None:
        self.kill()
        self.is_closed = True

    async def wait(self) -> int:
        if self.fixture.cannot_run:
            raise CannotStart(self.fixture.cannot_run)
        return await asyncio.shield(self._ended)


class LspFixture:
    """A workspace with a language server for `.txt` files."""

    def __init__(self, top: Path, name: str = "tongue", **more: Any) -> None:  # noqa: ANN401 - keys of its settings
        self.name = name
        self.place = SettingsFiles(top)
        self.programs: list[Program] = []
        self.events: list[LiveEvent] = []
        self.changed = asyncio.Event()
        self.is_deaf = False
        self.cannot_run = ""
        self.holds_spawns: asyncio.Event | None = None
        self.cannot_spawn: Exception | None = None
        self.capabilities: Json = {"textDocumentSync": 1}
        self.methods: dict[str, Handler] = {
            "initialize": lambda _, message: {"result": {"capabilities": self.capabilities}},
        }
        self.program = top / "bin/tongue"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        self.program.write_text("#!/bin/sh\n")
        self.program.chmod(0o755)
        self.file = self.place.project / "a.txt"
        self.file.write_text("one\n")
        self.configure(**more)
        self.ground = ExtensionContext(
            str(self.place.project),
            self.place.data,
            self.configuration,
            Credentials(str(top / "c.toml"), {"HOLDFAST_KEYRING": "0"}),
            cast(Any, self._spawn),
            {"PATH": "/usr/bin:/bin", "GIVEN": "by the client"},
            self._publish,
            lambda: (("WITHHELD",), ()),
        )
        self.manager = LspManager(self.ground)

    def configure(self, options: Json | None = None, **more: Any) -> None:  # noqa: ANN401
        settings = {"command": str(self.program), "filetypes": ["txt"], **more}
        tree = {"lsp": {self.name: settings}, "options": {"auto_lsp": False, **(options or {})}}
        self.place.write(self.place.data / "config.json", json.dumps(tree))
        if not hasattr(self, "configuration"):
            self.configuration = self.place.open()
        self.configuration.current()

    def _publish(self, event: LiveEvent) -> None:
        self.events.append(event)
        self.changed.set()

    async def _spawn(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> Program:
        assert has_input
        if self.cannot_spawn is not None:
            raise self.cannot_spawn
        if self.holds_spawns is not None:
            await self.holds_spawns.wait()
        program = Program(self, arguments, directory, environment)
        self.programs.append(program)
        self.changed.set()
        return program

    @property
    def last(self) -> Program:
        return self.programs[-1]

    def info(self) -> LspInfo:
        return self.manager.infos()[self.name]

    def published(self) -> list[tuple[str, LspState, int]]:
        notices = [event.change.object for event in self.events if isinstance(event, LspEvent)]
        return [(notice.type, notice.state, notice.diagnostic_count) for notice in notices]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def wait_for_state(self, *states: LspState) -> LspInfo:
        await self.wait_until(lambda: self.info().state in states)
        return self.info()

    async def touch_file(self) -> None:
        """Open the file, which starts the server."""
        await self.manager.servers_for(str(self.file))


def hangs(_: Program, __: Json) -> object:
    """Leave a request without a response."""
    return SILENT


def now() -> float:
    """Return the time of the virtual loop in milliseconds precision."""
    return round(asyncio.get_running_loop().time(), 3)


def run_scenario(top: Path, scenario: Callable[[LspFixture], Coroutine[Any, Any, None]], **more: Any) -> None:  # noqa: ANN401
    """Run a scenario in virtual time; afterwards every started program must be killed and closed."""

    async def main() -> None:
        fixture = LspFixture(top, **more)
        try:
            await scenario(fixture)
        finally:
            await fixture.manager.close()
        assert [program for program in fixture.programs if program.killed_at is None or not program.is_closed] == []

    in_virtual_time(main)
