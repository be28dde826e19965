"""Load on a cluster: events per second, and how the cost grows with nodes, workspaces, readers and long answers."""

import json
import os
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from bench.cluster_nodes import Cluster, Node, wait, wait_until
from bench.cluster_plan import ClusterPlan, percentile
from bench.figures import Figure, Goal
from bench.raw_client import END, STAMP, RawClient, Readers, RequestConnection

__all__ = ["measure_events", "measure_length", "measure_nodes", "measure_readers", "measure_workspaces"]

TOKENS_PER_SECOND = 50
GROUP = 10
"""Tokens in one piece of a response of the provider in the row with many streams."""
GROWTH_WORKSPACES = 40
AT_ONCE = 8
"""Requests for new workspaces, or first prompts, at a time."""
READER_TOKENS = 400
LENGTHS = (500, 5_000)
_FLAT = Goal(1.25, is_ratio=True)


class Used(msgspec.Struct, frozen=True):
    """What was used so far: processor time in seconds, durable events, bytes of the write-ahead log, transactions, and
    statements that send notifications.
    """

    at: float
    nodes: tuple[float, ...]
    postgres: float
    events: int
    wal: int
    statements: int
    wakeups: int


def used(cluster: Cluster) -> Used:
    """Return what the nodes and PostgreSQL have used so far."""
    database = cluster.database
    nodes = tuple(node.server.processor() for node in cluster.nodes)
    return Used(
        time.monotonic(),
        nodes,
        cluster.postgres_processor(),
        int(database.value("SELECT coalesce(sum(newest), 0) FROM holdfast.workspaces")),
        int(database.value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")),
        int(database.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")),
        int(database.value("SELECT sum(calls) FROM pg_stat_user_functions WHERE funcname = 'node_notify'") or 0),
    )


class Growth(msgspec.Struct, frozen=True):
    """The difference of two `Used`."""

    seconds: float
    nodes: tuple[float, ...]
    postgres: float
    events: int
    wal: int
    statements: int
    wakeups: int


def difference(before: Used, after: Used) -> Growth:
    """Return what was used between two moments."""
    return Growth(
        after.at - before.at,
        tuple(now - then for then, now in zip(before.nodes, after.nodes, strict=True)),
        after.postgres - before.postgres,
        after.events - before.events,
        after.wal - before.wal,
        after.statements - before.statements,
        after.wakeups - before.wakeups,
    )


class OpenWorkspace:
    """A workspace that is open on its owner and followed on another node, with a client at each."""

    def __init__(self, owner: Node, other: Node, path: str) -> None:
        self.owner = owner
        self.other = other
        self.there = RawClient(other.server, path=path)
        self.id = self.there.workspace
        self.session = self.there.session()
        self.stream = self.there.stream()

    def close(self) -> None:
        """Close the connections."""
        self.stream.close()
        self.there.close()


@contextmanager
def opened(cluster: Cluster, number: int) -> Iterator[list[OpenWorkspace]]:
    """Open new workspaces, and follow each on another node than its owner, if there is one."""
    nodes = cluster.nodes
    requests = [RequestConnection(nodes[index % len(nodes)].server.tcp) for index in range(min(number, AT_ONCE))]
    workspaces: list[OpenWorkspace] = []
    # Some at a time: without a stream, a workspace is closed after a minute.
    while len(workspaces) < number:
        workspaces += _open_some(cluster, requests[: number - len(workspaces)])
    for connection in requests:
        connection.close()
    # The owners read once a second which workspaces other nodes follow.
    wait(1.5)
    yield workspaces
    for workspace in workspaces:
        workspace.close()


def _open_some(cluster: Cluster, requests: Sequence[RequestConnection]) -> list[OpenWorkspace]:
    directories = [cluster.new_directory() for _ in requests]
    for connection, path in zip(requests, directories, strict=True):
        connection.send("POST", "/v1/workspaces", {"id": "", "path": path, "client_id": os.urandom(16).hex()})
    paths: dict[str, str] = {}
    for connection, path in zip(requests, directories, strict=True):
        paths[str(json.loads(connection.receive())["id"])] = path
    found: dict[str, Node] = {}

    def all_owned() -> bool:
        owners = cluster.owners()
        found.update({name: node for name in paths if (node := owners.get(name)) is not None})
        return len(found) == len(paths)

    wait_until(all_owned, 60)
    workspaces = []
    for index, (name, path) in enumerate(paths.items()):
        others = [node for node in cluster.nodes if node is not found[name]] or [found[name]]
        workspaces.append(OpenWorkspace(found[name], others[index % len(others)], path))
    return workspaces


def _post_all(workspaces: Sequence[OpenWorkspace], prompt: str) -> None:
    """Post a prompt in each workspace, some at a time: this is no measurement of many starts at once."""
    for first in range(0, len(workspaces), AT_ONCE):
        for workspace in workspaces[first : first + AT_ONCE]:
            workspace.there.send_post(workspace.session, prompt)
        for workspace in workspaces[first : first + AT_ONCE]:
            workspace.there.receive()


def measure_events(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Stream answers in many workspaces on all nodes to subscribers on other nodes, then run short turns."""
    cluster.restart(plan.load_nodes)
    with opened(cluster, plan.load_workspaces) as workspaces:
        figures = _streamed(cluster, plan, workspaces)
        figures += _stored(cluster, plan, workspaces)
    return figures


def _section(plan: ClusterPlan) -> str:
    return f"events over {plan.load_nodes} nodes and {plan.load_workspaces} workspaces, subscribers on other nodes"


def _streamed(cluster: Cluster, plan: ClusterPlan, workspaces: Sequence[OpenWorkspace]) -> list[Figure]:
    readers = Readers([workspace.stream for workspace in workspaces])
    delays: list[float] = []
    rests: dict[Any, bytes] = {}

    def note(stream: Any, data: bytes) -> None:  # noqa: ANN401
        now = time.monotonic()
        *lines, rests[stream] = (rests.get(stream, b"") + data).split(b"\n")
        for line in lines:
            if b'"message_delta"' in line:
                delays.extend((now - float(stamp)) * 1e3 for stamp in STAMP.findall(line))

    _post_all(workspaces, f"words=1000000 pause={1000 * GROUP // TOKENS_PER_SECOND} each={GROUP}")
    # The steady load begins when all runs have started and what they have sent by then is read.
    settled = time.monotonic() + 1.0
    while time.monotonic() < settled:
        readers.read(note)
    delays.clear()
    before = used(cluster)
    end = before.at + plan.load_seconds
    while time.monotonic() < end:
        readers.read(note)
    grown = difference(before, used(cluster))
    section, streamed = _section(plan), len(delays)
    for workspace in workspaces:
        workspace.there.send_cancel(workspace.session)
    readers.until_ends()
    for workspace in workspaces:
        workspace.there.receive()
    rate = streamed / grown.seconds
    bare = cluster.database.run(_bare_round_trips(cluster, 200))
    beside = "bare NOTIFY"
    goal = Goal(0.95 * TOKENS_PER_SECOND * plan.load_workspaces, at_least=True)
    return [
        Figure(f"tokens delivered, {TOKENS_PER_SECOND} a second each, {GROUP} at a time", rate, "per second",
               None, "", goal, "", section),
        Figure("provider's token to subscriber, p50", percentile(delays, 50), "ms", percentile(bare, 50), beside,
               None, "", section),
        Figure("provider's token to subscriber, p99", percentile(delays, 99), "ms", percentile(bare, 99), beside,
               Goal(50.0), "", section),
        *_shares("meanwhile", grown, section, Goal(50.0)),
        Figure("write-ahead log per token", grown.wal / streamed, "bytes", None, "", None, "wal_token", section),
        Figure("PostgreSQL's CPU per 1,000 tokens", grown.postgres / streamed * 1e6, "ms", None, "", None,
               "postgres_token", section),
    ]  # fmt: skip


async def _bare_round_trips(cluster: Cluster, number: int) -> list[float]:
    import asyncio  # noqa: PLC0415

    sender, listener = await cluster.database.connect(), await cluster.database.connect()
    arrived = asyncio.Event()
    await listener.add_listener("bare", lambda *_: arrived.set())
    found = []
    for _ in range(number):
        arrived.clear()
        began = time.perf_counter()
        await sender.execute("SELECT pg_notify('bare', 'x')")
        await arrived.wait()
        found.append((time.perf_counter() - began) * 1e3)
    sender.terminate()
    listener.terminate()
    return found


def _shares(name: str, grown: Growth, section: str, goal: Goal | None = None) -> list[Figure]:
    postgres = grown.postgres / grown.seconds * 100
    node = max(grown.nodes) / grown.seconds * 100
    return [
        Figure(f"CPU of PostgreSQL {name}", postgres, "% of a core", None, "", goal, "", section),
        Figure(f"CPU of the busiest node {name}", node, "% of a core", None, "", None, "", section),
    ]


def _turns(workspaces: Sequence[OpenWorkspace], total: int) -> float:
    """Run short turns, one at a time in each workspace. Return the seconds."""
    selector = selectors.DefaultSelector()
    rests: dict[Any, bytes] = {}
    for workspace in workspaces:
        workspace.stream.setblocking(False)
        selector.register(workspace.stream, selectors.EVENT_READ, workspace)
    began, started, ended = time.monotonic(), 0, 0
    for workspace in workspaces[:total]:
        workspace.there.post(workspace.session, "words=5")
        started += 1
    while ended < total:
        ready = selector.select(30)
        assert ready, "no event has been received"
        for key, _ in ready:
            whole = rests.get(key.fileobj, b"") + key.fileobj.recv(262_144)  # type: ignore[union-attr]
            ends = whole.count(END)
            rests[key.fileobj] = whole[whole.rfind(END) + 1 :][1 - len(END) :]
            ended += ends
            for _ in range(min(ends, total - started)):
                key.data.there.post(key.data.session, "words=5")
                started += 1
    selector.close()
    return time.monotonic() - began


def _stored(cluster: Cluster, plan: ClusterPlan, workspaces: Sequence[OpenWorkspace]) -> list[Figure]:
    _turns(workspaces, len(workspaces))
    size = _size(cluster)
    before = used(cluster)
    turns = max(plan.turns * 2, len(workspaces))
    _turns(workspaces, turns)
    grown = difference(before, used(cluster))
    section = _section(plan)
    bare = cluster.database.run(_bare_commits(cluster))
    return [
        Figure("durable events of short turns, as fast as the machine can", grown.events / grown.seconds, "per second",
               bare, "bare INSERTs one after another", None, "", section),
        *_shares("during short turns", grown, section),
        Figure("PostgreSQL's CPU per durable event", grown.postgres / grown.events * 1e3, "ms", None, "", None,
               "postgres_event", section),
        Figure("CPU of all nodes per durable event", sum(grown.nodes) / grown.events * 1e3, "ms", None, "", None,
               "node_event", section),
        Figure("transactions per durable event", grown.statements / grown.events, "", None, "", None, "", section),
        Figure("NOTIFY statements per durable event", grown.wakeups / grown.events, "", None, "", None, "notify_event",
               section),
        Figure("connections of a node", cluster.connections(), "", None, "", None, "connections", section),
        Figure("durable events per turn", grown.events / turns, "", None, "", None, "events_turn", section),
        Figure("write-ahead log per durable event", grown.wal / grown.events, "bytes", None, "", None, "wal_event",
               section),
        Figure("disk per turn", (_size(cluster) - size) / turns / 1024, "KiB", None, "", None, "disk_turn", section),
    ]  # fmt: skip


def _size(cluster: Cluster) -> int:
    # Without a vacuum, old row versions of earlier updates count for the turns that follow.
    cluster.database.execute("VACUUM")
    return int(cluster.database.value("SELECT pg_database_size(current_database())"))


async def _bare_commits(cluster: Cluster) -> float:
    connection = cluster.database.connection
    await connection.execute("CREATE TEMPORARY TABLE IF NOT EXISTS one (body bytea)")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)"
    )
    began = time.monotonic()
    for _ in range(200):
        await connection.execute("INSERT INTO bare (body) VALUES ($1)", b"x" * 400)
    return 200 / (time.monotonic() - began)


def _per_event(name: str, grown: Growth, first: Growth | None, section: str) -> list[Figure]:
    rows = []
    for index, kind in enumerate(("PostgreSQL's CPU", "CPU of all nodes")):
        value, limit = _cpu_per_event(grown)[index], None if first is None else _cpu_per_event(first)[index]
        beside = "" if first is None else "the smallest"
        rows.append(Figure(f"{kind} per durable event, {name}", value, "ms", limit, beside, None, "", section))
    return rows


def _cpu_per_event(grown: Growth) -> tuple[float, float]:
    """Return the milliseconds of PostgreSQL and of all nodes."""
    return grown.postgres / grown.events * 1e3, sum(grown.nodes) / grown.events * 1e3


def measure_nodes(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Run the same turns on one node and on several."""
    figures, first, section = [], None, "growth with nodes"
    for number in plan.nodes:
        cluster.restart(number)
        before = used(cluster)
        wait(plan.idle_seconds)
        idle = difference(before, used(cluster))
        with opened(cluster, min(GROWTH_WORKSPACES, plan.turns)) as workspaces:
            _turns(workspaces, len(workspaces))
            before = used(cluster)
            _turns(workspaces, plan.turns)
            grown = difference(before, used(cluster))
        name = f"{number} node{'s' if number > 1 else ''}"
        figures += _per_event(name, grown, first, section)
        rate = idle.statements / idle.seconds / number
        figures.append(Figure(f"transactions per node, idle, {name}", rate, "per second", None, "", None,
                              "idle_statements", section))  # fmt: skip
        first = first or grown
    return figures


def measure_workspaces(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Open workspaces on two nodes, each followed on the other one, and measure them idle and while prompts come."""
    figures, section, first = [], "growth with workspaces, open on two nodes", None
    for number in plan.workspaces:
        cluster.restart(2)
        memory = [node.server.resident() for node in cluster.nodes]
        with opened(cluster, number) as workspaces:
            # Statements about the new workspaces and their clients follow for some seconds.
            wait(5.0)
            before = used(cluster)
            wait(plan.idle_seconds)
            idle = difference(before, used(cluster))
            each = sum(node.server.resident() - then for node, then in zip(cluster.nodes, memory, strict=True))
            _turns(workspaces[:20], 20)
            accepts = []
            before = used(cluster)
            for index in range(plan.turns):
                workspace = workspaces[index % 20]
                began = time.perf_counter()
                workspace.there.post(workspace.session, "words=5")
                accepts.append((time.perf_counter() - began) * 1e3)
                Readers([workspace.stream]).until(END)
            grown = difference(before, used(cluster))
            memory_of_connection = cluster.connection_memory()
        name = f"{number:,} workspaces"
        value = percentile(accepts, 50)
        figures += [
            Figure(f"accept on another node, {name}", value, "ms", first, "the smallest" if first else "", None, "",
                   section),
            Figure(f"transactions, idle, {name}", idle.statements / idle.seconds, "per second", None, "", None,
                   f"idle_{number}", section),
            *_shares(f"idle, {name}", idle, section),
            Figure(f"memory of both nodes per workspace, {name}", each * 1024 / number, "KiB", None, "", None,
                   "node_memory", section),
            Figure(f"CPU of PostgreSQL per workspace and second, idle, {name}",
                   idle.postgres / idle.seconds / number * 1e6, "µs", None, "", None, "idle_cpu", section),
            Figure(f"memory of a connection to PostgreSQL, {name}", memory_of_connection, "MiB", None, "", None,
                   "connection_memory", section),
            *_per_event(name, grown, None, section),
        ]  # fmt: skip
        first = first or value
    return figures


def measure_readers(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Stream an answer to readers on another node."""
    cluster.restart(2)
    figures, section = [], "growth with readers on another node"
    with opened(cluster, 1) as (workspace,):
        _turns([workspace], 1)
        first: tuple[float, ...] | None = None
        for number in plan.readers:
            streams = [workspace.there.stream() for _ in range(number - 1)]
            readers = Readers([workspace.stream, *streams])
            readers.drain()
            before = used(cluster)
            workspace.there.post(workspace.session, f"words={READER_TOKENS} pause=5")
            readers.until_ends()
            grown = difference(before, used(cluster))
            owner = grown.nodes[cluster.nodes.index(workspace.owner)]
            other = grown.nodes[cluster.nodes.index(workspace.other)]
            found = tuple(value / READER_TOKENS * 1e6 for value in (grown.postgres, owner, other))
            for index, who in enumerate(("PostgreSQL", "the owner", "the readers' node")):
                limit = None if first is None else first[index]
                beside = "" if first is None else "the smallest"
                goal = None if first is None or index == 2 else _FLAT
                name = f"CPU of {who} per token, {number} reader{'s' if number > 1 else ''}"
                figures.append(Figure(name, found[index], "µs", limit, beside, goal, "", section))
            first = first or found
            for stream in streams:
                stream.close()
    return figures


def measure_length(cluster: Cluster, _: ClusterPlan) -> list[Figure]:
    """Stream a short and a long answer to a reader on another node."""
    cluster.restart(2)
    figures, section = [], "growth with the length of an answer"
    with opened(cluster, 1) as (workspace,):
        _turns([workspace], 1)
        readers = Readers([workspace.stream])
        first: tuple[float, ...] | None = None
        for number in LENGTHS:
            before = used(cluster)
            workspace.there.post(workspace.session, f"words={number} pause=2")
            readers.until_ends()
            grown = difference(before, used(cluster))
            found = (*(value / number * 1e6 for value in (grown.postgres, sum(grown.nodes))), grown.wal / number)
            kinds = (("PostgreSQL's CPU per token", "µs"), ("CPU of both nodes per token", "µs"),
                     ("write-ahead log per token", "bytes"))  # fmt: skip
            for index, (kind, unit) in enumerate(kinds):
                limit, beside, goal = (None, "", None) if first is None else (first[index], "the shorter one", _FLAT)
                figures.append(
                    Figure(f"{kind}, {number:,} tokens", found[index], unit, limit, beside, goal, "", section)
                )
            first = first or found
    return figures
