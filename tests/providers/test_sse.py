"""Server-sent events, however their bytes come."""

from holdfast.providers.sse import EventParser

STREAM = (
    b'\xef\xbb\xbf: hello\ndata: {"a":1}\n\ndata: [DONE]\r\n\r\nevent: x\nid: 3\ndata:one\ndata: two\n\n'
    b"\n\ndata: three\n\nerror: {}\ndata: four\n\r\ndata: last"
)
EVENTS = [b'{"a":1}', b"[DONE]", b"one\ntwo", b"three", b'{"error": {}}', b"four", b"last"]


def read(*pieces: bytes) -> list[bytes]:
    events = EventParser()
    return [event for piece in pieces for event in events.feed(piece)] + events.end()


def test_a_stream_cut_at_any_two_places_says_the_same() -> None:
    size = len(STREAM)
    for first in range(size):
        for second in range(first, size):
            assert read(STREAM[:first], STREAM[first:second], STREAM[second:]) == EVENTS, (first, second)


def test_byte_by_byte() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_a_piece_that_is_one_event_goes_on_with_what_came_before() -> None:
    """It looks complete, but the line or the event before it is not."""
    assert read(b"data: one\n", b"data: two\n\n") == [b"one\ntwo"]
    assert read(b"data: ", b"data: x\n\n") == [b"data: x"]
