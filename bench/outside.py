"""A server as a process of its own, and what it costs, seen from outside."""

import json
import os
import select
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.client.address import Address
from holdfast.client.server_launcher import locate
from holdfast.client.sync_client import SyncClient

__all__ = ["END", "MIB", "Crowd", "Served", "Speaker", "environment", "served"]

MIB = 1024 * 1024
END = b'"type":"run_complete"'
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_SERVE = ("-P", "-m", "holdfast", "serve")


def environment(root: Path) -> dict[str, str]:
    """A home of its own. Compiled modules are kept: nobody starts a server that compiles itself each time."""
    left_out = ("PYTHONDONTWRITEBYTECODE",)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    kept = {name: value for name, value in kept.items() if not name.startswith(("HOLDFAST", "XDG"))}
    return kept | {"HOME": str(root), "XDG_RUNTIME_DIR": str(root / "r")}


class Served:
    """A server of our own, at the place where clients look for it."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], began: float) -> None:
        self.root = root
        self.began = began
        self.address = Address(path=locate(environment=environment(root)).usual)
        self.process = process

    def resident(self) -> float:
        """In bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))

    def processor(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK

    def answer(self, path: str) -> float:
        """When it first answers, in seconds since it was spawned."""
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        while True:
            with socket.socket(socket.AF_UNIX) as connection:
                try:
                    connection.connect(self.address.path)
                    connection.sendall(request)
                    if connection.recv(100):
                        return time.perf_counter() - self.began
                except OSError:
                    # A loop without a pause would take a processor from the server.
                    select.select([], [], [], 0.001)


@contextmanager
def served(*command: str, prepare: Callable[[Path], None] = lambda _: None) -> Iterator[Served]:
    """Spawned, and not waited for. On a disk, where there is one. `prepare` is called with its home before that."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir=os.environ.get("TMPDIR", "/var/tmp")) as place:
        root = Path(place)
        (root / "project").mkdir()
        (root / "r").mkdir(mode=0o700)
        settings = root / ".config/holdfast/config.toml"
        settings.parent.mkdir(parents=True)
        # Without a terminal `holdfast run` uses the scripted model only where it is selected.
        settings.write_text('[models.large]\nprovider = "demo"\nmodel = "tour"\n')
        prepare(root)
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *(command or _SERVE)], env=environment(root), stderr=subprocess.DEVNULL
        )
        try:
            yield Served(root, process, began)
        finally:
            process.terminate()
            process.wait(20)


class Speaker:
    """One workspace, and short words for what is asked of it. Blocking: it must not cost what it measures."""

    def __init__(self, server: Served) -> None:
        self._thin = SyncClient(server.address)
        self._client = os.urandom(16).hex()
        self._runs = 0
        self.address = server.address
        self.workspace = self._made(
            "/v1/workspaces", {"id": "", "path": str(server.root / "project"), "client_id": self._client}
        )

    def session(self) -> str:
        return self._made(f"/v1/workspaces/{self.workspace}/sessions", {"title": "bench"})

    def post(self, session: str, text: str, *, interactive: bool = False) -> str:
        self._runs += 1
        run = f"b{self._runs}"
        body = {"session_id": session, "prompt": text, "run_id": run, "interactive": interactive}
        self._asked(f"/v1/workspaces/{self.workspace}/agent", body)
        return run

    def cancel(self, session: str) -> None:
        self._asked(f"/v1/workspaces/{self.workspace}/agent/sessions/{session}/cancel", {})

    def look(self, what: str) -> dict[str, dict[str, object]]:
        """Something of the workspace."""
        status, answer = self._thin.request("GET", f"/v1/workspaces/{self.workspace}/{what}")
        assert status == 200, answer
        found: dict[str, dict[str, object]] = json.loads(answer)
        return found

    def stream(self) -> socket.socket:
        """A stream that is open: its greeting has come."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address.path)
        path = f"/v1/workspaces/{self.workspace}/events?since={1 << 52}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        seen = b""
        while b'"gap"' not in seen:
            seen += connection.recv(65536)
        return connection

    def close(self) -> None:
        self._thin.close()

    def _made(self, path: str, body: dict[str, str]) -> str:
        return str(json.loads(self._asked(path, body))["id"])

    def _asked(self, path: str, body: Mapping[str, object]) -> bytes:
        status, answer = self._thin.request("POST", path, body=json.dumps(body).encode())
        assert 200 <= status < 300, answer
        return answer


class Crowd:
    """Readers of raw bytes, all watched by one loop, so that a hundred of them cost little."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        self._tails = dict.fromkeys(connections, b"")
        for connection in connections:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)

    def read(self, heard: Callable[[socket.socket, bytes], None]) -> None:
        """Whatever comes next, from whoever."""
        for key, _ in self._selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(262_144)
            assert data, "a reader was cut"
            heard(connection, data)

    def until_ends(self, count: int, also: Callable[[socket.socket, bytes], None] | None = None) -> None:
        """Until every reader has seen so many runs end."""
        missing = dict.fromkeys(self._tails, count)

        def heard(connection: socket.socket, data: bytes) -> None:
            if also is not None:
                also(connection, data)
            whole = self._tails[connection] + data
            missing[connection] -= whole.count(END)
            # A mark that is cut in two is found with the next piece, and one that was counted is not counted again.
            at = whole.rfind(END)
            rest = whole[at + len(END) :] if at >= 0 else whole
            self._tails[connection] = rest[-len(END) :]

        while any(left > 0 for left in missing.values()):
            self.read(heard)

    def close(self) -> None:
        for connection in self._tails:
            connection.close()
        self._selector.close()
