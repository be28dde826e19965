"""Latencies of a cluster beside bare asyncpg statements: accept, delivery to other nodes, cancel, and resume."""

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.cluster_nodes import PLACE, Cluster, Node, wait, wait_until
from bench.cluster_plan import ClusterPlan, percentile, rows_of
from bench.figures import Figure, Goal
from bench.postgres import LedgerSubject
from bench.raw_client import END, STAMP, RawClient, Readers, RequestConnection, connect
from bench.servers import Provider, served
from holdfast.client.server_address import build_request

__all__ = ["measure_accept", "measure_cancel", "measure_delivery", "measure_resume", "measure_standby"]

RATE = 200
TOGETHER = 50
SESSIONS = 20
EVENTS = 10_000
_HELD = "words=2 pause=600000"
"""A response whose first token comes after ten minutes: prompts that follow wait in the queue and cost nothing."""
_INSERT = "INSERT INTO bare (body) VALUES ($1)"
_ROW = b"x" * 400
_BARE_INSERT = "one bare INSERT"
_BARE_BURST = f"{TOGETHER} bare INSERTs over five connections"


class Bare:
    """The bare statements. Each takes part in alternation with what it is the limit of."""

    def __init__(self, cluster: Cluster) -> None:
        self._database = cluster.database
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)"
        )

    def paced(self, number: int) -> list[float]:
        """Insert rows at the rate of the accepts. Return the milliseconds of each."""
        return self._database.run(self._paced(number))

    async def _paced(self, number: int) -> list[float]:
        found, due = [], time.perf_counter()
        for _ in range(number):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            # A late statement does not count for the next one: these statements have one connection.
            began = time.perf_counter()
            await self._database.connection.execute(_INSERT, _ROW)
            found.append((time.perf_counter() - began) * 1e3)
            due += 1 / RATE
        return found

    def together(self) -> list[float]:
        """Insert rows at once through five connections, each row in a statement of its own."""
        return self._database.run(self._together())

    async def _together(self) -> list[float]:
        connections = [await self._database.connect() for _ in range(5)]
        for connection in connections:
            await connection.execute(_INSERT, _ROW)
        began, found = time.perf_counter(), []

        async def insert(connection: Any) -> None:  # noqa: ANN401
            for _ in range(TOGETHER // 5):
                await connection.execute(_INSERT, _ROW)
                found.append((time.perf_counter() - began) * 1e3)

        await asyncio.gather(*map(insert, connections))
        for connection in connections:
            connection.terminate()
        return found

    def notified(self, number: int, *, with_row: bool) -> list[float]:
        """Send notifications to another connection, which reads a row after each if `with_row`."""
        return self._database.run(self._notified(number, with_row=with_row))

    async def _notified(self, number: int, *, with_row: bool) -> list[float]:
        sender, listener = await self._database.connect(), await self._database.connect()
        reader = await self._database.connect()
        arrived = asyncio.Event()
        await listener.add_listener("bare", lambda *_: arrived.set())
        found = []
        for _ in range(number):
            if with_row:
                await sender.execute(_INSERT, _ROW)
            arrived.clear()
            began = time.perf_counter()
            await sender.execute("SELECT pg_notify('bare', 'x')")
            await arrived.wait()
            if with_row:
                await reader.fetch("SELECT body FROM bare ORDER BY id DESC LIMIT 1")
            found.append((time.perf_counter() - began) * 1e3)
        for connection in (sender, listener, reader):
            connection.terminate()
        return found

    def selected(self, workspace: str) -> float:
        """Return the milliseconds of a query of the events of a workspace."""
        query = (
            "SELECT number, body FROM holdfast.events WHERE workspace = (SELECT key FROM holdfast.workspaces"
            " WHERE id = $1) AND number > $2 ORDER BY number LIMIT $3"
        )
        began = time.perf_counter()
        self._database.rows(query, workspace, 0, EVENTS)
        return (time.perf_counter() - began) * 1e3


class _Accepts:
    """Sends prompts to sessions whose active run is held, so that they only have to be accepted."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.sessions = [client.session() for _ in range(SESSIONS)]
        for session in self.sessions:
            client.post(session, _HELD)
        self._posted = 0

    def body(self, client: RawClient) -> dict[str, object]:
        """Return the next prompt."""
        self._posted += 1
        return client.prompt(self.sessions[self._posted % SESSIONS], "Say in one sentence why.")

    def clear(self) -> None:
        """Cancel the waiting runs."""
        for session in self.sessions:
            self.client.request("POST", f"agent/sessions/{session}/prompts/clear", {})

    def close(self) -> None:
        """Cancel all runs."""
        for session in self.sessions:
            self.client.send_cancel(session)
            self.client.receive()


def _paced(accepts: _Accepts, client: RawClient, number: int) -> list[float]:
    """Post prompts at a fixed rate. Return the milliseconds from the due time of each to its response."""
    idle = deque(RequestConnection(client.address) for _ in range(8))
    selector = selectors.DefaultSelector()
    began: dict[RequestConnection, float] = {}
    found: list[float] = []
    due, sent = time.perf_counter(), 0
    while len(found) < number:
        if sent < number and time.perf_counter() >= due:
            connection = idle.popleft() if idle else RequestConnection(client.address)
            connection.send("POST", f"{client.path}/agent", accepts.body(client))
            began[connection] = due
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            due, sent = due + 1 / RATE, sent + 1
        timeout = max(0.0, due - time.perf_counter()) if sent < number else 10.0
        for key, _ in selector.select(timeout):
            key.data.receive()
            found.append((time.perf_counter() - began.pop(key.data)) * 1e3)
            selector.unregister(key.fileobj)
            idle.append(key.data)
    for connection in idle:
        connection.close()
    return found


def _together(accepts: _Accepts, client: RawClient) -> list[float]:
    """Post prompts at once. Return the milliseconds until each response."""
    connections = [RequestConnection(client.address) for _ in range(TOGETHER)]
    bodies = [accepts.body(client) for _ in connections]
    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for connection, body in zip(connections, bodies, strict=True):
        connection.send("POST", f"{client.path}/agent", body)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    found: list[float] = []
    while len(found) < TOGETHER:
        for key, _ in selector.select(10.0):
            key.data.receive()
            found.append((time.perf_counter() - began) * 1e3)
            selector.unregister(key.fileobj)
    for connection in connections:
        connection.close()
    return found


def _clients(cluster: Cluster) -> Iterator[tuple[str, RawClient, _Accepts]]:
    """Yield clients of the owner and of another node, over both transports."""
    cluster.ensure(2)
    opened, owner, other = cluster.owned_workspace()
    accepts = _Accepts(opened)
    path = opened.directory
    for name, node in (("owner", owner), ("another node", other)):
        for transport, over_tcp in (("TCP", True), ("unix socket", False)):
            client = RawClient(node.server, over_tcp=over_tcp, path=path)
            yield f"{name}, {transport}", client, accepts
            accepts.clear()
            client.close()
    accepts.close()
    opened.close()


async def _without_http(dsn: str, path: str, bursts: int) -> list[float]:
    """Accept prompts at once in this process. Return the milliseconds until each is stored."""
    from holdfast.domain.store_operations import CreateSession, Write  # noqa: PLC0415 - only for the benchmark
    from holdfast.storage.postgres.open_store import open_pool  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.store_address import StoreAddress  # noqa: PLC0415
    from holdfast.testing.conformance import session  # noqa: PLC0415

    # No node claims a workspace of another place.
    ledger = PostgresLedger(await open_pool(StoreAddress(dsn), 5), "alone")
    record = await ledger.open_workspace(path)
    subject = LedgerSubject(ledger, None, record.id, record.epoch)
    await subject.commit(Write((CreateSession(session("s")),)))
    found: list[float] = []

    async def accept(began: float) -> None:
        await subject.accept()
        found.append((time.perf_counter() - began) * 1e3)

    for _ in range(bursts):
        began = time.perf_counter()
        await asyncio.gather(*(accept(began) for _ in range(TOGETHER)))
    await ledger.close()
    return found


def _on_sqlite(provider: Provider, bursts: int) -> list[float]:
    """Accept prompts at once on a server without PostgreSQL."""
    with served(settings=provider.settings) as server:
        server.wait_for_answer()
        client = RawClient(server)
        accepts = _Accepts(client)
        found: list[float] = []
        for _ in range(bursts):
            found += _together(accepts, client)
            accepts.clear()
        client.close()
    return found


def measure_accept(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Accept prompts at 200 per second, and 50 at once."""
    bare, figures = Bare(cluster), []
    alone = cluster.database.run(_without_http(cluster.postgres.dsn(), cluster.new_directory(), plan.bursts))
    limits = [value for _ in range(plan.bursts) for value in bare.together()]
    figures += rows_of(f"{TOGETHER} at once, the store without HTTP", alone, limits, _BARE_BURST, "accept", (5.0, 25.0))
    sqlite = _on_sqlite(cluster.provider, plan.bursts)
    figures += rows_of(f"{TOGETHER} at once, a server on SQLite, TCP", sqlite, limits, _BARE_BURST, "accept")
    for name, client, accepts in _clients(cluster):
        _paced(accepts, client, RATE // 4)
        steady, limits = [], []
        for _ in range(plan.rounds):
            limits += bare.paced(RATE)
            steady += _paced(accepts, client, RATE)
            accepts.clear()
        section = "accept"
        figures += rows_of(f"accept at {RATE}/s, {name}", steady, limits, _BARE_INSERT, section, (2.0, 10.0))
        bursts, limits = [], []
        for _ in range(plan.bursts):
            limits += bare.together()
            bursts += _together(accepts, client)
            accepts.clear()
        figures += rows_of(f"{TOGETHER} at once, {name}", bursts, limits, _BARE_BURST, section, (5.0, 25.0))
    return figures


def measure_standby(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Accept prompts at 200 per second while each commit waits for a synchronous standby."""
    bare, figures = Bare(cluster), []
    with cluster.synchronous_standby():
        for name, client, accepts in _clients(cluster):
            _paced(accepts, client, RATE // 4)
            steady, limits = [], []
            for _ in range(plan.rounds):
                limits += bare.paced(RATE)
                steady += _paced(accepts, client, RATE)
                accepts.clear()
            figures += rows_of(
                f"accept at {RATE}/s, {name}", steady, limits, _BARE_INSERT, "synchronous standby", (4.0, 20.0)
            )
    return figures


def _arrivals(number: int, readers: Readers, cause: Callable[[], object], mark: bytes) -> dict[Any, float]:
    """Return when each reader has received a mark that `cause` leads to."""
    readers.drain()
    missing: dict[Any, bytes] = dict.fromkeys(readers.connections, b"")
    found: dict[Any, float] = {}

    def search(connection: Any, data: bytes) -> None:  # noqa: ANN401
        missing[connection] += data
        if mark in missing[connection]:
            found.setdefault(connection, time.monotonic())

    cause()
    while len(found) < number:
        readers.read(search)
    return found


@contextmanager
def _two_readers(cluster: Cluster) -> Iterator[tuple[RawClient, RawClient, Readers, Sequence[Any]]]:
    """Yield clients of the owner and of another node, and their two streams."""
    cluster.ensure(2)
    client, owner, other = cluster.owned_workspace()
    there = RawClient(other.server, path=client.directory)
    here = RawClient(owner.server, path=client.directory)
    streams = [here.stream(), there.stream()]
    readers = Readers(streams)
    # The owner sends live events only when it has read that another node has clients.
    wait(1.5)
    yield here, there, readers, streams
    readers.close()
    for opened in (client, here, there):
        opened.close()


def measure_delivery(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Deliver stored events and live deltas to subscribers on another node: the delay after the accept, or after the
    owner's own subscriber.
    """
    bare, section = Bare(cluster), "delivery to another node"
    found: dict[str, list[float]] = {"owner": [], "other": [], "single": [], "stream": []}
    with _two_readers(cluster) as (here, there, readers, streams):
        session = here.session()
        here.post(session, _HELD)
        wait(0.2)
        for number in range(plan.deliveries):
            for key, sender, stream in (("owner", here, 1), ("other", there, 0)):
                text = f"delivered {key} {number}."
                ended: list[float] = []
                mark = text.encode()

                def post(sender: RawClient = sender, text: str = text, ended: list[float] = ended) -> None:
                    sender.post(session, text)
                    ended.append(time.monotonic())

                arrived = _arrivals(2, readers, post, mark)
                found[key].append(max(0.0, arrived[streams[stream]] - ended[0]) * 1e3)
        here.send_cancel(session)
        here.receive()
        session = here.session()
        for key, order in (("single", f"words={plan.deliveries} pause=80"), ("stream", "words=400 pause=10")):
            found[key] = _delta_delays(here, readers, streams, session, order)
    stored, beside = bare.notified(plan.deliveries, with_row=True), "bare NOTIFY, then SELECT"
    live = bare.notified(plan.deliveries, with_row=False)
    return [
        *rows_of("durable event of the owner", found["owner"], stored, beside, section, (3.0, 20.0)),
        *rows_of("durable event of another node, at the owner", found["other"], stored, beside, section, (3.0, 20.0)),
        *rows_of("live delta, one each 80 ms", found["single"], live, "bare NOTIFY", section, (2.0, 10.0)),
        *rows_of("live delta of a stream, merged for 40 ms", found["stream"], live, "bare NOTIFY", section),
    ]


def _delta_delays(client: RawClient, readers: Readers, streams: Sequence[Any], session: str, order: str) -> list[float]:
    """Return how much later each token arrives at the other node than at the owner, in milliseconds."""
    seen: dict[Any, dict[bytes, float]] = {stream: {} for stream in streams}

    def note(stream: Any, data: bytes) -> None:  # noqa: ANN401
        now = time.monotonic()
        lines = [line for line in data.split(b"\n") if b'"message_delta"' in line]
        for line in lines:
            for stamp in STAMP.findall(line):
                seen[stream].setdefault(stamp, now)

    readers.drain()
    client.post(session, order)
    readers.until_ends(received=note)
    here, there = (seen[stream] for stream in streams)
    common = set(here) & set(there)
    assert len(common) > len(here) / 2, (len(here), len(there))
    return [max(0.0, there[stamp] - here[stamp]) * 1e3 for stamp in common]


def measure_cancel(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Cancel a run on a node that does not own it: until the connection to the provider is closed."""
    bare, found, ends = Bare(cluster), [], []
    with _two_readers(cluster) as (here, there, readers, _):
        for _ in range(plan.cancels):
            session = here.session()
            here.post(session, "words=2000 pause=20 watched")
            readers.until(b'"@')
            began = time.monotonic()
            there.send_cancel(session)
            there.receive()
            found.append((cluster.provider.wait_closed() - began) * 1e3)
            readers.until(END)
            ends.append((time.monotonic() - began) * 1e3)
            # Live events that were merged meanwhile come after the end.
            wait(0.1)
            readers.drain()
    limits = bare.notified(plan.cancels, with_row=True)
    beside, section = "bare NOTIFY, then SELECT", "cancel on another node"
    return [
        *rows_of("cancel to closed connection", found, limits, beside, section, (10.0, None)),
        *rows_of("cancel to end event at both nodes", ends, limits, beside, section),
    ]


def measure_resume(cluster: Cluster, plan: ClusterPlan) -> list[Figure]:
    """Receive 10,000 stored events on a new stream."""
    cluster.ensure(2)
    bare = Bare(cluster)
    path = cluster.new_directory()
    workspace = cluster.database.run(_fill(cluster.postgres.dsn(), path))
    client = RawClient(cluster.nodes[0].server, path=path)
    wait_until(lambda: cluster.owner(workspace) is not None)
    owner = cluster.owner(workspace)
    figures = []
    for name, node in (("owner", owner), ("another node", next(node for node in cluster.nodes if node is not owner))):
        assert node is not None
        _resume(node, workspace, path)
        found, limits = [], []
        for _ in range(plan.resumes):
            limits.append(bare.selected(workspace))
            found.append(_resume(node, workspace, path))
        row = f"resume of {EVENTS:,} events, {name}"
        goal, beside = Goal(50.0), "one bare SELECT"
        value, limit = percentile(found, 50), percentile(limits, 50)
        figures.append(Figure(row, value, "ms", limit, beside, goal, "", "resume"))
    client.close()
    return figures


def _resume(node: Node, workspace: str, path: str) -> float:
    client = RawClient(node.server, path=path)
    stream = connect(node.server.tcp)
    began = time.perf_counter()
    request = build_request(node.server.tcp, "GET", f"/v1/workspaces/{workspace}/events", (("since", 0),))
    stream.sendall(request)
    left, rest = EVENTS, b""
    while left > 0:
        data = stream.recv(1 << 20)
        assert data, "the server has closed the stream"
        joined = rest + data
        left -= joined.count(b"\nid: ") + (joined.startswith(b"id: ") and not rest)
        rest = data[-4:] if not data.endswith(b"\nid: ") else b""
    took = (time.perf_counter() - began) * 1e3
    stream.close()
    client.close()
    return took


async def _fill(dsn: str, path: str) -> str:
    """Store events in a workspace that has no owner, and return its id."""
    from holdfast.domain.ids import SessionId  # noqa: PLC0415 - only for the benchmark
    from holdfast.domain.sessions import SessionPatch  # noqa: PLC0415
    from holdfast.domain.store_operations import CreateSession, PatchSession, Write  # noqa: PLC0415
    from holdfast.storage.postgres.open_store import open_pool  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.store_address import StoreAddress  # noqa: PLC0415
    from holdfast.testing.conformance import session  # noqa: PLC0415

    ledger = PostgresLedger(await open_pool(StoreAddress(dsn), 5), PLACE)
    record = await ledger.open_workspace(path)
    patch = Write((PatchSession(SessionPatch(SessionId("s"), 1)),))
    await ledger.commit(record.id, record.epoch, 1, [Write((CreateSession(session("s")),))])
    ticket = 1
    while (await ledger.bounds(record.id))[1] < EVENTS + 1:
        ticket += 1
        await ledger.commit(record.id, record.epoch, ticket, [patch] * 100)
    await ledger.close_workspace(record.id, record.epoch)
    await ledger.close()
    return str(record.id)
