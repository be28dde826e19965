"""Trials of a cluster of real processes under load, while its nodes or its PostgreSQL fail.

Three nodes serve a few workspaces. Clients prompt, cancel and approve through all of them without a pause. Each fault
meets a run whose tool writes at that moment. After the last one, the rules of `client_log_rules.py` are checked.
Faults of nodes and of PostgreSQL are tried in separate clusters, so that an interrupted run has one explanation.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import uvloop

from cluster_processes import Forwarder, NodeProcess, forwarder, node_that_executes, poll_until, running_nodes
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from postgres_pair import PostgresPair, can_limit_volumes, postgres_pair
from postgres_server import postgres_server
from scratch import scratch_directory, session_directory
from trials.client_log_rules import NODE_FAULTS, ClientLog, Fault, FaultKind, broken_rules, seconds_of
from trials.cluster_clients import ClusterClients, Workspace, marking_prompt

__all__ = ["DISK_FAULTS", "POSTGRES_FAULTS", "Report", "try_failures", "try_many"]

POSTGRES_FAULTS: tuple[FaultKind, ...] = ("crash", "failover")
DISK_FAULTS: tuple[FaultKind, ...] = ("disk full",)
_WORKSPACES = 3
_NODES = 3
_PROMPTS_PER_SECOND = 1.5
_LONG_LINES = 1500
"""Lines of a tool that runs for a minute: no fault meets its end."""
_TAKEOVER_SECONDS = 20.0
_RETURN_SECONDS = 30.0
_FINISH_SECONDS = 45.0
_WRITE_LINES = 2
_MAX_PAUSE = 1.5
_MAX_OUTAGE = 4.0
_LARGE_PROMPT = 50_000
_BATCH = 5
"""Faults of each kind in one cluster; then the logs are checked, and another cluster is started."""


@dataclass
class Report:
    """The result of one or more trials."""

    seconds: dict[FaultKind, list[float]] = field(default_factory=dict)
    """The times of the takeovers for each kind of fault, or of the returns."""
    violations: list[str] = field(default_factory=list)
    accepted: int = 0
    events: int = 0
    writes: int = 0

    def add(self, log: ClientLog) -> None:
        """Add one trial."""
        self.violations += broken_rules(log)
        self.accepted += len(log.accepted)
        self.events += sum(map(len, log.streams.values()))
        self.writes += len(log.writes)
        for fault in log.faults:
            seconds = seconds_of(log, fault)
            self.seconds.setdefault(fault.kind, []).extend([] if seconds is None else [seconds])

    def lines(self) -> list[str]:
        """Return the figures, one line for each kind of fault, then the totals."""
        rows = [
            f"{kind}: {len(found)} tried, {min(found):.2f} to {max(found):.2f} s"
            for kind, found in self.seconds.items()
            if found
        ]
        rows.append(
            f"{self.accepted} prompts accepted, {self.events} events received, {self.writes} lines written by tools, "
            f"{len(self.violations)} violations"
        )
        return rows


async def try_failures(kinds: Sequence[FaultKind], seed: int, report: Report) -> None:
    """Start a cluster, cause these faults one after the other under load, and check what the clients saw.

    The kinds are all of nodes, or all of PostgreSQL. Raises `AssertionError` for a broken promise.
    """
    is_of_nodes = kinds[0] in NODE_FAULTS
    assert all((kind in NODE_FAULTS) == is_of_nodes for kind in kinds), "faults of nodes and PostgreSQL are tried apart"
    async with AsyncExitStack() as stack:
        faults: _NodeFaults | _DatabaseFaults
        faults = await (_NodeFaults if is_of_nodes else _DatabaseFaults).prepare(stack, kinds)
        directory = stack.enter_context(scratch_directory())
        clients = ClusterClients(faults.nodes, directory, seed, _PROMPTS_PER_SECOND)
        try:
            await clients.start(_WORKSPACES)
            for kind in kinds:
                await faults.cause(kind, clients)
            await faults.end(clients)
        finally:
            unfinished = await clients.finish(_FINISH_SECONDS)
        report.add(clients.log)
        violations = [*broken_rules(clients.log), *map(repr, clients.failures), *unfinished]
        assert not violations, "\n".join([*violations[:20], _logs(faults.nodes)])


def try_many(count: int, seed: int, print_line: Callable[[str], None]) -> bool:
    """Cause each kind of fault `count` times, and print figures. Returns whether all promises were kept."""
    report = Report()
    holds = True
    with session_directory():
        groups = [NODE_FAULTS, POSTGRES_FAULTS]
        if can_limit_volumes():
            groups.append(DISK_FAULTS)
        else:
            print_line("disk full: not tried, because this system does not let this user mount a tmpfs")
        for begin in range(0, count, _BATCH):
            for group in groups:
                kinds = group * min(_BATCH, count - begin)
                try:
                    uvloop.run(try_failures(kinds, seed + begin, report))
                except AssertionError as error:
                    holds = False
                    print_line(f"{', '.join(group)}, seed {seed + begin}:\n{error}")
            print_line("; ".join(report.lines()))
    return holds


def _logs(nodes: Sequence[NodeProcess]) -> str:
    return "\n".join(f"== {node.name}\n{node.log.read_text(errors='replace')[-4000:]}" for node in nodes)


async def _start_long_run(clients: ClusterClients) -> tuple[Workspace, str]:
    """Start a run whose tool writes all the time, in a random workspace, and return when it writes."""
    workspace, run = clients.random.choice(clients.workspaces), clients.new_run()
    await clients.send(workspace, marking_prompt(run, _LONG_LINES), run, session=2)

    async def writes() -> bool:
        return sum(write.run == run for write in workspace.marks()) >= _WRITE_LINES

    assert await poll_until(writes, _RETURN_SECONDS), f"{run} does not write\n{_logs(clients.nodes)}"
    return workspace, run


class _NodeFaults:
    """Faults of nodes, each of which reaches PostgreSQL through a forwarder of its own."""

    def __init__(self, nodes: list[NodeProcess], forwarders: list[Forwarder]) -> None:
        self.nodes = nodes
        self._forwarders = dict(zip((node.name for node in nodes), forwarders, strict=True))
        self._failed: set[str] = set()

    @classmethod
    async def prepare(cls, stack: AsyncExitStack, _: Sequence[FaultKind]) -> "_NodeFaults":
        """Start PostgreSQL, the forwarders and the nodes."""
        server = stack.enter_context(postgres_server())
        socket = server.directory / ".s.PGSQL.5432"
        forwarders = [await stack.enter_async_context(forwarder(socket)) for _ in range(_NODES)]
        dsns = [f"postgresql://postgres@127.0.0.1:{found.port}/postgres?sslmode=disable" for found in forwarders]
        return cls(await stack.enter_async_context(running_nodes(dsns)), forwarders)

    async def cause(self, kind: FaultKind, clients: ClusterClients) -> None:
        """Let the node fail that executes a run, and wait until the end of the run is received. The node is healed
        while the next one fails, so that one node remains.
        """
        await self._await_healed(1)
        workspace, run = await _start_long_run(clients)
        node = node_that_executes(self.nodes, run)
        assert node is not None, f"no node executes {run}"
        lateness = clients.lateness.seconds
        fault = Fault(kind, time.time(), node.name, workspace.name, run)
        clients.log.faults.append(fault)
        self._failed.add(node.name)
        match kind:
            case "kill":
                node.kill()
            case "pause":
                node.pause()
            case _:
                self._forwarders[node.name].cut()

        async def has_ended() -> bool:
            return run in workspace.ended

        await poll_until(has_ended, _TAKEOVER_SECONDS)
        fault.delay = clients.lateness.seconds - lateness
        clients.start_task(self._heal(fault, node, clients), "heal")

    async def _await_healed(self, remaining: int) -> None:
        """Return when so many nodes are still failed."""

        async def are_healed() -> bool:
            return len(self._failed) <= remaining

        await poll_until(are_healed, _RETURN_SECONDS)

    async def _heal(self, fault: Fault, node: NodeProcess, clients: ClusterClients) -> None:
        if fault.kind == "kill":
            node.start()
            await node.wait_ready()
        else:
            await asyncio.sleep(clients.random.uniform(0, _MAX_PAUSE))
            if fault.kind == "pause":
                node.resume()
            else:
                self._forwarders[node.name].heal()
        fault.healed_at = time.time()
        self._failed.discard(node.name)
        await clients.return_home()

    async def end(self, _: ClusterClients) -> None:
        """Wait until all nodes are healed."""
        await self._await_healed(0)


class _DatabaseFaults:
    """Faults of PostgreSQL, which has a synchronous standby."""

    def __init__(self, nodes: list[NodeProcess], pair: PostgresPair) -> None:
        self.nodes = nodes
        self._pair = pair
        self._long: tuple[Workspace, str] | None = None

    @classmethod
    async def prepare(cls, stack: AsyncExitStack, kinds: Sequence[FaultKind]) -> "_DatabaseFaults":
        """Start PostgreSQL and the nodes."""
        pair = stack.enter_context(postgres_pair(is_limited="disk full" in kinds))
        if "failover" in kinds:
            await pair.attach_standby()
        return cls(await stack.enter_async_context(running_nodes([pair.dsn()] * _NODES)), pair)

    async def cause(self, kind: FaultKind, clients: ClusterClients) -> None:
        """Let PostgreSQL fail while a run writes, and wait until each node accepts prompts again."""
        if self._long is None:
            self._long = await _start_long_run(clients)
        fault = Fault(kind, time.time())
        clients.log.faults.append(fault)
        outage = clients.random.uniform(0, _MAX_OUTAGE)
        match kind:
            case "crash":
                self._pair.primary.kill()
                await asyncio.sleep(outage)
                await self._pair.restart_primary()
            case "failover":
                await self._pair.fail_over()
            case _:
                await self._fill_disk(clients, outage / 4)
                await self._free_disk()
        fault.healed_at, lateness = time.time(), clients.lateness.seconds
        await self._return(clients, fault)
        fault.delay = clients.lateness.seconds - lateness
        if kind == "failover":
            await self._pair.attach_standby()

    async def _return(self, clients: ClusterClients, fault: Fault) -> None:
        """Prompt through each node until it accepts."""
        workspace = clients.workspaces[0]

        async def has_returned() -> bool:
            return seconds_of(clients.log, fault) is not None

        for number in range(len(self.nodes)):
            clients.start_task(clients.send_to(workspace, clients.new_run(), number), "probe")
        await poll_until(has_returned, _RETURN_SECONDS)

    async def _fill_disk(self, clients: ClusterClients, outage: float) -> None:
        """Fill the disk, and send large prompts until one is refused."""
        await asyncio.to_thread(self._pair.fill)
        workspace = clients.workspaces[0]
        async with Client(self.nodes[0].address, seconds=_RETURN_SECONDS) as client:
            while True:
                run = clients.new_run()
                text = f"words=1 {secrets.token_hex(_LARGE_PROMPT)}"
                try:
                    await client.send_prompt(workspace.id, AgentMessage(workspace.sessions[0], text, run_id=RunId(run)))
                except ServerProblem as problem:
                    if problem.status != 503:
                        raise
                    break
                clients.record_accepted(workspace, run, self.nodes[0])
        await asyncio.sleep(outage)

    async def _free_disk(self) -> None:
        self._pair.free()
        if not self._pair.primary.is_running:
            await self._pair.restart_primary()

    async def end(self, clients: ClusterClients) -> None:
        """Cancel the run that has survived all faults."""
        assert self._long is not None
        workspace, run = self._long
        assert run not in workspace.ended, "the run should have survived"
        await clients.cancel(workspace, run)
