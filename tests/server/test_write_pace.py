"""Write rate of one reader: unlimited when paced, in batches when not, less often under load."""

import pytest

from holdfast.server.streams.event_stream import MAX_WAIT, MIN_WAIT, WritePace


def test_a_paced_stream_never_waits() -> None:
    pace = WritePace(0.0)
    assert all(pace.wait(number * 0.005) == 0 for number in range(1, 1000))


def test_first_writes_are_immediate_and_next_ones_delayed() -> None:
    pace = WritePace(0.0)
    waits = [pace.wait(0.0) for _ in range(17)]
    assert waits == [0.0] * 16 + [MIN_WAIT]


def test_a_burst_is_written_in_pieces() -> None:
    """At most a fixed number of writes per second for any input."""
    pace, now, writes = WritePace(0.0), 0.0, 0
    while now < 1.0:
        now += 0.00001
        if seconds := pace.wait(now):
            now += seconds
            pace.waited(now)
        writes += 1
    assert writes <= 16 + 1 / MIN_WAIT


def test_a_delay_earns_no_write() -> None:
    """Each later write of a burst waits, on time or late; only idle time earns writes again."""
    for late in (0.0, 0.4, 3.0):
        pace, now = WritePace(0.0), 0.0
        while not (seconds := pace.wait(now)):
            pass
        for _ in range(20):
            now += seconds + pace.pause * late
            pace.waited(now)
            seconds = pace.wait(now)
            assert pace.pause / 4 <= seconds < pace.pause * 1.25, late
        now += seconds
        pace.waited(now)
        assert [pace.wait(now + pace.pause * 3.5) == 0 for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(("late", "grows"), [(0.49, False), (0.51, True)])
def test_a_delay_is_late_from_half_an_interval_on(late: float, grows: bool) -> None:
    pace = WritePace(0.0)
    while not (seconds := pace.wait(0.0)):
        pass
    pace.waited(seconds + MIN_WAIT * late)
    assert pace.pause == (2 * MIN_WAIT if grows else MIN_WAIT)


def test_delay_follows_lag_of_loop() -> None:
    pace, now = WritePace(0.0), 0.0

    def waited(late: float) -> float:
        nonlocal now
        while not (seconds := pace.wait(now)):
            pass
        now += seconds + pace.pause * late
        pace.waited(now)
        return pace.pause

    grown = [waited(2.0) for _ in range(8)]
    assert grown == sorted(grown)
    assert grown[-1] == MAX_WAIT
    shrunk = [waited(0.0) for _ in range(8)]
    assert shrunk == sorted(shrunk, reverse=True)
    assert shrunk[-1] == MIN_WAIT


def test_delayed_readers_share_deadline() -> None:
    """So that their frames are equal and are built once."""
    ends = set()
    for start in (0.1001, 0.1005, 0.1009, 0.1013):
        pace = WritePace(start)
        while not (seconds := pace.wait(start)):
            pass
        ends.add(round(start + seconds, 6))
    assert ends == {0.102}
