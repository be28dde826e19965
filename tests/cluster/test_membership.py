"""The asyncio driver of the lease machine: several nodes on one store in memory, in virtual time, with faults."""

import asyncio
import random
from itertools import count

import pytest

from holdfast.cluster.lease_state_machine import Timing
from holdfast.cluster.membership import Membership
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.testing.memory_cluster import MemoryCluster, OwnedWorkspace
from holdfast.testing.seeded_loop import elapse, in_virtual_time, run_seeded

V, W = WorkspaceId("v"), WorkspaceId("w")
TIMING = Timing()


class Host:
    """The workspaces of a node: which are open, and until when tools run."""

    def __init__(self) -> None:
        self.open_epochs: dict[WorkspaceId, int] = {}
        self.tools: set[WorkspaceId] = set()
        self.deadline = 0.0
        self.kept: list[WorkspaceId] = []
        self.notifications: list[tuple[str, str]] = []
        self.drain_requests = 0

    def set_deadline(self, at: float) -> None:
        self.deadline = at

    def freeze(self) -> None:
        self.deadline = 0.0

    def open(self, workspace: WorkspaceId, epoch: int, *, may_run_tools: bool) -> None:
        self.open_epochs[workspace] = epoch
        if may_run_tools:
            self.tools.add(workspace)

    async def drop(self, workspace: WorkspaceId, epoch: int) -> None:
        self.close(workspace, epoch)

    def close(self, workspace: WorkspaceId, epoch: int) -> None:
        self.open_epochs.pop(workspace, None)
        self.tools.discard(workspace)

    def keep(self, workspace: WorkspaceId, epoch: int) -> None:
        self.kept.append(workspace)

    def handle_notification(self, channel: str, payload: str) -> None:
        self.notifications.append((channel, payload))

    def request_drain(self) -> None:
        self.drain_requests += 1


class Server:
    """One node. A server that dies keeps its row and frees its lock."""

    def __init__(self, cluster: MemoryCluster, name: str, *, place: str = "p") -> None:
        self.cluster, self.host, self.store = cluster, Host(), cluster.connect()
        numbers = count(1)
        self.membership = Membership(
            self.store,
            self.host,
            places=frozenset({place}),
            address=f"{name}.example",
            clock=asyncio.get_running_loop().time,
            new_id=lambda: f"{name}{next(numbers)}",
            timing=TIMING,
        )
        self.is_alive = True
        self.membership.start()

    @property
    def node(self) -> NodeId | None:
        return self.membership.view.node

    def acts(self, workspace: WorkspaceId) -> bool:
        """Return whether a tool may change files now. A freeze may be late by the margin."""
        now = asyncio.get_running_loop().time()
        return self.is_alive and workspace in self.host.tools and now < self.host.deadline + TIMING.margin

    async def die(self) -> None:
        self.is_alive = False
        self.store.lose_listener()
        await self.membership.stop()


async def cluster_of(nodes: int, workspaces: int = 2) -> tuple[MemoryCluster, list[Server]]:
    """Return nodes that have joined and own the workspaces."""
    cluster = MemoryCluster()
    servers = [Server(cluster, name) for name in "abc"[:nodes]]
    await elapse(1.0)
    cluster.workspaces |= {WorkspaceId(name): OwnedWorkspace() for name in "vwxyz"[:workspaces]}
    await elapse(1.0)
    return cluster, servers


def owners(servers: list[Server], workspace: WorkspaceId) -> list[Server]:
    return [server for server in servers if server.is_alive and server.acts(workspace)]


async def stop(servers: list[Server]) -> None:
    for server in servers:
        await server.membership.stop()


async def time_of_takeover(servers: list[Server], workspace: WorkspaceId) -> float:
    began = asyncio.get_running_loop().time()
    while not any(server.is_alive and workspace in server.host.open_epochs for server in servers):
        await elapse(0.05)
    return asyncio.get_running_loop().time() - began


def test_nodes_join_and_share_the_workspaces() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(3, 5)
        held = [len(server.host.open_epochs) for server in servers]
        assert sum(held) == 5
        assert max(held) <= 2
        assert not cluster.evicted
        nodes = await servers[0].store.list_nodes()
        assert [(node.address, node.listens) for node in nodes] == [(f"{name}.example", True) for name in "abc"]
        await stop(servers)

    in_virtual_time(main)


def test_a_dead_process_is_replaced_soon_and_tools_wait_for_its_lease() -> None:
    async def main() -> None:
        _, servers = await cluster_of(2, 1)
        first = next(server for server in servers if V in server.host.open_epochs)
        second = next(server for server in servers if server is not first)
        deadline = first.host.deadline
        await first.die()
        first.is_alive = True  # Its tools may still run, until the deadline.
        first.host.open_epochs.clear()
        took = await time_of_takeover([second], V)
        assert took < 2.0
        assert second.membership.takeovers == {"hint": 1, "lease": 0}
        assert V not in second.host.tools
        while V not in second.host.tools:
            await elapse(0.05)
        assert asyncio.get_running_loop().time() >= deadline + TIMING.margin
        await stop([second])

    in_virtual_time(main)


def test_a_node_that_is_cut_off_is_replaced_after_its_tools_are_frozen() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(3, 1)
        first = next(server for server in servers if V in server.host.open_epochs)
        others = [server for server in servers if server is not first]
        first.store.is_cut = True
        assert 2.0 < await time_of_takeover(others, V) < 5.0
        assert [sum(server.membership.takeovers[kind] for server in others) for kind in ("hint", "lease")] == [0, 1]
        assert not first.acts(V)
        assert len(owners(servers, V)) == 1
        before = first.node
        first.store.is_cut = False
        await elapse(3.0)
        assert first.node != before
        assert V not in first.host.open_epochs
        assert cluster.evicted == [before]
        await stop(servers)

    in_virtual_time(main)


@pytest.mark.parametrize("cuts", [True, False], ids=["stopped", "unreachable"])
def test_an_outage_of_the_database_evicts_no_node_and_freezes_tools(*, cuts: bool) -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(3)
        before = [(server.node, dict(server.host.open_epochs)) for server in servers]
        cluster.stop(cuts=cuts)
        await elapse(30.0)
        assert not any(server.acts(name) for server in servers for name in (V, W))
        cluster.is_up = True
        await elapse(1.0)
        assert [len(owners(servers, name)) for name in (V, W)] == [1, 1]
        await elapse(10.0)
        assert not cluster.evicted
        assert [(server.node, server.host.open_epochs) for server in servers] == before
        await stop(servers)

    in_virtual_time(main)


def test_a_node_finds_out_that_an_operator_drains_it() -> None:
    async def main() -> None:
        _, servers = await cluster_of(2)
        first, second = servers
        await second.store.mark_draining(NodeId(first.node or ""))
        await elapse(1.0)
        assert first.host.drain_requests > 0
        first.membership.drain()
        requests = first.host.drain_requests
        for workspace, epoch in dict(first.host.open_epochs).items():
            first.membership.end_workspace(workspace, epoch, None)
        await elapse(2.0)
        assert first.membership.left.is_set()
        assert (first.host.drain_requests, second.host.drain_requests) == (requests, 0)
        assert len(second.host.open_epochs) == 2
        await stop(servers)

    in_virtual_time(main)


def test_an_idle_workspace_is_released_and_the_next_input_claims_it() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(2, 1)
        first = next(server for server in servers if V in server.host.open_epochs)
        epoch = first.host.open_epochs[V]
        cluster.add_input(V)
        first.membership.end_workspace(V, epoch, 0)
        await elapse(0.1)
        assert first.host.kept == [V], "there is an event after 0"
        first.store.loses_reply = True
        first.membership.end_workspace(V, epoch, 1)
        await elapse(2.0)
        assert not owners(servers, V)
        assert cluster.workspaces[V].owner is None
        cluster.add_input(V)
        await elapse(0.1)
        assert len(owners(servers, V)) == 1
        await stop(servers)

    in_virtual_time(main)


def test_a_claim_whose_outcome_is_unknown_is_repeated() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(1, 0)
        store = servers[0].store
        claim = store.claim

        async def claim_once(*arguments: object) -> object:
            store.claim = claim  # type: ignore[method-assign]
            store.loses_reply = True
            return await claim(*arguments)  # type: ignore[arg-type]

        store.claim = claim_once  # type: ignore[method-assign,assignment]
        cluster.workspaces[V] = OwnedWorkspace()
        await elapse(2.0)
        assert servers[0].host.open_epochs == {V: 2}
        await stop(servers)

    in_virtual_time(main)


def test_a_refused_write_drops_the_workspace() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(1, 1)
        server = servers[0]
        server.membership.handle_fence(V, 1)
        assert not server.membership.may_run_tools(V)
        await elapse(1.0)
        assert server.host.open_epochs == {V: 2}, "it is claimed again"
        assert cluster.workspaces[V].epoch == 2
        await stop(servers)

    in_virtual_time(main)


def test_a_heartbeat_that_failed_is_repeated_before_its_next_interval() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(1, 0)
        (row,) = cluster.nodes.values()
        before = row.heartbeat
        while row.heartbeat == before:
            await elapse(0.01)
        before = row.heartbeat
        await elapse(TIMING.heartbeat * 0.9)
        cluster.stop(cuts=False)
        await elapse(TIMING.heartbeat * 0.2)
        cluster.is_up = True
        await elapse(TIMING.heartbeat * 0.5)
        assert row.heartbeat > before
        await stop(servers)

    in_virtual_time(main)


def test_a_node_joins_again_only_when_its_tools_are_gone() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(1, 1)
        server, are_gone = servers[0], asyncio.Event()
        drop = server.host.drop

        async def drop_slowly(workspace: WorkspaceId, epoch: int) -> None:
            await are_gone.wait()
            await drop(workspace, epoch)

        server.host.drop = drop_slowly  # type: ignore[method-assign]
        assert server.node is not None
        cluster.free(server.node)
        await elapse(5.0)
        assert not cluster.nodes
        assert server.host.deadline == 0.0, "they are frozen until they are killed"
        are_gone.set()
        await elapse(1.0)
        assert len(cluster.nodes) == 1
        assert server.host.tools == {V}
        await stop(servers)

    in_virtual_time(main)


def test_a_draining_node_hands_its_workspaces_over() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(2, 2)
        first, second = servers
        first.membership.drain()
        await elapse(1.0)
        assert not first.membership.left.is_set(), "its workspace has work"
        for workspace, epoch in dict(first.host.open_epochs).items():
            first.membership.end_workspace(workspace, epoch, None)
        await first.membership.left.wait()
        await elapse(1.0)
        assert second.host.tools == {V, W}
        assert list(cluster.nodes) == [second.node]
        await stop(servers)

    in_virtual_time(main)


def test_a_workspace_waits_for_a_node_of_its_place() -> None:
    async def main() -> None:
        cluster, servers = await cluster_of(2, 0)
        cluster.workspaces[V] = OwnedWorkspace(place="elsewhere")
        await elapse(5.0)
        assert not owners(servers, V)
        servers.append(Server(cluster, "d", place="elsewhere"))
        await elapse(1.0)
        assert owners(servers, V) == servers[2:]
        await stop(servers)

    in_virtual_time(main)


def test_other_notifications_are_passed_on() -> None:
    async def main() -> None:
        _, servers = await cluster_of(1, 0)
        servers[0].store.deliver("other", "text")
        assert servers[0].host.notifications == [("other", "text")]
        await stop(servers)

    in_virtual_time(main)


async def random_faults(dice: random.Random) -> None:
    """Faults of all kinds at random times; after each interval at most one node may act on a workspace."""
    cluster, servers = await cluster_of(3)
    for server in servers:
        server.store.delay = dice.choice((0.0, 0.01, 0.1))
    for _ in range(4):
        server = dice.choice(servers)
        match dice.choice(("cut", "listen", "outage", "reply", "input")):
            case "cut":
                server.store.is_cut = not server.store.is_cut
            case "listen":
                server.store.lose_listener()
            case "outage":
                cluster.stop(cuts=dice.random() < 0.5)
            case "reply":
                server.store.loses_reply = True
            case _:
                cluster.add_input(dice.choice((V, W)))
        for _ in range(dice.randrange(1, 40)):
            await elapse(0.1)
            for workspace in (V, W):
                assert len(owners(servers, workspace)) <= 1, workspace
        cluster.is_up = True
    for server in servers:
        server.store.is_cut = False
    await elapse(12.0)
    for workspace in (V, W):
        assert len(owners(servers, workspace)) == 1, workspace
    await stop(servers)


def test_random_faults_never_let_two_nodes_act() -> None:
    for seed in range(120):
        run_seeded(random_faults, seed)
