"""Decoded stream events, and the position of a reader in the log."""

from client.scripted_server import frame_of, session_event
from holdfast.client.backoff import Backoff
from holdfast.client.events import CursorFilter, StreamEvent, UnknownEvent, decode_event
from holdfast.domain.events import (
    Change,
    Gap,
    GapEvent,
    Hello,
    HelloEvent,
    RunComplete,
    RunCompleteEvent,
    StreamedEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.http11.sse import SseEvent, SseReader


def through_the_wire(event: StreamedEvent, number: int | None = None) -> StreamEvent:
    (raw,) = SseReader().feed(frame_of(event, number))
    return decode_event(raw)


def test_events_are_decoded_as_they_were_encoded() -> None:
    for event in (session_event("s"), HelloEvent(Hello(3, 1, 2)), GapEvent(Gap(3, 1, 2))):
        assert through_the_wire(event, 7) == StreamEvent(event, 7)
        assert through_the_wire(event) == StreamEvent(event)


def test_c31_run_id_session_error_and_cancelled_survive_the_wire() -> None:
    for cancelled, error in ((True, ""), (False, "it broke")):
        end = RunComplete(
            SessionId("s"), MessageId("m"), RunId("r"), "cancelled" if cancelled else "failed", "", error, cancelled
        )
        event = RunCompleteEvent(Change("updated", end))
        assert through_the_wire(event, 9).event == event


def test_an_event_of_a_newer_server_is_kept_with_its_number() -> None:
    assert decode_event(SseEvent(b'{"type":"weather","payload":{"is":"fine"}}', 4)) == StreamEvent(
        UnknownEvent("weather", {"is": "fine"}), 4
    )


def test_an_undecodable_event_does_not_end_the_stream() -> None:
    for data in (b"", b"nonsense", b"[]", b"\xff", b'{"type":"message","payload":"\xff"}', b'{"type":3}'):
        assert decode_event(SseEvent(data, 4)) == StreamEvent(UnknownEvent(""), 4)


def test_a_known_event_in_an_unknown_shape_is_another() -> None:
    item = decode_event(SseEvent(b'{"type":"session","payload":{"type":"exploded","payload":{}}}', 4))
    assert item.event == UnknownEvent("session", {"type": "exploded", "payload": {}})


def test_a_cursor_filter_accepts_no_number_twice() -> None:
    follower = CursorFilter(5)
    event = session_event("s")
    shown = [number for number in (4, 5, 6, 6, 8, 7, 10_009) if follower.accept(StreamEvent(event, number))]
    assert shown == [6, 8, 10_009]
    assert follower.since == 10_009


def test_live_events_are_always_accepted() -> None:
    follower = CursorFilter(5)
    assert follower.accept(StreamEvent(session_event("s")))
    assert follower.accept(StreamEvent(HelloEvent(Hello(3, 1, 1))))
    assert follower.since == 5


def test_after_a_gap_the_filter_continues_at_the_cursor_of_the_server() -> None:
    follower = CursorFilter(500)
    assert follower.accept(StreamEvent(GapEvent(Gap(20, 1, 1))))
    assert follower.accept(StreamEvent(session_event("s"), 21))


def test_delays_double_up_to_a_limit_and_are_reset() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.wait() for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.wait() == 0.25
    assert Backoff(lambda: 0.0).wait() == 0.125
