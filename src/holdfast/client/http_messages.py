"""HTTP/1.1 requests and incremental response parsing. Pure, and fast to import.

The HTTP client of the standard library is too slow to import for short-lived commands. The required subset is small:
one request, one response, and bodies delimited by length, chunks, or the end of the connection.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from holdfast.client.errors import BrokenResponse, ConnectionLost

__all__ = [
    "HOST_ON_SOCKETS",
    "IDEMPOTENT",
    "Address",
    "Head",
    "QueryItems",
    "ResponseReader",
    "build_request",
    "fill",
    "quote",
]

HOST_ON_SOCKETS = "holdfast.localhost"
"""The Host header for unix sockets, because HTTP requires one."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods that can be repeated if it is unknown whether the server processed the request."""

QueryItems: TypeAlias = Iterable[tuple[str, str | int | None]]

_LONGEST_HEAD = 64 * 1024
_LONGEST_CHUNK_LINE = 4 * 1024
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~$")
_HEX = frozenset(b"0123456789abcdefABCDEF")


class Address(NamedTuple):
    """Address of a server: a unix socket, or a host and port with a token."""

    path: str = ""
    host: str = ""
    port: int = 0
    token: str = ""
    data_id: str = ""
    """The expected data directory, if it is known. A server with another one rejects the request."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        if self.path:
            return HOST_ON_SOCKETS
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"tcp://{self.authority}"

    def __repr__(self) -> str:
        """Omit the token, because addresses are logged."""
        return f"Address({self})"


def quote(text: str) -> str:
    """Percent-encode one segment of a path or one value of a query."""
    if text.isalnum() and text.isascii():
        return text
    raw = text.encode()
    if _UNRESERVED.issuperset(raw):
        return text
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the path of a route with its placeholders replaced."""
    return "/".join([_segment(segment, values) for segment in template.split("/")])


def _segment(segment: str, values: Mapping[str, str]) -> str:
    if not segment.startswith("{"):
        return segment
    value = values[segment[1:-1]]
    if value in {"", ".", ".."}:
        raise ValueError(f"{segment[1:-1]} is not a name: the path would be that of another route")
    return quote(value)


def build_request(
    address: Address,
    method: str,
    path: str,
    query: QueryItems = (),
    body: bytes | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return the bytes of a request. `path` is already encoded; query values that are None are omitted."""
    asked = "&".join([f"{quote(name)}={quote(str(value))}" for name, value in query if value is not None])
    lines = [f"{method} {path}?{asked} HTTP/1.1" if asked else f"{method} {path} HTTP/1.1"]
    lines.append(f"Host: {address.authority}")
    if address.token:
        lines.append(f"Authorization: Bearer {address.token}")
    if address.data_id:
        lines.append(f"Holdfast-Data: {address.data_id}")
    if body is not None:
        lines.append("Content-Type: application/json")
    if body is not None or method not in {"GET", "HEAD", "DELETE"}:
        lines.append(f"Content-Length: {len(body or b'')}")
    lines += [f"{name}: {value}" for name, value in headers]
    whole = "".join(lines)
    if not (whole.isascii() and whole.isprintable()):
        raise ValueError("an address, path or header has characters that HTTP does not allow")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


class Head(NamedTuple):
    """Status and headers. Names are in lower case; the values of repeated names are joined."""

    status: int
    headers: dict[str, str]
    is_old: bool = False
    """HTTP/1.0: the connection ends with the response unless a header keeps it open."""


_Framing: TypeAlias = Literal["none", "length", "chunked", "close"]


class ResponseReader:
    """Parser for one response. Accepts input split anywhere, and returns the decoded body incrementally.

    After `is_done`, `rest` is the input after the response, and `can_be_kept` is whether the connection can be reused.
    """

    def __init__(self, method: str = "GET") -> None:
        self.head: Head | None = None
        self.is_done = False
        self.has_begun = False
        self._method = method
        self._buffer = bytearray()
        self._framing: _Framing = "none"
        self._left = 0
        self._chunk: Literal["size", "data", "end", "trailer"] = "size"
        self._trailer = 0

    @property
    def rest(self) -> bytes:
        """Input after the end of the response."""
        return bytes(self._buffer) if self.is_done else b""

    @property
    def can_be_kept(self) -> bool:
        """True if the connection can be used for another request."""
        if self.head is None or not self.is_done or self._framing == "close" or self._buffer:
            return False
        headers = self.head.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            return False
        if "connection" not in headers:
            return not self.head.is_old
        options = {option.strip() for option in headers["connection"].lower().split(",")}
        return "close" not in options and (not self.head.is_old or "keep-alive" in options)

    def feed(self, data: bytes) -> bytes:
        """Add input and return the part of the body that it contains."""
        self.has_begun = self.has_begun or bool(data)
        if self.is_done or self.head is None:
            self._buffer += data
            if self.is_done or not self._read_head():
                return b""
            data = bytes(self._buffer)
            self._buffer.clear()
        match self._framing:
            case "length":
                return self._by_length(data)
            case "chunked":
                return self._by_chunks(data)
            case "close":
                return data
            case "none":
                self._finish(data)
                return b""

    def end(self) -> None:
        """Report the end of the connection. Raises `ConnectionLost` unless that is the end of the response."""
        if self.head is not None and self._framing == "close":
            self.is_done = True
        if not self.is_done:
            raise ConnectionLost("The server's answer breaks off; it may or may not have done what was asked.")

    def _finish(self, rest: bytes) -> None:
        self.is_done = True
        self._buffer[:] = rest

    def _read_head(self) -> bool:
        """Parse heads until the final one; 1xx responses precede another head."""
        while self.head is None:
            end, width = _end_of_head(self._buffer)
            if end > _LONGEST_HEAD or (end < 0 and len(self._buffer) > _LONGEST_HEAD):
                raise BrokenResponse("The server's answer has a head that does not end.")
            if end < 0:
                return False
            head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + width]
            if head.status >= 200:
                self._framing, self._left = _framing_of(head, self._method)
                self.head = head
            elif head.status == 101:
                raise BrokenResponse
        return True

    def _by_length(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        if not self._left:
            self._finish(data[len(body) :])
        return body

    def _by_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        self._buffer += data
        while self._buffer and not self.is_done:
            if self._chunk == "data":
                piece = bytes(self._buffer[: self._left])
                del self._buffer[: len(piece)]
                self._left -= len(piece)
                body.append(piece)
                if not self._left:
                    self._chunk = "end"
            elif not self._chunk_line():
                break
        return b"".join(body)

    def _chunk_line(self) -> bool:
        """Parse one line between the data: a size, the end of a chunk, or a trailer. Returns whether the line was
        complete.
        """
        end = self._buffer.find(b"\n")
        if end > _LONGEST_CHUNK_LINE or (end < 0 and len(self._buffer) > _LONGEST_CHUNK_LINE):
            raise BrokenResponse
        if end < 0:
            return False
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        if self._chunk == "size":
            self._left = _chunk_size(line)
            self._chunk = "data" if self._left else "trailer"
        elif self._chunk == "end":
            if line:
                raise BrokenResponse
            self._chunk = "size"
        elif line:
            self._trailer += len(line)
            if self._trailer > _LONGEST_HEAD:
                raise BrokenResponse
        else:
            self._finish(bytes(self._buffer))
        return True


def _end_of_head(buffer: bytearray) -> tuple[int, int]:
    """Return the end of the head and the length of its terminator; -1 if it is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    bare = buffer.find(b"\n\n")
    if bare >= 0 and (end < 0 or bare < end):
        return bare, 2
    return end, 4


def _parse_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").replace("\r\n", "\n").split("\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in {"HTTP/1.1", "HTTP/1.0"} or not _is_number(status, 3) or rest[3:4] not in {"", " "}:
        raise BrokenResponse
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BrokenResponse
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Head(int(status), headers, is_old=version == "HTTP/1.0")


def _is_number(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isascii() and text.isdigit()


def _framing_of(head: Head, method: str) -> tuple[_Framing, int]:
    if method == "HEAD" or head.status in {204, 304}:
        return "none", 0
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise BrokenResponse
        return "chunked", 0
    length = head.headers.get("content-length")
    if length is None:
        return "close", 0
    lengths = {value.strip() for value in length.split(",")}
    value = lengths.pop()
    if lengths or not _is_number(value, 15):
        raise BrokenResponse
    return ("length", int(value)) if int(value) else ("none", 0)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not 0 < len(digits) <= 12 or not _HEX.issuperset(digits):
        raise BrokenResponse
    return int(digits, 16)
