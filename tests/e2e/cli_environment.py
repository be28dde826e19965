"""A complete user environment: a home with settings, `holdfast serve` as a process, the real commands, a scripted
provider.

The provider runs in the event loop of the test, so commands are awaited.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import locate
from holdfast.client.stream import EventStream
from holdfast.domain.events import HelloEvent, RunComplete, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Attachment
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.gates import start
from model_server.script import Reply, Say
from model_server.server import ModelServer, RecordedRequest
from scratch import new_directory
from server.helpers import RawStream, read_until, run_ended

__all__ = [
    "TIMEOUT",
    "CliEnvironment",
    "CompletedCommand",
    "WatchedWorkspace",
    "cli_environment",
    "model_requests",
    "text",
]

TIMEOUT = 20.0
_HIDDEN = ("_API_KEY", "_TOKEN")
_ISOLATED_VARIABLES = ("HOLDFAST", "XDG", "AWS_", "GOOGLE_", "VERTEXAI", "OLLAMA", "CRUSH", "AZURE")


class CompletedCommand(msgspec.Struct, frozen=True):
    """Result of a command."""

    code: int
    out: str
    err: str


class CliEnvironment:
    """The path is short, because it contains sockets, whose paths have at most 104 bytes."""

    def __init__(self, provider: ModelServer) -> None:
        self.provider = provider
        self.root = new_directory()
        self.project = self.root / "w"
        self.project.mkdir()
        (self.root / "r").mkdir(mode=0o700)
        self.settings = self.root / "c/holdfast/config.toml"
        self.settings.parent.mkdir(parents=True)
        self.data = self.root / "d"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ISOLATED_VARIABLES) and not name.endswith(_HIDDEN)
        }
        self.environment = {
            **kept,
            "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.root / "r"),
            "XDG_CONFIG_HOME": str(self.root / "c"),
            "XDG_DATA_HOME": str(self.root / "x"),
            "HOLDFAST_DATA_DIR": str(self.data),
            "HOLDFAST_KEYRING": "0",
            # The user who runs the tests may have one.
            "OLLAMA_HOST": "127.0.0.1:9",
        }
        self.server: asyncio.subprocess.Process | None = None
        self.log = ""
        """Output of the server on its terminal."""
        self._logging: asyncio.Task[None] | None = None
        self._clients: list[Client] = []
        self._started: list[asyncio.subprocess.Process] = []

    # Settings

    def write(self, more: str = "", *, provider: str = "", model: str = "", selection: str = "") -> None:
        """Write the usual settings: the scripted provider and two models."""
        self.settings.write_text(
            f"""
[models.large]
provider = "local"
model = "big"
{selection}
[providers.local]
type = "openai-compat"
base_url = "{self.provider.base_url()}"
api_key = "a-walking-key"
{provider}
[[providers.local.models]]
id = "big"
context_window = 100000
cost_per_1m_in = 2.0
cost_per_1m_out = 10.0
{model}
[[providers.local.models]]
id = "other"
context_window = 50000
{more}
"""
        )

    # The server

    async def serve(self, *options: str) -> int:
        """Start the server. Returns its process id when it listens."""
        self.server = await self.start("serve", *options)
        assert self.server.stderr is not None
        listens = asyncio.Event()
        self._logging = start(self._keep_log(self.server.stderr, listens))
        async with asyncio.timeout(TIMEOUT):
            await listens.wait()
        return self.server.pid

    async def serve_again(self, *options: str) -> int:
        """Restart it in the current environment."""
        await self.stop()
        return await self.serve(*options)

    def stored(self) -> str:
        """Return all files of the server except those for keys."""
        files = [path for path in self.data.rglob("*") if path.is_file() and path.name != "config.json"]
        return "".join(path.read_bytes().decode("latin-1") for path in files)

    async def _keep_log(self, lines: asyncio.StreamReader, listens: asyncio.Event) -> None:
        async for line in lines:
            self.log += line.decode()
            # The line of the Unix socket is last and names the process.
            if b"listening" in line and b", process " in line:
                listens.set()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.server is not None
        self.server.send_signal(number)
        async with asyncio.timeout(TIMEOUT):
            await self.server.wait()
        self.server = None

    async def client(self) -> Client:
        made = Client(locate(environment=self.environment).address, seconds=TIMEOUT)
        self._clients.append(made)
        return made

    async def open_workspace(self, env: Mapping[str, str] | None = None) -> "WatchedWorkspace":
        """Open the project with a client and a session."""
        client = await self.client()
        given = tuple(f"{name}={value}" for name, value in (self.environment | dict(env or {})).items())
        workspace = (await client.create_workspace(str(self.project), env=given)).id
        session = (await client.create_session(workspace)).id
        return WatchedWorkspace(client, workspace, session)

    # Commands

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast", *arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self.project,
            env=self.environment,
        )
        self._started.append(process)
        return process

    async def call(self, *arguments: str, stdin: str = "") -> CompletedCommand:
        process = await self.start(*arguments)
        async with asyncio.timeout(TIMEOUT):
            out, err = await process.communicate(stdin.encode())
        return CompletedCommand(process.returncode or 0, out.decode(), err.decode())

    async def stdout_of(self, *arguments: str, stdin: str = "") -> str:
        """Return the output of a command that must succeed."""
        done = await self.call(*arguments, stdin=stdin)
        assert done.code == 0, done.err
        return done.out.rstrip("\n")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for process in self._started:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if self._logging is not None:
            await self._logging
        shutil.rmtree(self.root, ignore_errors=True)


class WatchedWorkspace:
    """A workspace as a client sees it."""

    def __init__(self, client: Client, workspace: WorkspaceId, session: SessionId) -> None:
        self.client = client
        self.id = workspace
        self.session = session
        self._count = 0

    async def send(self, prompt: str, attachments: Iterable[Attachment] = ()) -> RunId:
        self._count += 1
        run = RunId(f"{self.session[:8]}-{self._count}")
        given = tuple(attachments) or None
        await self.client.send_prompt(self.id, AgentMessage(self.session, prompt, run, given, interactive=False))
        return run

    async def send_and_wait(
        self, prompt: str, attachments: Iterable[Attachment] = ()
    ) -> tuple[RunComplete, list[StreamEvent]]:
        """Send a prompt. Returns its end and all events up to it."""
        async with self.watching() as events:
            run = await self.send(prompt, attachments)
            seen = await read_until(events, run_ended(run))
        last = seen[-1].event
        assert isinstance(last, RunCompleteEvent)
        return last.change.object, seen

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[EventStream]:
        """Subscribe from now on, including live events."""
        cursor = (await self.client.snapshot(self.id)).cursor
        async with self.client.events(self.id, since=cursor) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            yield events

    async def whole_stream(self) -> RawStream:
        """Open the stream of stock clients."""
        path = f"/v1/workspaces/{self.id}/events?client_id={self.client.client_id}"
        return await RawStream.open(self.client.address, path)


def model_requests(provider: ModelServer, name: str = "") -> list[RecordedRequest]:
    """Return the requests to a model, without those for titles."""
    found = [send_and_wait for send_and_wait in provider.requests if send_and_wait.wire is not None]
    return [
        send_and_wait
        for send_and_wait in found
        if "tools" in send_and_wait.json and (not name or send_and_wait.json.get("model") == name)
    ]


def text(body: object) -> str:
    """Return the text of a message on the chat wire, in any form of its content."""
    assert isinstance(body, dict)
    content: Any = body["content"]
    if isinstance(content, str):
        return content
    return "".join(item.get("text", "") for item in content)


@asynccontextmanager
async def cli_environment(
    script: Callable[[RecordedRequest], Reply] | Iterable[Reply] | None = None,
    *,
    models: Mapping[str, int] | None = None,
    serves: bool = True,
) -> AsyncIterator[CliEnvironment]:
    """Start an environment with a server and a provider that answers `Hello.` by default."""
    async with ModelServer(
        script or [Reply((Say(("Hel", "lo.")),))], models=models or {"big": 1, "other": 1}
    ) as provider:
        cli_env = CliEnvironment(provider)
        cli_env.write()
        try:
            if serves:
                await cli_env.serve()
            yield cli_env
        finally:
            await cli_env.close()
