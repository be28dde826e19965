"""Frames of server-sent events, as the server writes them. Pure. `holdfast.http11.sse` reads them.

A frame is `[id: N\\n]data: <one line of JSON>\\n\\n`. The resumable form numbers its durable events; the form that
stock clients support has `data:` lines only.
"""

__all__ = ["HEARTBEAT", "QUIET_HEARTBEAT", "frame"]

HEARTBEAT = b": still here\n\n"
"""A comment as keep-alive, for readers of the resumable form."""

QUIET_HEARTBEAT = b"\n"
"""A blank line as keep-alive, which stock clients ignore."""


def frame(body: bytes, number: int | None = None) -> bytes:
    """Return one event in the wire format."""
    if number is None:
        return b"data: " + body + b"\n\n"
    return b"id: %d\ndata: " % number + body + b"\n\n"
