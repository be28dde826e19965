"""The server from outside: accepting, the first token, a whole turn, cancel, start-up. A real process and socket."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import uvloop

from bench.figures import Figure, Goal
from bench.stage import Bare
from holdfast.client.client import Client
from holdfast.client.items import Item
from holdfast.client.wire import Address
from holdfast.domain.events import MessageDeltaEvent, MessagePartEvent, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage

__all__ = ["measure"]

TURNS = 60
CANCELS = 30


class Served:
    """A server of our own in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path, seconds: float) -> None:
        self.root = root
        self.start_seconds = seconds
        self._process = process

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/var/tmp") as place:
        root = Path(place)
        (root / "project").mkdir()
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", "--host", f"unix://{root}/s/s.sock"],
            env=_environment() | {"HOLDFAST_DATA_DIR": str(root / "data")},
            stderr=subprocess.DEVNULL,
        )
        _wait_for_health(root / "s" / "s.sock")
        try:
            yield Served(process, root, time.perf_counter() - began)
        finally:
            process.terminate()
            process.wait(10)


def _environment() -> dict[str, str]:
    """Ours, but with compiled modules kept: nobody starts a server that compiles itself each time."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _wait_for_health(path: Path) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(path))
                connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
                if connection.recv(100):
                    return
            except OSError:
                continue


class Talk:
    """One session, prompted by one client that also reads the stream."""

    def __init__(self, client: Client, workspace: WorkspaceId, session: SessionId, items: AsyncIterator[Item]) -> None:
        self._client = client
        self._workspace = workspace
        self._session = session
        self._items = items
        self._count = 0

    async def post(self, prompt: str) -> RunId:
        self._count += 1
        run = RunId(f"b{self._count}")
        await self._client.send_prompt(self._workspace, AgentMessage(self._session, prompt, run))
        return run

    async def turn(self) -> tuple[float, float, float]:
        """Seconds until it is accepted, until its first words, until its end."""
        began = time.perf_counter()
        run = await self.post("words=200")
        accepted, first = time.perf_counter() - began, 0.0
        async for item in self._items:
            event = item.event
            if not first and isinstance(event, MessagePartEvent | MessageDeltaEvent):
                first = time.perf_counter() - began
            if isinstance(event, RunCompleteEvent) and event.payload.payload.run_id == run:
                break
        return accepted, first, time.perf_counter() - began

    async def cancelled(self) -> float:
        """Seconds from the request to the end, as the client sees it."""
        await self.post("words=2000 pause=20")
        await self._next(MessageDeltaEvent)
        began = time.perf_counter()
        await self._client.cancel_session(self._workspace, self._session)
        await self._next(RunCompleteEvent)
        return time.perf_counter() - began

    async def _next(self, kind: type) -> None:
        async for item in self._items:
            if isinstance(item.event, kind):
                return


async def _measure(server: Served) -> list[Figure]:
    bare = Bare(server.root)
    async with Client(Address(path=str(server.root / "s" / "s.sock"))) as client:
        workspace = (await client.create_workspace(str(server.root / "project"))).id
        idle = server.resident_mb()
        session = (await client.create_session(workspace)).id
        stream = client.events(workspace, since=0)
        talk = Talk(client, workspace, session, aiter(stream))
        turns, commits = [], []
        for _ in range(TURNS):
            commits.append(bare.commit())
            turns.append(await talk.turn())
        cancels = [await talk.cancelled() for _ in range(CANCELS)]
        await stream.close()
    bare.close()
    accepts, firsts, whole = zip(*turns, strict=True)
    commit, one = median(commits) * 1e3, "one bare synced commit"
    start, floor, alone = server.start_seconds * 1e3, _interpreter() * 1e3, "an interpreter alone"
    return [
        Figure("POST a prompt, answered", median(accepts) * 1e3, "ms", commit, one, Goal(1.5)),
        Figure("POST to first token event", median(firsts) * 1e3, "ms", commit, one, Goal(10)),
        Figure("turn of 200 tokens, end to end", median(whole) * 1e3, "ms", commit, one),
        Figure("cancel to end, seen by a client", median(cancels) * 1e3, "ms", commit, one, Goal(2.5)),
        Figure("spawn to first answer", start, "ms", floor, alone, Goal(180)),
        Figure("the thin path's import", _interpreter("import holdfast.client.thin") * 1e3, "ms", floor, alone),
        Figure("resident, idle", idle, "MB", None, "", Goal(40)),
    ]


def _interpreter(script: str = "pass") -> float:
    """The best of some starts: what the machine can do when it is not busy with others."""
    best = 10.0
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True, env=_environment())
        best = min(best, time.perf_counter() - began)
    return best


def measure() -> list[Figure]:
    with served() as server:
        return uvloop.run(_measure(server))
