"""The client of the benchmarks: plain sockets and raw bytes, to use as little processor time as possible.

The same code measures Holdfast and the floor.
"""

import json
import os
import re
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from bench.servers import ServerProcess
from holdfast.client.server_address import ServerAddress, build_request
from holdfast.http11.client_messages import ResponseParser

__all__ = ["END", "STAMP", "TOKEN", "RawClient", "Readers", "RequestConnection", "connect"]

END = b'"type":"run_complete"'
TOKEN = b'"@'
"""Begin of the text of an event with a token."""
STAMP = re.compile(rb"@(\d+\.\d{9}) ")

Received = Callable[[socket.socket, bytes], None]


def connect(address: ServerAddress) -> socket.socket:
    """Return a connection to a server."""
    if address.path:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.path)
        return connection
    connection = socket.create_connection((address.host, address.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class RequestConnection:
    """One connection for requests, one at a time."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self.socket = connect(address)

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        """Send a request."""
        encoded = None if body is None else json.dumps(body).encode()
        self.socket.sendall(build_request(self._address, method, path, body=encoded))

    def receive(self) -> bytes:
        """Return the body of the next response, which must be a success."""
        parser = ResponseParser("POST")
        parts, first = [], b""
        while not parser.is_done:
            data = self.socket.recv(262_144)
            assert data, "the server has closed the connection"
            first = first or data[:100]
            parts.append(parser.feed(data))
        body = b"".join(parts)
        assert first.startswith(b"HTTP/1.1 2"), first + body
        return body

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """Send a request and return the body of its response. The server closes connections that were idle for long;
        such a one is replaced.
        """
        if self._is_closed():
            self.socket.close()
            self.socket = connect(self._address)
        self.send(method, path, body)
        return self.receive()

    def _is_closed(self) -> bool:
        try:
            return self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class RawClient:
    """A client of one workspace."""

    def __init__(self, server: ServerProcess, *, over_tcp: bool = True, path: str = "") -> None:
        self.server = server
        self.address = server.tcp if over_tcp else server.unix
        self._requests = RequestConnection(self.address)
        self._client = os.urandom(16).hex()
        self._prefix = os.urandom(4).hex()
        self._runs = 0
        self.directory = path or str(server.project)
        body = {"id": "", "path": self.directory, "client_id": self._client}
        self.workspace = self._create("/v1/workspaces", body)
        self.path = f"/v1/workspaces/{self.workspace}"

    def session(self) -> str:
        """Create a session and return its id. It gets its title from the model, as most sessions do."""
        return self._create(f"{self.path}/sessions", {"title": "New session"})

    def prompt(self, session: str, text: str, *, interactive: bool = False) -> dict[str, object]:
        """Return the body of a request with a prompt."""
        self._runs += 1
        run = f"{self._prefix}-{self._runs}"
        return {"session_id": session, "prompt": text, "run_id": run, "interactive": interactive}

    def post(self, session: str, text: str, *, interactive: bool = False) -> str:
        """Send a prompt, wait until it is accepted, and return its run id."""
        body = self.prompt(session, text, interactive=interactive)
        self._requests.request("POST", f"{self.path}/agent", body)
        return str(body["run_id"])

    def send_post(self, session: str, text: str) -> None:
        """Send a prompt; `receive` reads its response."""
        self._requests.send("POST", f"{self.path}/agent", self.prompt(session, text))

    def send_cancel(self, session: str) -> None:
        """Send a cancel; `receive` reads its response."""
        self._requests.send("POST", f"{self.path}/agent/sessions/{session}/cancel", {})

    def receive(self) -> bytes:
        """Return the body of the next response."""
        return self._requests.receive()

    def get(self, resource: str) -> bytes:
        """Return a resource of the workspace."""
        return self.request("GET", resource)

    def request(self, method: str, resource: str, body: Mapping[str, object] | None = None) -> bytes:
        """Send a request for a resource of the workspace and return the body of its response."""
        return self._requests.request(method, f"{self.path}/{resource}", body)

    def stream(self) -> socket.socket:
        """Return an event stream that has sent its first frames."""
        connection = connect(self.address)
        # A number that was never assigned: the server sends no stored events, only a gap.
        # The stream keeps the workspace open for this client.
        query = (("since", 1 << 52), ("client_id", self._client))
        connection.sendall(build_request(self.address, "GET", f"{self.path}/events", query))
        seen = b""
        while b'"gap"' not in seen:
            seen += connection.recv(65536)
        return connection

    def close(self) -> None:
        """Close the connection for requests."""
        self._requests.close()

    def _create(self, path: str, body: Mapping[str, object]) -> str:
        return str(json.loads(self._requests.request("POST", path, body))["id"])


class Readers:
    """Readers of event streams, all in one selector loop, so that a hundred of them cost little."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._selector = selectors.DefaultSelector()
        self._rests = dict.fromkeys(connections, b"")
        self.connections = tuple(connections)
        self.size = 0
        """Bytes received so far."""
        for connection in connections:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)

    def read(self, received: Received, timeout: float | None = 60.0) -> None:
        """Pass the next bytes of each readable stream to `received`."""
        ready = self._selector.select(timeout)
        assert ready or timeout == 0, "no event has been received"
        for key, _ in ready:
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(262_144)
            assert data, "the server has closed a stream"
            self.size += len(data)
            received(connection, data)

    def drain(self) -> None:
        """Discard the bytes that have been received."""
        self.read(lambda _connection, _data: None, timeout=0)
        self._rests = dict.fromkeys(self._rests, b"")

    def until_ends(self, count: int = 1, received: Received | None = None) -> None:
        """Read until every reader has seen this many ends of runs."""
        self.until(END, count, received)

    def until_total_ends(self, count: int) -> None:
        """Read until all readers together have seen this many ends of runs."""
        left = count

        def search(connection: socket.socket, data: bytes) -> None:
            nonlocal left
            whole = self._rests[connection] + data
            left -= whole.count(END)
            self._rests[connection] = whole[whole.rfind(END) + 1 :][1 - len(END) :]

        while left > 0:
            self.read(search)

    def until(self, mark: bytes, count: int = 1, received: Received | None = None) -> float:
        """Read until every reader has seen a mark this many times. Return the time of the last one.

        Bytes after the last mark are kept for the next call.
        """
        missing = dict.fromkeys(self._rests, count)

        def search(connection: socket.socket, data: bytes) -> None:
            if received is not None and data:
                received(connection, data)
            rest = self._rests[connection] + data
            while missing[connection] and (at := rest.find(mark)) >= 0:
                missing[connection] -= 1
                rest = rest[at + len(mark) :]
            # A mark that is cut in two is found with the next bytes.
            self._rests[connection] = rest if not missing[connection] else rest[1 - len(mark) :]

        for connection in self._rests:
            search(connection, b"")
        while any(missing.values()):
            self.read(search)
        return time.perf_counter()

    def close(self) -> None:
        """Close the streams."""
        for connection in self._rests:
            connection.close()
        self._selector.close()
