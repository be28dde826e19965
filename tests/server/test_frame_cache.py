"""Merged frames are built once for several readers with the same range, and never shared between different ranges."""

from holdfast.bus.shared_backlog import Backlog, Reader, SlowReaderPolicy
from holdfast.domain.events import MessageDelta, MessageDeltaEvent
from holdfast.domain.ids import MessageId, SessionId
from holdfast.http11.sse import SseReader
from holdfast.server.streams.frame_cache import FrameCache


def _grown(backlog: Backlog, count: int, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        delta = MessageDelta(SessionId("s"), MessageId("m"), 0, number, str(number % 10))
        backlog.append_live(MessageDeltaEvent(delta))


def _reader(backlog: Backlog) -> Reader:
    reader = backlog.reader(0)
    reader.take(1, tuple, merge=False)
    return reader


def test_same_range_returns_same_bytes() -> None:
    backlog, frame_cache = Backlog(SlowReaderPolicy()), FrameCache()
    first, second, late = _reader(backlog), _reader(backlog), _reader(backlog)
    _grown(backlog, 20)
    data = frame_cache.join(first.take(100, tuple, merge=False))
    assert frame_cache.join(second.take(100, tuple, merge=False)) is data
    assert data.count(b"data: ") == 1
    assert b'"text":"01234567890123456789"' in data
    late.take(7, tuple, merge=False)
    rest = frame_cache.join(late.take(100, tuple, merge=False))
    assert b'"text":"7890123456789"' in rest
    assert len(SseReader().feed(rest)) == 1


def test_few_frames_are_not_merged_and_cache_is_bounded() -> None:
    backlog, frame_cache = Backlog(SlowReaderPolicy()), FrameCache()
    reader = _reader(backlog)
    _grown(backlog, 4)
    assert frame_cache.join(reader.take(100, tuple, merge=False)).count(b"data: ") == 4
    for number in range(100):
        _grown(backlog, 10, 4 + number * 10)
        frame_cache.join(reader.take(100, tuple, merge=False))
    assert len(frame_cache._made) <= 8
