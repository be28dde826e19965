"""Many at once, over sockets: sessions, paced streams, readers; what a turn costs, what a server holds."""

import re
import socket
import time
from statistics import median, quantiles

from bench.figures import Figure, Goal
from bench.outside import MIB, Crowd, Served, Speaker, served
from bench.stage import Bare

__all__ = ["measure"]

TURNS = 40
SESSIONS = (20, 50, 100)
READERS = (1, 10, 50, 100)
BURST = 10_000
PACED_STREAMS = 100
PACED_TOKENS = 100
PAUSE = 0.02
_STAMP = re.compile(rb"(\d+\.\d{6}) ")


def _turns(server: Served, speaker: Speaker) -> list[Figure]:
    """One after the other: what each costs the processor."""
    session, crowd = speaker.session(), Crowd([speaker.stream()])
    before = server.processor()
    for _ in range(TURNS):
        speaker.post(session, "words=200")
        crowd.until_ends(1)
    crowd.close()
    spent = (server.processor() - before) / TURNS * 1e3
    return [Figure("processor for a turn of 200 tokens", spent, "ms", None, "", Goal(10))]


def _at_once(speaker: Speaker, count: int) -> float:
    """Turns per second, of so many sessions that work at the same time."""
    sessions, crowd = [speaker.session() for _ in range(count)], Crowd([speaker.stream()])
    began = time.perf_counter()
    for session in sessions:
        for _ in range(max(1, 100 // count)):
            speaker.post(session, "words=200")
    turns = count * max(1, 100 // count)
    crowd.until_ends(turns)
    crowd.close()
    return turns / (time.perf_counter() - began)


def _sessions(speaker: Speaker) -> list[Figure]:
    found = {count: max(_at_once(speaker, count) for _ in range(2)) for count in SESSIONS}
    return [
        Figure(f"{count} sessions at once", value, "turns/s", None, "", Goal(100, at_least=True))
        for count, value in found.items()
    ]


def _held(speaker: Speaker, server: Served) -> list[Figure]:
    idle = server.resident() / MIB
    crowd = Crowd([speaker.stream()])
    for _ in range(50):
        speaker.post(speaker.session(), "words=200")
    crowd.until_ends(50)
    crowd.close()
    return [
        Figure("resident, idle", idle, "MiB", None, "", Goal(40)),
        Figure("resident, 50 sessions with a turn each", server.resident() / MIB, "MiB", None, "", Goal(55)),
    ]


def _lags(speaker: Speaker, server: Served, count: int, tokens: int) -> tuple[list[float], float]:
    """How late each token comes, in seconds, of so many paced streams; and how many processors that takes."""
    sessions, connection = [speaker.session() for _ in range(count)], speaker.stream()
    crowd, lags = Crowd([connection]), list[float]()
    for session in sessions:
        speaker.post(session, f"{tokens} {PAUSE}")
    began, before = time.perf_counter(), server.processor()
    # What came while the prompts were being sent waited for this reader, not for the server.
    ready = time.monotonic()

    def heard(_: socket.socket, data: bytes) -> None:
        now = time.monotonic()
        for line in data.split(b"\n"):
            if b'"message_delta"' in line:
                stamps = map(float, _STAMP.findall(line))
                lags.extend(now - stamp for stamp in stamps if stamp >= ready)

    # A reader that falls behind gets whole parts instead of deltas: the ends are what can be counted on.
    crowd.until_ends(count, heard)
    crowd.close()
    return lags, (server.processor() - before) / (time.perf_counter() - began)


def _paced(speaker: Speaker, server: Served) -> list[Figure]:
    one, _ = _lags(speaker, server, 1, PACED_TOKENS)
    many, cores = _lags(speaker, server, PACED_STREAMS, PACED_TOKENS)
    return [
        Figure("token to event, paced", median(one) * 1e3, "ms", None, "", Goal(1)),
        Figure("100 streams of 50 tokens/s", cores, "processors", None, "", Goal(0.9)),
        Figure("  their lag, 99 of 100", quantiles(many, n=100)[98] * 1e3, "ms", None, "", Goal(20)),
    ]


def _fan_out(speaker: Speaker) -> list[Figure]:
    """Tokens that reach readers in a second, from a model that does not wait. Merged when they come too fast."""
    figures, session = [], speaker.session()
    for count in READERS:
        crowd = Crowd([speaker.stream() for _ in range(count)])
        began = time.perf_counter()
        speaker.post(session, f"{BURST} 0")
        crowd.until_ends(1)
        crowd.close()
        value = BURST * count / (time.perf_counter() - began)
        goal = Goal(1_200_000, at_least=True) if count == 100 else None
        figures.append(Figure(f"burst, {count} readers", value, "tokens/s", None, "", goal))
    return figures


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with served() as server:
        server.answer("/v1/version")
        speaker = Speaker(server)
        figures += _held(speaker, server)
        figures += _turns(server, speaker)
        figures += _sessions(speaker)
        speaker.close()
    with served("-m", "bench.stamped") as server:
        server.answer("/v1/version")
        speaker = Speaker(server)
        bare = Bare(server.root)
        commit = median(bare.commit() for _ in range(20)) * 1e3
        bare.close()
        figures.append(Figure("one synced commit", commit, "ms"))
        figures += _paced(speaker, server)
        figures += _fan_out(speaker)
        speaker.close()
    return figures
