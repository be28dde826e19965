"""Failures of a cluster: time of takeover, an outage of PostgreSQL, and a check of what the clients received."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from bench.cluster_nodes import Cluster, Node, wait, wait_until
from bench.cluster_plan import ClusterPlan, percentile
from bench.figures import Figure, Goal
from bench.raw_client import RawClient, RequestConnection, connect
from holdfast.client.server_address import build_request

__all__ = ["measure_outage", "measure_takeover"]

LEASE = 3.0
SESSIONS = 4
_OUTAGE_RATE = 10
_END_SECONDS = 20.0
_STREAM = "words=100000 pause=100"
"""A response that does not end by itself."""
_HOLDER = """
import asyncio, sys, asyncpg
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.execute("SELECT pg_advisory_lock(7, 7)")
    print("held", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""


class _Found:
    """Events that a client has read from a log, and what is wrong with them."""

    def __init__(self) -> None:
        self.lost = self.doubled = self.gaps = self.late = 0

    def check(self, events: Sequence[tuple[int, dict[str, Any]]], accepted: set[str]) -> None:
        """Check a whole log: numbers without gaps, one end for each accepted prompt, nothing of a run after it."""
        numbers = [number for number, _ in events]
        self.gaps += sum(one + 1 != other for one, other in pairwise(numbers))
        ends: Counter[str] = Counter()
        for _, event in events:
            run = _run_of(event)
            # A title may be stored after the end, and names no run.
            self.late += bool(run) and ends[run] > 0 and event["type"] in ("message", "run")
            ends[run] += event["type"] == "run_complete"
        self.doubled += sum(number > 1 for run, number in ends.items() if run)
        self.lost += sum(not ends[run] for run in accepted)

    def figures(self, section: str) -> list[Figure]:
        """Return one row for each kind of fault. All must be 0."""
        rows = {
            "prompts that were accepted and have no end": self.lost,
            "runs with more than one end": self.doubled,
            "gaps in the numbers of events": self.gaps,
            "events of a run after its end (writes of a former owner)": self.late,
        }
        return [Figure(name, value, "", None, "", Goal(0.0), "", section) for name, value in rows.items()]


def _run_of(event: Mapping[str, Any]) -> str:
    payload = event.get("payload", {})
    item = payload.get("payload", payload) if isinstance(payload, dict) else {}
    return str(item.get("run_id", "")) if isinstance(item, dict) else ""


def read_log(node: Node, path: str, runs: set[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return all stored events of a workspace, as a new client of a node receives them, up to the ends of some runs. If
    ends are missing after some seconds, what was received until then.
    """
    client = RawClient(node.server, path=path)
    stream = connect(node.server.tcp)
    stream.sendall(build_request(node.server.tcp, "GET", f"{client.path}/events", (("since", 0),)))
    stream.settimeout(1.0)
    received, end = b"", time.monotonic() + _END_SECONDS
    while time.monotonic() < end:
        with suppress(TimeoutError):
            received += stream.recv(1 << 20)
        if received.endswith(b"\n\n\r\n") and _ends(_frames(received)).keys() >= runs:
            break
    stream.close()
    client.close()
    return [(number, event) for number, event in _frames(received) if number]


def _frames(data: bytes) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for frame in data.split(b"\n\n")[:-1]:
        number, body = 0, b""
        for line in frame.split(b"\n"):
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif (at := line.find(b"data: ")) >= 0:
                body = line[at + 6 :]
        if body:
            found.append((number, json.loads(body)))
    return found


def _bare_lock(cluster: Cluster) -> float:
    """Return the seconds until the advisory lock of a killed process is free."""
    command = [sys.executable, "-c", _HOLDER, cluster.postgres.dsn()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        began = time.monotonic()
        holder.kill()
        freed = wait_until(lambda: bool(cluster.database.value("SELECT pg_try_advisory_lock(7, 7)")))
        cluster.database.execute("SELECT pg_advisory_unlock(7, 7)")
    return freed - began


class _Trial:
    """One failure of the owner of a workspace with active and waiting runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        opened, self.owner, self.other = cluster.owned_workspace()
        self.client = RawClient(self.other.server, path=opened.directory)
        opened.close()
        self.accepted: set[str] = set()
        self._sessions = [self.client.session() for _ in range(SESSIONS)]
        self._stream = self.client.stream()
        for session in self._sessions:
            self.accepted.add(self.client.post(session, _STREAM))
            self.accepted.add(self.client.post(session, "words=1"))
        self._read_until(lambda data: data.count(b'"step":1') >= SESSIONS)

    def takeover(self, fail: Callable[[Node], None]) -> float:
        """Return the seconds from a failure until every interrupted run has its end on another node, where a prompt was
        sent meanwhile.
        """
        began = time.monotonic()
        fail(self.owner)
        self.accepted.add(self.client.post(self._sessions[0], "words=1"))
        received = self._read_until(lambda data: data.count(b'"outcome":"interrupted"') >= SESSIONS)
        took = time.monotonic() - began
        # The prompts that waited.
        self._read_until(lambda data: (received + data).count(b'"type":"run_complete"') >= len(self.accepted))
        return took

    def check(self, found: _Found) -> None:
        """Read the log at every node and check it."""
        for node in self.cluster.nodes:
            found.check(read_log(node, self.client.directory, self.accepted), self.accepted)
        self.client.close()
        self._stream.close()

    def _read_until(self, is_done: Callable[[bytes], bool]) -> bytes:
        received, end = b"", time.monotonic() + 30
        self._stream.settimeout(30)
        while not is_done(received):
            assert time.monotonic() < end, received[-2_000:]
            received += _received(self._stream)
        return received


def _received(stream: socket.socket) -> bytes:
    data = stream.recv(1 << 20)
    assert data, "the server has closed the stream"
    return data


def _kill(node: Node) -> None:
    node.server.process.kill()


def _pause(node: Node) -> None:
    node.send_signal(signal.SIGSTOP)


def _cut(node: Node) -> None:
    assert node.forwarder is not None
    node.forwarder.cut()


def _heal(cluster: Cluster, node: Node) -> None:
    """Let a node that was paused or cut off continue, and wait until it has joined again."""
    known = set(cluster.members())
    if node.forwarder is not None:
        node.forwarder.heal()
    node.send_signal(signal.SIGCONT)
    wait_until(lambda: bool(set(cluster.members()) - known))
    node.member = (set(cluster.members()) - known).pop()


def measure_takeover(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Fail the owner of a workspace in three ways, several times each, and check the logs of the clients."""
    cluster.restart(0)
    for _ in range(3):
        cluster.start(can_be_cut=True)
    figures, found = [], _Found()
    bare = [_bare_lock(cluster) for _ in range(3)]
    lock = "the advisory lock of a killed process is free"
    kinds: Sequence[tuple[str, Callable[[Node], None], float, float, str]] = (
        ("death of the process", _kill, 2.0, percentile(bare, 50), lock),
        ("pause (SIGSTOP)", _pause, 5.0, LEASE, "the lease"),
        ("cut from PostgreSQL", _cut, 5.0, LEASE, "the lease"),
    )
    for name, fail, goal, limit, beside in kinds:
        times = []
        for _ in range(plan.trials):
            trial = _Trial(cluster)
            times.append(trial.takeover(fail))
            if fail is _kill:
                cluster.stop(trial.owner)
                cluster.start(can_be_cut=True)
            else:
                _heal(cluster, trial.owner)
            trial.check(found)
        section, row = "takeover", f"takeover after {name}"
        figures.append(Figure(f"{row}, median", percentile(times, 50), "s", limit, beside, None, "", section))
        slowest = f"{row}, slowest of {len(times)}"
        figures.append(Figure(slowest, max(times), "s", limit, beside, Goal(goal), "", section))
    trials = f"after {len(kinds) * plan.trials} failures of nodes"
    return [*figures, *found.figures(trials)]


def measure_outage(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Stop PostgreSQL under load for a while, as a crash does, and start it again."""
    cluster.restart(2)
    client, _, other = cluster.owned_workspace()
    there = RawClient(other.server, path=client.directory)
    streaming = [client.session() for _ in range(SESSIONS)]
    accepted = {client.post(session, _STREAM) for session in streaming}
    session = there.session()
    accepted |= {there.post(session, "words=1") for _ in range(5)}
    wait(1.0)
    cluster.postgres.stop(signal.SIGQUIT)
    refused, end = 0, time.monotonic() + plan.outage
    while time.monotonic() < end:
        try:
            accepted.add(_post_once(there, session))
        except AssertionError:
            refused += 1
        wait(1 / _OUTAGE_RATE)
    cluster.postgres.start()
    began = time.monotonic()
    cluster.database.reconnect()
    while True:
        try:
            accepted.add(_post_once(there, session))
            break
        except AssertionError:
            assert time.monotonic() < began + 20
    back = time.monotonic() - began
    # The streams continue: they are cancelled, so an interrupted run is one that did not survive.
    wait(2.0)
    for held in streaming:
        client.send_cancel(held)
        client.receive()
    found, interrupted = _Found(), 0
    for node in cluster.nodes:
        events = read_log(node, client.directory, accepted)
        found.check(events, accepted)
        interrupted = max(interrupted, sum(outcome == "interrupted" for outcome in _ends(events).values()))
    section = f"PostgreSQL down for {plan.outage:.0f} s"
    beside = "PostgreSQL accepts connections"
    return [
        Figure("first accepted prompt after its return", back, "s", None, beside, Goal(1.0), "", section),
        Figure("interrupted runs", interrupted, "", None, "", Goal(0.0), "", section),
        Figure("prompts refused with 503 meanwhile", refused, "", None, "", None, "", section),
        *found.figures(section),
    ]


def _post_once(client: RawClient, session: str) -> str:
    """Post a prompt on a connection of its own. Fails unless it is accepted."""
    connection = RequestConnection(client.address)
    body = client.prompt(session, "words=1")
    try:
        connection.request("POST", f"{client.path}/agent", body)
    finally:
        connection.close()
    return str(body["run_id"])


def _ends(events: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, str]:
    """Return the outcomes of the runs that have ended."""
    return {
        _run_of(event): str(event["payload"].get("payload", event["payload"]).get("outcome"))
        for _, event in events
        if event["type"] == "run_complete"
    }
