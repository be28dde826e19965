"""HTTP/1.1 over a Unix socket, byte for byte as stock clients use it, and their stream reader."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "TIMEOUT",
    "Answer",
    "ClientFailure",
    "ConnectionLost",
    "EventStream",
    "Pool",
    "close_all_connections",
    "dial",
]

_LONGEST_LINE = 1 << 24
_IDLE = 2
TIMEOUT = 10.0


class ClientFailure(AssertionError):
    """The server's data would crash, stop or mislead a stock client."""


class ConnectionLost(Exception):
    """The connection ended before a response arrived."""


class Answer(msgspec.Struct, frozen=True):
    """Header names are in lower case; a stock client ignores their case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - whatever was sent
        if self.headers.get("content-type") != "application/json":
            raise ClientFailure(f"JSON must say that it is JSON: {self.headers}")
        if not self.body.endswith(b"\n"):
            raise ClientFailure("a JSON body ends with a newline")
        return json.loads(self.body)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.is_used = False

    async def send(self, head: bytes, body: bytes) -> tuple[int, dict[str, str]]:
        """Write a request and read the status and the headers of its response."""
        try:
            self.writer.write(head + body)
            await self.writer.drain()
            line = await self.reader.readline()
        except ConnectionError as error:
            raise ConnectionLost from error
        if not line:
            raise ConnectionLost
        version, status, _ = line.decode("ascii").split(" ", 2)
        if version != "HTTP/1.1":
            raise ClientFailure(f"the answer begins with {line!r}")
        headers: dict[str, str] = {}
        while (line := await self.reader.readline()) != b"\r\n":
            name, _, value = line.decode("ascii").partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(status), headers

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


_open: list[_Connection] = []


async def dial(path: Path) -> _Connection:
    connection = _Connection(*await asyncio.open_unix_connection(path, limit=_LONGEST_LINE))
    _open.append(connection)
    return connection


async def close_all_connections() -> None:
    """Close the remaining connections of every client, as the end of their processes would."""
    while _open:
        await _open.pop().close()


class EventStream:
    """Reads line by line: `data:` lines count, blank ones do not, and a plain end of the connection is the end."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.raw = bytearray()
        """Every byte of the body so far."""

    async def next(self) -> Any:  # noqa: ANN401 - whatever was sent
        """Return the next event, or None at the end."""
        while True:
            async with asyncio.timeout(TIMEOUT):
                line = await self._connection.reader.readline()
            self.raw += line
            if not line.endswith(b"\n"):
                # An incomplete last line is dropped.
                return None
            text = line.strip()
            if not text:
                continue
            if not text.startswith(b"data:"):
                raise ClientFailure(f"only data lines belong here: {text[:80]!r}")
            return json.loads(text.removeprefix(b"data:"))

    async def close(self) -> None:
        await self._connection.close()


class Pool:
    """The connections of one client: any number at once, two of them kept when idle."""

    def __init__(self, socket: Path, *, has_proxy: bool = False) -> None:
        self._socket = socket
        self._base = "http://api.crush.localhost" if has_proxy else ""
        self._idle: list[_Connection] = []

    async def ask(self, method: str, target: str, body: object = None, kind: str = "application/json") -> Answer:
        head, data = self._request(method, target, body, kind)
        while True:
            connection = self._idle.pop() if self._idle else await dial(self._socket)
            try:
                async with asyncio.timeout(TIMEOUT):
                    status, headers = await connection.send(head, data)
                    answer = Answer(status, headers, await _whole(connection, headers))
            except ConnectionLost:
                await connection.close()
                if not connection.is_used:
                    raise
                # The server closed an idle connection: another one is tried.
                continue
            await self._keep(connection, headers)
            return answer

    async def listen(self, target: str) -> tuple[Answer, EventStream | None]:
        accept = "Accept: text/event-stream\r\nCache-Control: no-cache\r\nConnection: keep-alive\r\n"
        head, _ = self._request("GET", target, None, "", accept)
        connection = await dial(self._socket)
        async with asyncio.timeout(TIMEOUT):
            status, headers = await connection.send(head, b"")
        if status != 200:
            body = await _whole(connection, headers)
            await connection.close()
            return Answer(status, headers, body), None
        return Answer(status, headers, b""), EventStream(connection)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    def _request(self, method: str, target: str, body: object, kind: str, more: str = "") -> tuple[bytes, bytes]:
        data = b"" if body is None else json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        lines = [
            f"{method} {self._base}{target} HTTP/1.1",
            "Host: api.crush.localhost",
            "User-Agent: Go-http-client/1.1",
        ]
        if data:
            lines += [f"Content-Length: {len(data)}", f"Content-Type: {kind}"]
        elif method == "POST":
            lines.append("Content-Length: 0")
        return ("\r\n".join(lines) + "\r\n" + more + "\r\n").encode("ascii"), data

    async def _keep(self, connection: _Connection, headers: dict[str, str]) -> None:
        connection.is_used = True
        if headers.get("connection") == "close" or len(self._idle) >= _IDLE:
            await connection.close()
        else:
            self._idle.append(connection)


async def _whole(connection: _Connection, headers: dict[str, str]) -> bytes:
    if "content-length" not in headers:
        raise ClientFailure(f"an answer tells its length: {headers}")
    return await connection.reader.readexactly(int(headers["content-length"]))
