"""The contract of the store of a cluster, in memory and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import asyncpg
import pytest

from cluster.test_membership import Host
from holdfast.cluster.lease_events import Grant, Row
from holdfast.cluster.membership import Membership
from holdfast.cluster.notifications import (
    CLIENTS_CHANNEL,
    DELTA_CHANNEL,
    EVENTS_CHANNEL,
    WANTED_CHANNEL,
    NotificationSender,
)
from holdfast.cluster.ports import ClusterStore, NodeGone
from holdfast.cluster.postgres_cluster import PostgresCluster, application_name
from holdfast.domain.errors import StorageError
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.testing.gates import until
from holdfast.testing.memory_cluster import MemoryCluster, OwnedWorkspace
from postgres_server import new_database

A, B = NodeId("a"), NodeId("b")
V, W = WorkspaceId("v"), WorkspaceId("w")
P = frozenset({"p"})


class Memory:
    """The stores of two nodes in memory."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.stores: tuple[ClusterStore, ClusterStore] = self.cluster.connect(), self.cluster.connect()

    async def add_workspace(self, name: WorkspaceId, place: str = "p") -> None:
        self.cluster.workspaces[name] = OwnedWorkspace(place)

    async def add_input(self, name: WorkspaceId) -> None:
        self.cluster.add_input(name)


class Postgres:
    """The stores of two nodes on PostgreSQL, and a connection of the test."""

    def __init__(self, pools: list[Pool]) -> None:
        self.pools = pools
        first, second = PostgresCluster(pools[0]), PostgresCluster(pools[1])
        self.stores: tuple[ClusterStore, ClusterStore] = first, second

    async def add_workspace(self, name: WorkspaceId, place: str = "p") -> None:
        statement = "INSERT INTO holdfast.workspaces (id, place, path) VALUES ($1, $2, $3)"
        await self.pools[2].write(statement, name, place, name.encode())

    async def add_input(self, name: WorkspaceId) -> None:
        await self.pools[2].write("UPDATE holdfast.workspaces SET newest = newest + 1 WHERE id = $1", name)


Subject = Memory | Postgres


@pytest.fixture
async def postgres() -> AsyncIterator[Postgres]:
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(new_database())
        pools = []
        for name in ("first", "second", "test"):
            pool = Pool({"dsn": dsn, "server_settings": {"application_name": application_name(name)}})
            await pool.open()
            stack.push_async_callback(pool.close)
            pools.append(pool)
        yield Postgres(pools)


@pytest.fixture(params=["memory", "postgres"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return Memory() if request.param == "memory" else request.getfixturevalue("postgres")


async def joined(subject: Subject) -> tuple[ClusterStore, ClusterStore]:
    first, second = subject.stores
    await first.join(A, P, "a.example")
    await second.join(B, P | {"q"}, "b.example")
    return first, second


async def test_members_are_listed(subject: Subject) -> None:
    first, second = await joined(subject)
    await first.heartbeat(A)
    await second.mark_draining(B)
    rows = (await first.observe(A)).rows
    assert rows == {A: Row(1, False, P), B: Row(0, False, P | {"q"}, is_draining=True)}
    listed = await second.list_nodes()
    assert {(item.node, item.address, item.places, item.is_draining) for item in listed} == {
        (A, "a.example", ("p",), False),
        (B, "b.example", ("p", "q"), True),
    }
    assert all(0 <= item.since < 60 for item in listed)


async def test_the_lock_is_held_by_the_listen_connection(subject: Subject) -> None:
    first, second = await joined(subject)
    lost: list[bool] = []
    connection = await first.listen(A, lambda *_: None, lambda: lost.append(True))
    assert (await second.observe(B)).rows[A].listens
    assert not (await second.observe(B)).rows[B].listens
    await connection.close()

    while (await second.observe(B)).rows[A].listens:
        pass


async def test_only_a_silent_node_is_evicted(subject: Subject) -> None:
    first, second = await joined(subject)
    await subject.add_workspace(V)
    await subject.add_workspace(W)
    assert len(await first.claim(A, (("p", 2),), frozenset())) == 2
    await first.heartbeat(A)
    assert not await second.evict(B, A, 0, by_hint=True)
    assert (await second.observe(B)).rows[A].owned == 2
    assert await second.evict(B, A, 1, by_hint=True)
    assert not await second.evict(B, A, 1, by_hint=True)
    observation = await second.observe(B)
    assert A not in observation.rows
    assert observation.wanted == {"p": 2}
    # The eviction has ended the connections of the node: the outcome of its next request is unknown.
    with suppress(StorageError, NodeGone):
        await first.heartbeat(A)
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: first.heartbeat(A),
        lambda: first.claim(A, (), frozenset()),
        lambda: first.mark_draining(A),
        # From the path of a request, with what PostgreSQL does not store in a text.
        lambda: first.mark_draining(NodeId("a\0b")),
        lambda: first.mark_draining(NodeId("a\ud800b")),
        lambda: first.evict(A, B, 0, by_hint=False),
    ]
    for request in requests:
        with pytest.raises(NodeGone):
            await request()
    assert set(await second.claim(B, (("p", 5),), frozenset())) == {Grant(V, 3, ((A, 1),)), Grant(W, 3, ((A, 1),))}
    await second.settle(V, 2)
    await second.settle(W, 3)
    assert set(await second.claim(B, (), frozenset())) == {Grant(V, 4, ((A, 1),)), Grant(W, 4)}


async def test_an_eviction_after_a_full_lease_is_not_recorded(subject: Subject) -> None:
    first, second = await joined(subject)
    await subject.add_workspace(V)
    await first.claim(A, (("p", 1),), frozenset())
    assert await second.evict(B, A, 0, by_hint=False)
    assert await second.claim(B, (("p", 1),), frozenset()) == (Grant(V, 3),)


async def test_claims_have_limits_and_places(subject: Subject) -> None:
    first, second = await joined(subject)
    for number in range(4):
        await subject.add_workspace(WorkspaceId(f"p{number}"))
    await subject.add_workspace(V, "q")
    assert (await first.observe(A)).wanted == {"p": 4, "q": 1}
    mine, others = await asyncio.gather(
        first.claim(A, (("p", 2),), frozenset()), second.claim(B, (("p", 1), ("q", 3)), frozenset())
    )
    assert len(mine) == 2
    assert len(others) == 2
    assert V in {grant.workspace for grant in others}
    assert not {grant.workspace for grant in mine} & {grant.workspace for grant in others}
    held = frozenset(grant.workspace for grant in mine)
    assert await first.claim(A, (), held) == ()
    again = await first.claim(A, (), held - {mine[0].workspace})
    assert again == (Grant(mine[0].workspace, 2),)


async def test_a_release_needs_the_newest_event(subject: Subject) -> None:
    first, second = await joined(subject)
    await subject.add_workspace(V)
    await first.claim(A, (("p", 1),), frozenset())
    await subject.add_input(V)
    assert not await first.release(A, V, 1, 0)
    assert await first.release(A, V, 0, 0), "it is not owned under this epoch"
    assert await second.release(B, V, 1, 1), "it is not owned by this node"
    assert (await first.observe(A)).rows[A].owned == 1
    assert await first.release(A, V, 1, 1)
    assert (await first.observe(A)).wanted == {}
    assert await second.claim(B, (("p", 1),), frozenset()) == ()
    await subject.add_input(V)
    assert (await first.observe(A)).wanted == {"p": 1}
    assert await second.claim(B, (("p", 1),), frozenset()) == (Grant(V, 3),)
    assert await second.release(B, V, 3, None)
    assert (await first.observe(A)).wanted == {"p": 1}


async def test_a_node_that_leaves_frees_its_workspaces(subject: Subject) -> None:
    first, second = await joined(subject)
    await subject.add_workspace(V)
    await first.claim(A, (("p", 1),), frozenset())
    await first.leave(A)
    await first.leave(A)
    observation = await second.observe(B)
    assert (list(observation.rows), observation.wanted) == ([B], {"p": 1})


# Only on PostgreSQL


async def test_an_eviction_ends_only_the_connections_of_the_dead_node(postgres: Postgres) -> None:
    first, second = await joined(postgres)
    lost = asyncio.Event()
    await first.listen(A, lambda *_: None, lost.set)
    kept = await second.listen(B, lambda *_: None, lambda: None)
    statement = (
        "SELECT pid, application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'holdfast %' AND pid <> pg_backend_pid()"
    )
    before = {(row["pid"], row["application_name"]) for row in await postgres.pools[2].fetch(statement)}
    assert await second.evict(B, A, 0, by_hint=True)
    await lost.wait()
    after = {(row["pid"], row["application_name"]) for row in await postgres.pools[2].fetch(statement)}
    others = {(pid, name) for pid, name in before if name != application_name("first")}
    assert len(others) == 2
    assert others <= after
    await kept.close()


async def test_an_operator_evicts_a_node_that_is_alive(postgres: Postgres) -> None:
    """Its tools may still run, so the next owner waits for the end of its lease. A node can evict itself."""
    first, second = await joined(postgres)
    assert isinstance(second, PostgresCluster)
    await postgres.add_workspace(V)
    assert len(await first.claim(A, (("p", 1),), frozenset())) == 1
    await first.heartbeat(A)
    assert not await second.evict_on_request(B, NodeId("none"))
    assert await second.evict_on_request(B, A)
    # Its connections end as well.
    with pytest.raises((NodeGone, StorageError)):
        await first.heartbeat(A)
    (grant,) = await second.claim(B, (("p", 1),), frozenset())
    assert grant.hinted == ((A, 1),)
    assert await second.evict_on_request(B, B)
    assert await second.list_nodes() == []


async def test_a_server_of_an_earlier_version_joins_and_is_listed(postgres: Postgres) -> None:
    """During a rolling upgrade: another server has migrated the schema."""
    await postgres.pools[0].write("SELECT holdfast.node_join($1, $2, $3)", A, ["p"], "a.example")
    first, _ = postgres.stores
    (listed,) = await first.list_nodes()
    assert (listed.node, listed.version, listed.runs, listed.clients) == (A, "", 0, 0)


async def test_an_owned_workspace_names_a_node_that_exists(postgres: Postgres) -> None:
    await postgres.add_workspace(V)
    connection = await asyncpg.connect(postgres.pools[2].options["dsn"])
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await connection.execute("UPDATE holdfast.workspaces SET owner = 'nobody'")
    await connection.close()


async def test_notifications_arrive_merged(postgres: Postgres) -> None:
    first, second = await joined(postgres)
    received: list[tuple[str, str]] = []
    connection = await second.listen(B, lambda channel, payload: received.append((channel, payload)), lambda: None)
    assert isinstance(first, PostgresCluster)
    sender = NotificationSender(first.notify, delta_seconds=0)
    for _ in range(3):
        sender.wake("v")
    sender.want("p")
    sender.add_delta("part", 0, "one ")
    sender.add_delta("part", 4, "two")
    await until(lambda: len(received) == 3)
    assert received == [(EVENTS_CHANNEL, "v"), (WANTED_CHANNEL, "p"), (DELTA_CHANNEL, '["part",0,"one two"]')]
    await sender.close()
    await connection.close()


async def test_a_node_receives_its_own_notification_only_when_it_has_to_claim(postgres: Postgres) -> None:
    first, second = await joined(postgres)
    received: dict[str, list[tuple[str, str]]] = {A: [], B: []}
    assert isinstance(first, PostgresCluster)
    # From now on it is known which connection sends.
    await first.notify([(EVENTS_CHANNEL, "before")])
    connections = []
    for store, name in ((first, A), (second, B)):
        items = received[name]
        connections.append(await store.listen(name, lambda *item, items=items: items.append(item), lambda: None))
    sent = [(EVENTS_CHANNEL, "v"), (DELTA_CHANNEL, '["part",0,"x"]'), (CLIENTS_CHANNEL, "v"), (WANTED_CHANNEL, "p")]
    await first.notify(sent)
    await until(lambda: len(received[B]) == len(sent) and (WANTED_CHANNEL, "p") in received[A])
    assert received == {A: [(WANTED_CHANNEL, "p")], B: sent}
    for connection in connections:
        await connection.close()


def member(store: ClusterStore, name: str, host: Host) -> Membership:
    new_id: Callable[[], str] = iter([f"{name}1", f"{name}2"]).__next__
    clock = asyncio.get_running_loop().time
    return Membership(store, host, places=P, address=name, clock=clock, new_id=new_id)


async def test_a_node_whose_connections_end_is_replaced(postgres: Postgres) -> None:
    """As the death of a process: its connections close, and it sends no heartbeat."""
    hosts = Host(), Host()
    members = [member(store, name, host) for store, name, host in zip(postgres.stores, "ab", hosts, strict=True)]
    members[0].start()
    await until(lambda: members[0].view.listens)
    await postgres.add_workspace(V)
    await until(lambda: V in hosts[0].tools)
    members[1].start()
    await until(lambda: len(members[1].view.peers) == 1 and members[1].view.listens)
    await until(lambda: any(peer.listened for peer in members[1].view.peers.values()))
    began = asyncio.get_running_loop().time()
    await members[0].stop()
    postgres.pools[0].terminate()
    await until(lambda: V in hosts[1].open_epochs)
    assert hosts[1].open_epochs == {V: 3}
    assert V not in hosts[1].tools
    await until(lambda: V in hosts[1].tools)
    assert asyncio.get_running_loop().time() - began > 2.0, "a full lease since the last heartbeat"
    members[1].drain()
    members[1].end_workspace(V, 3, None)
    await members[1].left.wait()
    await members[1].stop()
