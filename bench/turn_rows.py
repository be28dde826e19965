"""Rows of the table about prompts and turns, measured alternately on the floor and on Holdfast."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import TypeAlias

from bench.raw_client import END, STAMP, TOKEN, RawClient, Readers, RequestConnection
from bench.servers import ServerProcess

__all__ = [
    "Samples",
    "Subject",
    "alternate",
    "measure_accept_beside_streams",
    "measure_burst",
    "measure_cancels",
    "measure_paced",
    "measure_processor",
    "measure_throughput",
    "measure_turns",
    "paced_streams",
    "subjects",
]

Samples: TypeAlias = list[float]

TURN = "words=200"
STREAMS = 20
READERS = 100
BURST_TOKENS = 500
SAMPLED_READERS = 10
"""Readers whose tokens are examined one by one: to examine all of them would slow the client down."""


class Subject:
    """A server that is measured over one transport, with a client and an open event stream."""

    def __init__(self, server: ServerProcess, *, over_tcp: bool, path: str = "") -> None:
        self.server = server
        self.client = RawClient(server, over_tcp=over_tcp, path=path)
        self.readers = Readers([self.client.stream()])

    def turn(self, session: str, prompt: str = TURN) -> tuple[float, float]:
        """Run a turn. Return the milliseconds until it is accepted and until its first token event."""
        self.readers.drain()
        began = time.perf_counter()
        self.client.post(session, prompt)
        accepted = time.perf_counter()
        first = self.readers.until(TOKEN)
        self.readers.until_ends()
        return (accepted - began) * 1e3, (first - began) * 1e3

    def close(self) -> None:
        """Close the connections."""
        self.readers.close()
        self.client.close()


@contextmanager
def subjects(*servers: ServerProcess, over_tcp: bool) -> Iterator[list[Subject]]:
    """Connect to servers, each in its project."""
    opened = [Subject(server, over_tcp=over_tcp) for server in servers]
    try:
        yield opened
    finally:
        for subject in opened:
            subject.close()


def alternate(
    subjects: list[Subject],
    rounds: int,
    measure: Callable[[Subject], dict[str, float]],
    between: Callable[[], object] = lambda: None,
) -> list[dict[str, Samples]]:
    """Call `measure` for each subject in turn, and `between` before each round. Return the samples by name."""
    found: list[dict[str, Samples]] = [{} for _ in subjects]
    for _ in range(rounds):
        between()
        for samples, subject in zip(found, subjects, strict=True):
            for name, value in measure(subject).items():
                samples.setdefault(name, []).append(value)
    return found


def measure_turns(subject: Subject) -> dict[str, float]:
    """Run three turns in a fresh session."""
    session = subject.client.session()
    accepted_fresh, first_fresh = subject.turn(session)
    subject.turn(session)
    accepted, first = subject.turn(session)
    return {
        "accept_fresh": accepted_fresh,
        "first_token_fresh": first_fresh,
        "accept": accepted,
        "first_token": first,
    }


@contextmanager
def paced_streams(subjects: Sequence[Subject]) -> Iterator[None]:
    """Keep sessions of each subject streaming, each with 50 tokens per second."""
    streaming = [(subject, subject.client.session()) for subject in subjects for _ in range(STREAMS)]
    for subject, session in streaming:
        subject.client.post(session, "words=100000 pause=20")
    try:
        yield
    finally:
        for subject, session in streaming:
            subject.client.send_cancel(session)
            subject.client.receive()
        for subject in subjects:
            subject.readers.until_ends(STREAMS)


def measure_accept_beside_streams(subject: Subject) -> dict[str, float]:
    """Accept a prompt of a fresh session while other sessions stream."""
    session = subject.client.session()
    subject.readers.drain()
    began = time.perf_counter()
    subject.client.post(session, "words=1")
    accepted = time.perf_counter()
    subject.readers.until_ends()
    return {"accept_beside_streams": (accepted - began) * 1e3}


def measure_paced(subject: Subject) -> dict[str, float]:
    """Measure the delay of each token of a paced stream, from the provider to the reader."""
    delays: Samples = []

    def note(_: socket.socket, data: bytes) -> None:
        now = time.monotonic()
        # The end repeats the whole text in durable events, which are no deltas.
        deltas = [line for line in data.split(b"\n") if b'"message_delta"' in line]
        delays.extend((now - float(stamp)) * 1e3 for line in deltas for stamp in STAMP.findall(line))

    session = subject.client.session()
    subject.turn(session, "words=5")
    subject.client.post(session, "words=200 pause=5")
    subject.readers.until_ends(received=note)
    return {"paced_p50": median(delays), "paced_p99": quantiles(delays, n=100)[98]}


def measure_processor(subject: Subject, turns: int = 10) -> dict[str, float]:
    """Measure the processor time of turns, in milliseconds each."""
    sessions = [subject.client.session() for _ in range(turns)]
    found = {}
    for name in ("processor_fresh", "processor"):
        before = subject.server.processor()
        for session in sessions:
            subject.turn(session)
        found[name] = (subject.server.processor() - before) / turns * 1e3
    return found


def measure_throughput(subject: Subject, count: int) -> dict[str, float]:
    """Send one prompt to each of many fresh sessions at once. Return the turns per second."""
    client = subject.client
    sessions = [client.session() for _ in range(count)]
    connections = [RequestConnection(client.address) for _ in sessions]
    began = time.perf_counter()
    for session, connection in zip(sessions, connections, strict=True):
        connection.send("POST", f"{client.path}/agent", client.prompt(session, TURN))
    subject.readers.until_ends(count)
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.receive()
        connection.close()
    return {f"turns_{count}": count / seconds}


def measure_burst(subject: Subject) -> dict[str, float]:
    """Stream an answer without pauses to many readers: tokens that reach readers per second, and their delay."""
    client = subject.client
    streams = [client.stream() for _ in range(READERS)]
    readers, sampled = Readers(streams), set(streams[:SAMPLED_READERS])
    received: list[tuple[socket.socket, float, bytes]] = []

    def note(stream: socket.socket, data: bytes) -> None:
        if stream in sampled:
            received.append((stream, time.monotonic(), data))

    session = client.session()
    subject.turn(session, "words=5")
    readers.until_ends()
    began = time.perf_counter()
    client.post(session, f"words={BURST_TOKENS} stamped")
    readers.until_ends(received=note)
    seconds = time.perf_counter() - began
    readers.close()
    subject.readers.until_ends()
    delays = _delays(received)
    assert len(delays) == BURST_TOKENS * SAMPLED_READERS, len(delays)
    return {"burst": BURST_TOKENS * READERS / seconds, "burst_p99": quantiles(delays, n=100)[98]}


def _delays(received: list[tuple[socket.socket, float, bytes]]) -> Samples:
    """Return the delay of each token at each reader in milliseconds. Events that repeat a token do not count."""
    rests: dict[socket.socket, bytes] = {}
    first: dict[tuple[socket.socket, bytes], float] = {}
    for stream, now, data in received:
        *lines, rests[stream] = (rests.get(stream, b"") + data).split(b"\n")
        for line in lines:
            for stamp in STAMP.findall(line):
                first.setdefault((stream, stamp), now)
    return [(now - float(stamp)) * 1e3 for (_, stamp), now in first.items()]


def measure_cancels(subject: Subject) -> dict[str, float]:
    """Cancel a streaming run. Return the milliseconds until its end event."""
    session = subject.client.session()
    subject.client.post(session, "words=2000 pause=20")
    subject.readers.until(TOKEN)
    began = time.perf_counter()
    subject.client.send_cancel(session)
    ended = subject.readers.until(END)
    subject.client.receive()
    return {"cancel": (ended - began) * 1e3}
