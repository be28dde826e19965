"""One response of a provider, described once for all wires."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.model_requests import StepFinish
from holdfast.domain.usage import Usage

__all__ = ["Act", "CallTool", "Hold", "Item", "Redact", "Reply", "Say", "Think", "encoded", "event", "finish_of"]

Hold: TypeAlias = Callable[[], Awaitable[object]]
"""A gate: the server pauses here until it is opened."""
Item: TypeAlias = bytes | Hold
"""The form of a script on a wire: events to be sent, and gates between them."""


class Say(msgspec.Struct, frozen=True):
    """Text, in these pieces."""

    pieces: tuple[str, ...]


class Think(msgspec.Struct, frozen=True):
    """Reasoning, in these pieces."""

    pieces: tuple[str, ...]
    signature: str = ""


class Redact(msgspec.Struct, frozen=True):
    """Reasoning that is not shown."""

    data: str


class CallTool(msgspec.Struct, frozen=True):
    """A tool call; its arguments are sent in these pieces, valid or not."""

    id: str
    name: str
    pieces: tuple[str, ...]


Act: TypeAlias = Say | Think | Redact | CallTool | Hold


class Reply(msgspec.Struct, frozen=True):
    """The response to one request.

    `cut_after` counts events: after this many the connection is closed, or, with `ends_politely`, the body is ended as
    if it were complete. `pieces` splits the bytes of the body for the socket.
    """

    acts: tuple[Act, ...] = ()
    usage: Usage = Usage()
    finish: StepFinish | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """Instead of a stream: an error or a page."""
    before_head: Hold | None = None
    cut_after: int | None = None
    ends_politely: bool = False
    pieces: Callable[[bytes], list[bytes]] | None = None
    raw: tuple[Item, ...] | None = None
    """Instead of `acts`: events sent unchanged."""


def encoded(data: Any) -> bytes:  # noqa: ANN401
    """Encode as JSON, with escapes for lone surrogates: some servers send them."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(data).encode("ascii")


def event(data: Any, name: str = "") -> bytes:  # noqa: ANN401
    """Encode one server-sent event with JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encoded(data) + b"\n\n"


def finish_of(reply: Reply) -> StepFinish:
    return reply.finish or ("tool_calls" if any(isinstance(act, CallTool) for act in reply.acts) else "stop")
