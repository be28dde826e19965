"""Many at once, over sockets: sessions, paced streams, readers; what a turn costs, what a server holds."""

import re
import socket
import time
from collections.abc import Sequence
from statistics import median, quantiles

from bench.figures import Figure, Goal
from bench.outside import MIB, Crowd, Served, Speaker, served

__all__ = ["measure"]

TURNS = 40
SESSIONS = (20, 50, 100)
READERS = (1, 10, 50, 100)
BURST = 10_000
PACED_STREAMS = 100
PACED_TOKENS = 100
PAUSE = 0.02
_STAMP = re.compile(rb"(\d+\.\d{6}) ")


def _turns(server: Served, speaker: Speaker) -> float:
    """One after the other: what each costs the processor, in milliseconds."""
    session, crowd = speaker.session(), Crowd([speaker.stream()])
    before = server.processor()
    for _ in range(TURNS):
        speaker.post(session, "words=200")
        crowd.until_ends(1)
    crowd.close()
    return (server.processor() - before) / TURNS * 1e3


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


def _with_turns(server: Served, speaker: Speaker) -> float:
    """What it holds, in MiB, after fifty sessions had a turn each."""
    crowd = Crowd([speaker.stream()])
    for _ in range(50):
        speaker.post(speaker.session(), "words=200")
    crowd.until_ends(50)
    crowd.close()
    return server.resident() / MIB


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


def _burst(speaker: Speaker, session: str, count: int) -> float:
    """Tokens that reach readers in a second, from a model that does not wait. Merged when they come too fast."""
    crowd = Crowd([speaker.stream() for _ in range(count)])
    began = time.perf_counter()
    speaker.post(session, f"{BURST} 0")
    crowd.until_ends(1)
    crowd.close()
    return BURST * count / (time.perf_counter() - began)


Row = tuple[str, str, Goal | None]

_HELD: dict[str, Row] = {
    "idle": ("resident, idle", "MiB", Goal(40)),
    "with turns": ("resident, 50 sessions with a turn each", "MiB", Goal(55)),
    "turn": ("processor for a turn of 200 tokens", "ms", Goal(10)),
    **{f"{count} sessions": (f"{count} sessions at once", "turns/s", Goal(100, at_least=True)) for count in SESSIONS},
}
_SAID: dict[str, Row] = {
    "token": ("token to event, paced", "ms", Goal(1)),
    "streams": ("100 streams of 50 tokens/s", "processors", Goal(0.9)),
    "lag": ("  their lag, 99 of 100", "ms", Goal(20)),
    **{f"{count} readers": (f"burst, {count} readers", "tokens/s", None) for count in READERS},
    "100 readers": ("burst, 100 readers", "tokens/s", Goal(1_200_000, at_least=True)),
}


def _held(command: Sequence[str]) -> dict[str, float]:
    with served(*command) as server:
        server.answer("/v1/version")
        speaker = Speaker(server)
        found = {"idle": server.resident() / MIB, "with turns": _with_turns(server, speaker)}
        found["turn"] = _turns(server, speaker)
        found |= {f"{count} sessions": max(_at_once(speaker, count) for _ in range(2)) for count in SESSIONS}
        speaker.close()
    return found


def _said(command: Sequence[str]) -> dict[str, float]:
    with served(*command) as server:
        server.answer("/v1/version")
        speaker = Speaker(server)
        one, _ = _lags(speaker, server, 1, PACED_TOKENS)
        many, processors = _lags(speaker, server, PACED_STREAMS, PACED_TOKENS)
        found = {"token": median(one) * 1e3, "streams": processors, "lag": quantiles(many, n=100)[98] * 1e3}
        session = speaker.session()
        found |= {f"{count} readers": _burst(speaker, session, count) for count in READERS}
        speaker.close()
    return found


def measure() -> list[Figure]:
    bare = ("-m", "bench.bare")
    held, said = (_held(()), _held(bare)), (_said(("-m", "bench.stamped")), _said(bare))
    figures = []
    for rows, (ours, floor) in ((_HELD, held), (_SAID, said)):
        for key, (name, unit, goal) in rows.items():
            figures.append(Figure(name, ours[key], unit, floor[key], "a bare asyncio server, no agent", goal))
    return figures
