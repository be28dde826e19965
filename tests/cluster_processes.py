"""The processes of a cluster on this machine: nodes that share one PostgreSQL. For tests and `scripts/cluster`.

Each node has a home of its own, with a data directory, settings that select the scripted model, and a log. All nodes
declare the same place, so every workspace may move to any of them. The nodes end with the process that has started
them in every case: the kernel kills them when it dies.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.client.server_address import ServerAddress
from scratch import new_directory
from stream_servers import stream_server

__all__ = ["Forwarder", "Lateness", "NodeProcess", "forwarder", "node_that_executes", "poll_until", "running_nodes"]

PLACE = "shared"
_START_SECONDS = 40.0
_POLL_SECONDS = 0.02
_TIMER_SECONDS = 0.001
"""Lateness of a timer on an idle machine."""
_SETTINGS = '[models.large]\nprovider = "demo"\nmodel = "tour"\n'
_CHUNK = 65536


class NodeProcess:
    """One `holdfast serve`. It keeps its home and its socket when it is started again."""

    def __init__(self, name: str, home: Path, dsn: str) -> None:
        self.name = name
        self.home = home
        self.dsn = dsn
        self.socket = home / "s"
        self.log = home / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        (home / "r").mkdir(mode=0o700)
        settings = home / ".config/holdfast/config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(_SETTINGS)

    @property
    def address(self) -> ServerAddress:
        """The address for clients."""
        return ServerAddress(path=str(self.socket))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the server: nothing of the user's settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "XDG", "PG"))}
        return {
            **kept,
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "r"),
            "HOLDFAST_STORE": self.dsn,
        }

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process, which is not ready when this returns."""
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "a cluster needs setpriv of util-linux"
        options = ["--data-dir", str(self.home / "d"), "--host", f"unix://{self.socket}", "--label", f"place={PLACE}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", sys.executable, "-m", "holdfast", "serve", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=self.environment,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    async def wait_ready(self) -> None:
        """Return when the node answers. Raises `AssertionError` with its log if it ends or takes too long."""

        async def answers() -> bool:
            assert self.is_running, self.log.read_text(errors="replace")
            with suppress(OSError):
                _, writer = await asyncio.open_unix_connection(str(self.socket))
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return True
            return False

        assert await poll_until(answers, _START_SECONDS), self.log.read_text(errors="replace")

    def kill(self) -> None:
        """End the process as kill -9 does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def pause(self) -> None:
        """Suspend the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def node_that_executes(nodes: Sequence[NodeProcess], text: str) -> NodeProcess | None:
    """Return the node with a descendant process whose command line contains a text."""
    by_process = {node.process.pid: node for node in nodes if node.process is not None}
    for entry in Path("/proc").glob("[0-9]*"):
        process = int(entry.name)
        with suppress(OSError):
            if process == os.getpid() or text.encode() not in (entry / "cmdline").read_bytes():
                continue
            while process > 1:
                if process in by_process:
                    return by_process[process]
                process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return None


async def poll_until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Return whether a condition that nothing announces becomes true in time."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


class Lateness:
    """Measures how late timers of this process fire: time that other processes of the machine used."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The sum so far."""

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + _POLL_SECONDS
            await asyncio.sleep(_POLL_SECONDS)
            self.seconds += max(0.0, time.monotonic() - due - _TIMER_SECONDS)


@asynccontextmanager
async def running_nodes(dsns: Sequence[str]) -> AsyncIterator[list[NodeProcess]]:
    """Yield one node for each connection string, ready and named n1, n2, …; end and remove them."""
    homes = [new_directory() for _ in dsns]
    nodes = [NodeProcess(f"n{count}", home, dsn) for count, (home, dsn) in enumerate(zip(homes, dsns, strict=True), 1)]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            await node.wait_ready()
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        for home in homes:
            shutil.rmtree(home, ignore_errors=True)


class Forwarder:
    """Forwards TCP connections to a Unix socket, until it is cut: then bytes of both directions stay where they are,
    and neither side is notified, as when a cable is unplugged.
    """

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._flows = asyncio.Event()
        self._flows.set()
        self._was_cut: list[asyncio.StreamWriter] = []
        self.port = 0

    def cut(self) -> None:
        """Stop forwarding."""
        self._flows.clear()

    def heal(self) -> None:
        """Forward what has arrived meanwhile, and everything that follows."""
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        await self._flows.wait()
        near, far = await asyncio.open_unix_connection(self._target)
        there = asyncio.gather(self._copy(reader, far), self._copy(near, writer), return_exceptions=True)
        try:
            await there
        finally:
            far.transport.abort()
            writer.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            await self._flows.wait()
            target.write(data)
            await target.drain()
        await self._flows.wait()
        with suppress(OSError):
            target.write_eof()


@asynccontextmanager
async def forwarder(target: Path) -> AsyncIterator[Forwarder]:
    """Yield a forwarder with its port."""
    made = Forwarder(target)
    async with stream_server(made.serve) as made.port:
        yield made
