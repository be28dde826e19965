"""Server-sent events: what is framed comes back whole, however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.sse import HEARTBEAT, QUIET_HEARTBEAT, SseEvent, SseReader, frame

BODIES = st.lists(
    st.tuples(
        st.binary(min_size=1).filter(lambda data: b"\n" not in data and b"\r" not in data),
        st.none() | st.integers(0, 10**12),
    ),
    max_size=8,
)


def test_frames_are_what_the_wire_wants() -> None:
    assert frame(b"{}") == b"data: {}\n\n"
    assert frame(b"{}", 7) == b"id: 7\ndata: {}\n\n"


@given(BODIES, st.data())
def test_whatever_the_cuts_the_events_are_the_same(bodies: list[tuple[bytes, int | None]], data: st.DataObject) -> None:
    """R6: a stream that is cut anywhere gives the same events."""
    wire = b"".join(
        frame(body, number) + data.draw(st.sampled_from([b"", HEARTBEAT, QUIET_HEARTBEAT])) for body, number in bodies
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    reader = SseReader()
    events: list[SseEvent] = []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        events += reader.feed(wire[begin:end])
    assert [(event.data, event.number) for event in events] == [(body, number) for body, number in bodies]


def test_what_is_not_whole_is_kept_back() -> None:
    reader = SseReader()
    assert reader.feed(b"data: half") == []
    assert reader.feed(b" of it") == []
    assert reader.feed(b"\r\n\r\n") == [SseEvent(b"half of it")]


def test_other_lines_are_passed_over() -> None:
    reader = SseReader()
    assert reader.feed(b"event: x\nretry: 5\n: hello\nid: no number\ndata:no space\n\n") == [SseEvent(b"no space")]
