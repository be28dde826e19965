"""Server-sent events: the reader returns the same events wherever the bytes are split."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.http11.sse import HEARTBEAT, QUIET_HEARTBEAT, SseEvent, SseReader, frame

STREAM = (
    b'\xef\xbb\xbf: hello\ndata: {"a":1}\n\ndata: [DONE]\r\n\r\nevent: x\nid: 3\ndata:one\ndata: two\n\n'
    b"\n\ndata: three\n\nerror: {}\ndata: four\n\r\ndata: last"
)
EVENTS = [b'{"a":1}', b"[DONE]", b"one\ntwo", b"three", b'{"error": {}}', b"four", b"last"]

BODIES = st.lists(
    st.tuples(
        st.binary(min_size=1).filter(lambda data: b"\n" not in data and b"\r" not in data),
        st.none() | st.integers(0, 10**12),
    ),
    max_size=8,
)


def read(*pieces: bytes) -> list[bytes]:
    reader = SseReader()
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.end()
    return [event.data for event in events]


def test_a_stream_split_at_any_two_positions_has_the_same_events() -> None:
    size = len(STREAM)
    for first in range(size):
        for second in range(first, size):
            assert read(STREAM[:first], STREAM[first:second], STREAM[second:]) == EVENTS, (first, second)


def test_a_stream_fed_byte_by_byte() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


def test_a_piece_that_looks_like_one_event_continues_the_previous_one() -> None:
    """The line or the event before it is incomplete."""
    assert read(b"data: one\n", b"data: two\n\n") == [b"one\ntwo"]
    assert read(b"data: ", b"data: x\n\n") == [b"data: x"]
    reader = SseReader()
    assert reader.feed(b"id: 7\n") == []
    assert reader.feed(b"data: x\n\n") == [SseEvent(b"x", 7)]
    assert reader.feed(b"data: y\n\n") == [SseEvent(b"y")]


@given(BODIES, st.data())
def test_frames_split_anywhere_have_the_same_events(
    bodies: list[tuple[bytes, int | None]], data: st.DataObject
) -> None:
    """R6: a stream that is split anywhere yields the same events."""
    wire = b"".join(
        frame(body, number) + data.draw(st.sampled_from([b"", HEARTBEAT, QUIET_HEARTBEAT])) for body, number in bodies
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    reader = SseReader()
    events: list[SseEvent] = []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        events += reader.feed(wire[begin:end])
    assert [(event.data, event.number) for event in events] == [(body, number) for body, number in bodies]


def test_an_incomplete_event_is_kept() -> None:
    reader = SseReader()
    assert reader.feed(b"data: half") == []
    assert reader.feed(b" of it") == []
    assert reader.feed(b"\r\n\r\n") == [SseEvent(b"half of it")]


def test_other_fields_are_ignored() -> None:
    reader = SseReader()
    assert reader.feed(b"event: x\nretry: 5\n: hello\nid: no number\ndata:no space\n\n") == [SseEvent(b"no space")]


def test_frame_has_the_wire_format() -> None:
    assert frame(b"{}") == b"data: {}\n\n"
    assert frame(b"{}", 7) == b"id: 7\ndata: {}\n\n"
