"""Frames of server-sent events."""

from holdfast.http11.sse import frame


def test_a_frame_has_the_wire_format() -> None:
    assert frame(b"{}") == b"data: {}\n\n"
    assert frame(b"{}", 7) == b"id: 7\ndata: {}\n\n"
