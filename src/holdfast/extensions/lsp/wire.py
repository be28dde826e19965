"""LSP framing of JSON-RPC messages: a header with the content length, then the body. Pure.

Input may be split anywhere. Invalid input ends the connection, because the start of the next message is then unknown.
"""

from typing import Any

import msgspec

from holdfast.domain.halves import whole_json

__all__ = ["LONGEST", "Fault", "Frames", "Garbage", "Heard", "answer", "notice", "question", "refusal"]

LONGEST = 32 << 20
_LONGEST_HEAD = 4_096
_END = b"\r\n\r\n"


class Garbage(Exception):
    """The input does not follow the protocol."""


class Fault(msgspec.Struct, frozen=True):
    """The error of a response."""

    code: int = 0
    message: str = ""


class Heard(msgspec.Struct, frozen=True):
    """An incoming message: a request has a method and an id, a notification a method, a response an id."""

    method: str = ""
    id: int | str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None


_decoder = msgspec.json.Decoder(Heard)
_encoder = msgspec.json.Encoder()


class Frames:
    """Incremental parser for messages."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._unread = bytearray()
        self._length = -1
        """Length of the current body; -1 while reading a header."""

    def feed(self, data: bytes) -> list[Heard]:
        """Add input and return the messages that are now complete. Raises `Garbage`."""
        self._unread += data
        heard: list[Heard] = []
        while (body := self._body()) is not None:
            try:
                heard.append(_decoder.decode(whole_json(body)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise Garbage(f"It sent a message that is no JSON-RPC: {error}.") from None
        return heard

    def _body(self) -> bytes | None:
        if self._length < 0:
            end = self._unread.find(_END)
            if (end if end >= 0 else len(self._unread)) > _LONGEST_HEAD:
                raise Garbage(f"It sent something else than messages: {_shown(self._unread)}.")
            if end < 0:
                return None
            self._length = self._read_head(bytes(self._unread[:end]))
            del self._unread[: end + len(_END)]
        if len(self._unread) < self._length:
            return None
        body = bytes(self._unread[: self._length])
        del self._unread[: self._length]
        self._length = -1
        return body

    def _read_head(self, head: bytes) -> int:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
                if length > self._longest:
                    raise Garbage(f"It sent a message of {length:,} bytes; at most {self._longest:,} are taken.")
                return length
        raise Garbage(f"It sent something else than messages: {_shown(head)}.")


def question(number: int, method: str, params: object) -> bytes:
    """Encode a request."""
    return _framed({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notice(method: str, params: object) -> bytes:
    """Encode a notification."""
    return _framed({"jsonrpc": "2.0", "method": method, "params": params})


def answer(to: int | str, result: object) -> bytes:
    """Encode a response."""
    return _framed({"jsonrpc": "2.0", "id": to, "result": result})


def refusal(to: int | str, code: int, message: str) -> bytes:
    """Encode an error response."""
    return _framed({"jsonrpc": "2.0", "id": to, "error": {"code": code, "message": message}})


def _framed(message: dict[str, Any]) -> bytes:
    body = _encoder.encode(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _shown(data: bytes | bytearray) -> str:
    text = bytes(data[:80]).decode("utf-8", "replace")
    return repr("".join(character if character.isprintable() else " " for character in text).strip())
