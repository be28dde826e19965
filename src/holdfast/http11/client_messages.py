"""HTTP/1.1 requests as bytes, and an incremental response parser. Pure, and fast to import.

The HTTP client of the standard library is too slow to import for short-lived commands, and general clients spend
several times longer on a small chunk than parsing it takes. The required subset is small: one request, one response,
and bodies delimited by length, chunks, or the end of the connection.

The parser is written for streams: a read that contains exactly one chunk, the common case of a token, costs one slice.
It is strict, because a lenient parser and a proxy can disagree about where a response ends: anything ambiguous is an
`InvalidResponse`, and a response with both framings is accepted but its connection is not reused.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "IDEMPOTENT",
    "ConnectionBroken",
    "InvalidResponse",
    "ResponseHead",
    "ResponseParser",
    "quote",
    "serialize_request",
]

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods that can be repeated if it is unknown whether the server processed the request."""

_MAX_HEAD_SIZE = 64 * 1024
_MAX_HEADERS = 200
_MAX_CHUNK_LINE = 4 * 1024
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~$")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_VERSION = b"HTTP/1."


class ConnectionBroken(OSError):
    """The connection ended before the response was complete."""


class InvalidResponse(ConnectionBroken):
    """The received bytes are not a valid HTTP/1.1 response. The connection cannot be used any further."""


def quote(text: str) -> str:
    """Percent-encode one segment of a path or one value of a query."""
    if text.isalnum() and text.isascii():
        return text
    raw = text.encode()
    if _UNRESERVED.issuperset(raw):
        return text
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in raw)


def serialize_request(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the request line and the headers as bytes; the body follows them. `target` is already encoded.

    Raises `ValueError` for control characters and non-ASCII text, which could otherwise smuggle a second header or a
    second request into the connection.
    """
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    joined = "".join(lines)
    if not (joined.isascii() and joined.isprintable()):
        raise ValueError("an address, path or header has characters that HTTP does not allow")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class ResponseHead(NamedTuple):
    """Status and headers of a response. Names are in lower case; the values of repeated names are joined."""

    status: int
    headers: dict[str, str]
    is_http10: bool = False
    """HTTP/1.0: the connection ends with the response unless a header keeps it open."""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """The headers as they were received: cookies must not be joined."""


_Framing: TypeAlias = Literal["none", "length", "chunked", "close"]


class ResponseParser:
    """Parser for one response. Accepts input split anywhere, and returns the decoded body incrementally.

    After `is_done`, `rest` is the input after the response, and `can_be_kept` is whether the connection can be reused.
    """

    def __init__(self, method: str = "GET") -> None:
        self.head: ResponseHead | None = None
        self.is_done = False
        self.has_begun = False
        """True if any byte of the response was received. If not, an idempotent request may be repeated."""
        self._method = method
        # Unparsed input: an incomplete head, an incomplete line between chunks, or the input after the response.
        self._buffer = b""
        self._framing: _Framing = "none"
        self._left = 0
        """Bytes to come of the body, or of the current chunk."""
        self._chunk: Literal["size", "data", "end", "trailer"] = "size"
        self._trailer_size = 0

    @property
    def rest(self) -> bytes:
        """Input after the end of the response."""
        return self._buffer if self.is_done else b""

    @property
    def can_be_kept(self) -> bool:
        """True if the connection can be used for another request."""
        if self.head is None or not self.is_done or self._framing == "close" or self._buffer:
            return False
        headers = self.head.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            return False
        if "connection" not in headers:
            return not self.head.is_http10
        options = {option.strip() for option in headers["connection"].lower().split(",")}
        return "close" not in options and (not self.head.is_http10 or "keep-alive" in options)

    def feed(self, data: bytes) -> bytes:
        """Add input and return the part of the body that it contains. Raises `InvalidResponse`."""
        if self._framing == "chunked" and not self.is_done:
            return self._feed_chunks(data)
        if self.head is None or self.is_done:
            self.has_begun = self.has_begun or bool(data)
            self._buffer += data
            if self.is_done or not self._parse_head():
                return b""
            data, self._buffer = self._buffer, b""
        if self._framing == "chunked":
            return self._feed_chunks(data)
        if self._framing == "length":
            body = data[: self._left]
            self._left -= len(body)
            if not self._left:
                self._finish(data[len(body) :])
            return body
        if self._framing == "close":
            return data
        self._finish(data)
        return b""

    def end(self) -> None:
        """Report the end of the connection. Raises `ConnectionBroken` unless that is the end of the response."""
        if self.head is not None and self._framing == "close":
            self.is_done = True
        if not self.is_done:
            raise ConnectionBroken("the connection was closed")

    def _finish(self, rest: bytes) -> None:
        self.is_done = True
        self._buffer = rest

    def _parse_head(self) -> bool:
        """Parse heads until the final one; 1xx responses precede another head. Returns whether it is complete."""
        while self.head is None:
            buffer = self._buffer
            if buffer[: len(_VERSION)] != _VERSION[: len(buffer)]:
                # Another protocol may never send an empty line: report it with the first bytes.
                raise InvalidResponse(f"not HTTP: {buffer[:40]!r}")
            end, width = _end_of_head(buffer)
            if end > _MAX_HEAD_SIZE or (end < 0 and len(buffer) > _MAX_HEAD_SIZE):
                raise InvalidResponse("the head of the response is too long")
            if end < 0:
                return False
            head = _decode_head(buffer[:end])
            self._buffer = buffer[end + width :]
            if head.status >= 200:
                self._framing, self._left = _framing_of(head, self._method)
                self.head = head
            elif head.status == 101:
                raise InvalidResponse("the server switched to another protocol")
        return True

    def _feed_chunks(self, data: bytes) -> bytes:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        pieces: list[bytes] = []
        position, size = 0, len(data)
        while position < size and not self.is_done:
            if self._chunk == "size" and (position := _collect_chunks(data, position, pieces)) == size:
                break
            if self._chunk == "data":
                piece = data[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                pieces.append(piece)
                if not self._left:
                    self._chunk = "end"
                continue
            end = data.find(b"\n", position)
            if (end if end >= 0 else size) - position > _MAX_CHUNK_LINE:
                raise InvalidResponse("a line between chunks is too long")
            if end < 0:
                self._buffer = data[position:]
                break
            self._chunk_line(data[position:end].removesuffix(b"\r"))
            position = end + 1
        if self.is_done:
            self._buffer = data[position:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _chunk_line(self, line: bytes) -> None:
        """Process one line between the data: a size, the end of a chunk, or a trailer."""
        if self._chunk == "size":
            self._left = _chunk_size(line)
            self._chunk = "data" if self._left else "trailer"
        elif self._chunk == "end":
            if line:
                raise InvalidResponse("a chunk is longer than its size")
            self._chunk = "size"
        elif line:
            self._trailer_size += len(line)
            if self._trailer_size > _MAX_HEAD_SIZE:
                raise InvalidResponse("the trailers are too long")
        else:
            self.is_done = True


def _end_of_head(buffer: bytes) -> tuple[int, int]:
    """Return the end of the head and the length of its terminator; -1 if it is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    bare = buffer.find(b"\n\n")
    if bare >= 0 and (end < 0 or bare < end):
        return bare, 2
    return end, 4


def _decode_head(raw: bytes) -> ResponseHead:
    first, *lines = raw.replace(b"\r\n", b"\n").split(b"\n")
    version, _, rest = first.partition(b" ")
    status = rest[:3]
    if version not in {b"HTTP/1.1", b"HTTP/1.0"} or not _is_number(status, 3) or rest[3:4] not in {b"", b" "}:
        raise InvalidResponse("not HTTP: the status line is invalid")
    if len(lines) > _MAX_HEADERS:
        raise InvalidResponse("the response has too many headers")
    headers: dict[str, str] = {}
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        raw_name, colon, raw_value = line.partition(b":")
        # A name with a space around it is a folded line or an attempt to hide a header from a proxy.
        if not colon or not raw_name or raw_name != raw_name.strip():
            raise InvalidResponse("a header is invalid")
        raw_value = raw_value.strip()
        fields.append((raw_name, raw_value))
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return ResponseHead(int(status), headers, version == b"HTTP/1.0", tuple(fields))


def _is_number(text: bytes, max_length: int) -> bool:
    return 0 < len(text) <= max_length and text.isdigit()


def _framing_of(head: ResponseHead, method: str) -> tuple[_Framing, int]:
    if method == "HEAD" or head.status in {204, 304}:
        return "none", 0
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise InvalidResponse("the transfer coding is not supported")
        return "chunked", 0
    length = head.headers.get("content-length")
    if length is None:
        return "close", 0
    lengths = {value.strip() for value in length.encode("latin-1").split(b",")}
    value = lengths.pop()
    if lengths or not _is_number(value, 15):
        raise InvalidResponse("the content length is invalid")
    return ("length", int(value)) if int(value) else ("none", 0)


def _collect_chunks(data: bytes, position: int, pieces: list[bytes]) -> int:
    """Append the chunks that are contained in the data completely. Returns the position after them.

    This is the fast path; an incomplete chunk, the last one and anything unusual are parsed line by line.
    """
    while (end := data.find(b"\r\n", position, position + _MAX_CHUNK_LINE)) > position:
        length = _chunk_size(data[position:end])
        stop = end + 2 + length
        if not length or data[stop : stop + 2] != b"\r\n":
            break
        pieces.append(data[end + 2 : stop])
        position = stop + 2
    return position


@lru_cache(1024)
def _chunk_size(line: bytes) -> int:
    """Return the size in a line before a chunk. Cached, because the tokens of a stream have few different sizes."""
    digits = line.partition(b";")[0].strip()
    if not 0 < len(digits) <= 12 or not _HEX.issuperset(digits):
        raise InvalidResponse("the size of a chunk is invalid")
    return int(digits, 16)
