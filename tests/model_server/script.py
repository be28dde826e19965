"""One answer of a provider, told once for all wires."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.model_requests import StepFinish
from holdfast.domain.usage import Usage

__all__ = ["Act", "Ask", "Hold", "Item", "Redact", "Reply", "Say", "Think", "encoded", "event", "finish_of"]

Hold: TypeAlias = Callable[[], Awaitable[object]]
"""A gate: the server stands still here until it is opened."""
Item: TypeAlias = bytes | Hold
"""What a wire makes of a script: events to be sent, and gates between them."""


class Say(msgspec.Struct, frozen=True):
    """Text, in these pieces."""

    pieces: tuple[str, ...]


class Think(msgspec.Struct, frozen=True):
    """Reasoning, in these pieces."""

    pieces: tuple[str, ...]
    signature: str = ""


class Redact(msgspec.Struct, frozen=True):
    """Reasoning that is shown to nobody."""

    data: str


class Ask(msgspec.Struct, frozen=True):
    """A tool call; its arguments come in these pieces, valid or not."""

    id: str
    name: str
    pieces: tuple[str, ...]


Act: TypeAlias = Say | Think | Redact | Ask | Hold


class Reply(msgspec.Struct, frozen=True):
    """What the server does with one request.

    `cut_after` counts events: so many are sent, then the connection is closed, or, with `ends_politely`, the
    body is ended as if it were complete. `pieces` cuts the bytes of the body as the socket gets them.
    """

    acts: tuple[Act, ...] = ()
    usage: Usage = Usage()
    finish: StepFinish | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """Instead of a stream: an error, a page."""
    before_head: Hold | None = None
    cut_after: int | None = None
    ends_politely: bool = False
    pieces: Callable[[bytes], list[bytes]] | None = None
    raw: tuple[Item, ...] | None = None
    """Instead of `acts`: events as they are."""


def encoded(data: Any) -> bytes:  # noqa: ANN401
    """JSON, with escapes where the text has half characters: some servers send them."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(data).encode("ascii")


def event(data: Any, name: str = "") -> bytes:  # noqa: ANN401
    """One server-sent event with JSON in it."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encoded(data) + b"\n\n"


def finish_of(reply: Reply) -> StepFinish:
    return reply.finish or ("tool_calls" if any(isinstance(act, Ask) for act in reply.acts) else "stop")
