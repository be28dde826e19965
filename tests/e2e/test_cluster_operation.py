"""Operation of a cluster of real servers: SIGTERM drains, and operators list, drain and evict nodes."""

import json
from time import monotonic

import asyncpg
import pytest

from cli.isolated_home import isolated_home
from e2e.cluster_nodes import TIMEOUT, Cluster, NodeProcess, cluster, reached
from holdfast import __version__
from holdfast.client.errors import ServerProblem
from holdfast.cluster.ports import NodeInfo
from holdfast.domain.ids import NodeId, SessionId, WorkspaceId
from holdfast.server.routes import nodes
from holdfast.testing.gates import start


async def _state(observer: NodeProcess, node: NodeProcess) -> str:
    found = await observer.node(node.id)
    return found.state if found is not None else "gone"


@pytest.mark.parametrize("cause", ["signal", "request"])
async def test_a_drain_lets_active_runs_end_and_moves_idle_workspaces_at_once(cause: str) -> None:
    """A service manager may send its signal after a drain was requested, which must interrupt nothing."""
    async with cluster() as made:
        first = await made.add("a")
        busy, idle = [await made.open_workspace(first, name) for name in ("busy", "idle")]
        await made.prompt(first, idle, "words=2", "before")
        assert await made.outcome(first, idle, "before") == "completed"
        run = await made.gated_run(first, busy, "long")
        second = await made.add("b")
        began = monotonic()
        if cause == "signal":
            first.terminate()
        else:
            await second.client.drain_node(first.id)

        async def has_moved() -> bool:
            return (await second.nodes())[1].workspaces == 1

        await reached(has_moved)
        assert monotonic() - began < 10
        if cause == "request":
            first.terminate()
        listed = await second.node(first.id)
        assert listed is not None
        assert (listed.state, listed.workspaces, listed.runs) == ("draining", 1, 1)
        # The draining node accepts a prompt, and the other one runs it.
        await made.prompt(first, idle, "words=2", "meanwhile")
        assert await made.outcome(second, idle, "meanwhile") == "completed"
        assert first.process.returncode is None
        # A prompt behind the active run belongs to the next owner.
        await made.prompt(first, busy, "words=3", "queued", run.session)
        run.open()
        assert await made.outcome(second, busy, "long") == "completed"
        assert await made.outcome(second, busy, "queued") == "completed"
        assert await first.exit_code() == 0
        assert [node.id for node in await second.nodes()] == [second.id]
        assert "was evicted" not in second.log.read_text() + first.log.read_text()


@pytest.mark.parametrize("cause", ["limit", "second signal"])
async def test_a_run_that_outlasts_the_drain_is_interrupted_and_its_queue_continues_elsewhere(cause: str) -> None:
    """As in C-55: the end is stored, its processes are gone, and the server exits with 0."""
    limit = "1" if cause == "limit" else "600"
    async with cluster() as made:
        first = await made.add("a", "--label", "place=shared", "--drain-timeout", limit)
        workspace = await made.open_workspace(first, "w")
        run = await made.gated_run(first, workspace, "long")
        await made.prompt(first, workspace, "words=2", "queued", run.session)
        second = await made.add("b")
        first.terminate()
        if cause == "second signal":

            async def drains() -> bool:
                return await _state(second, first) == "draining"

            await reached(drains)
            began = monotonic()
            first.terminate()
            assert await first.exit_code() == 0
            assert monotonic() - began < 5
        else:
            assert await first.exit_code() == 0
        await run.process_gone()
        assert await made.outcome(second, workspace, "long") == "interrupted"
        assert await made.outcome(second, workspace, "queued") == "completed"
        assert "was evicted" not in second.log.read_text()


def _call(made: Cluster, node: NodeProcess, *arguments: str) -> tuple[int, str, str]:
    done = made.home.call("nodes", *arguments, "--data-dir", str(node.data))
    return done.returncode, done.stdout, done.stderr


async def test_an_operator_lists_drains_and_evicts_any_node_from_any_other() -> None:
    async with cluster() as made:
        first = await made.add("a")
        workspace = await made.open_workspace(first, "w")
        run = await made.gated_run(first, workspace, "long")
        await made.prompt(first, workspace, "words=2", "queued", run.session)
        second = await made.add("b")

        # A table for people, and JSON.
        code, shown, _ = _call(made, second)
        lines = [line.split() for line in shown.splitlines()]
        assert code == 0
        assert lines[0] == ["NODE", "STATE", "UP", "PLACE", "WORKSPACES", "RUNS", "CLIENTS", "VERSION", "ADDRESS"]
        assert [line[:2] for line in lines[1:]] == [[first.id[:8], "ready"], [f"{second.id[:8]}*", "ready"]]
        assert [line[-6:-1] for line in lines[1:]] == [
            ["shared", "1", "1", "1", __version__],
            ["shared", "0", "0", "0", __version__],
        ]
        listed = json.loads(_call(made, first, "--json")[1])
        assert [node["is_self"] for node in listed["nodes"]] == [True, False]
        rows = await made.fetch("SELECT id, address FROM holdfast.nodes ORDER BY joined")
        assert [(node["id"], node["address"]) for node in listed["nodes"]] == [tuple(row) for row in rows]
        assert all(0 < node["uptime"] < 60 for node in listed["nodes"])

        # Unknown and ambiguous ids change nothing.
        for arguments in (["drain", "f" * 32], ["evict", "--yes", "nobody"]):
            code, shown, problem = _call(made, second, *arguments)
            assert (code, shown) == (4, "")
            assert problem == f"holdfast: There is no node {arguments[-1]}: holdfast nodes lists them.\n"
        with pytest.raises(ServerProblem, match="There is no node"):
            await second.client.drain_node("f" * 32)
        with pytest.raises(ServerProblem, match="There is no node"):
            await second.client.evict_node("f" * 32)
        assert "confirmation" in _call(made, second, "evict", first.id[:8])[2]
        assert await _state(second, first) == "ready"

        # The evicted node is alive: it kills its tools and joins again; the other one ends the run and continues.
        before = first.id
        assert _call(made, second, "evict", "--yes", first.id[:8])[0] == 0
        assert await made.outcome(second, workspace, "long") == "interrupted"
        assert await made.outcome(second, workspace, "queued") == "completed"

        async def has_rejoined() -> bool:
            first.id = next((node.id for node in await second.nodes() if node.id != second.id), "")
            return first.id not in ("", before)

        await reached(has_rejoined)
        await run.process_gone()
        assert first.process.returncode is None
        assert await made.outcome(first, workspace, "queued") == "completed"
        assert f"evict of node {before} was requested over the unix socket" in second.log.read_text()

        # A drain is requested at one node and carried out by another one, which exits.
        code, shown, _ = _call(made, first, "drain", second.id[:8])
        assert (code, shown.split(":")[0]) == (0, f"Node {second.id[:8]} drains, with 0 active runs")
        assert await second.exit_code() == 0
        assert [node.id for node in await first.nodes()] == [first.id]
        assert f"drain of node {second.id} was requested over the unix socket" in first.log.read_text()
        assert _call(made, first, "drain")[0] == 0
        assert await first.exit_code() == 0
        assert _call(made, first)[0] == 4
        assert await made.fetch("SELECT id FROM holdfast.nodes") == []
        assert "was evicted:" not in second.log.read_text() + first.log.read_text()


@pytest.mark.parametrize(
    ("listens", "is_draining", "state"),
    [(True, False, "ready"), (True, True, "draining"), (False, False, "silent"), (False, True, "silent")],
)
def test_the_state_of_a_node(*, listens: bool, is_draining: bool, state: str) -> None:
    """A node that has died is silent until it is evicted."""
    node = NodeInfo(NodeId("n"), "", ("p",), 1.0, 0, is_draining, listens)
    body = nodes._body(node, NodeId("m"))
    assert (body.state, body.is_self) == (state, False)


def test_a_server_on_sqlite_is_the_only_node() -> None:
    with isolated_home() as home:
        home.serve()
        done = home.call("nodes")
        assert (done.returncode, done.stdout) == (0, "")
        assert "This server stores in SQLite: it is the only node." in done.stderr
        assert json.loads(home.stdout_of("nodes", "--json")) == {"is_cluster": False, "nodes": []}
        for arguments in (["drain"], ["drain", "abcd"], ["evict", "--yes", "abcd"]):
            done = home.call("nodes", *arguments)
            assert done.returncode == 4
            assert "it is the only node. Stop it with holdfast server stop." in done.stderr


BRIEF = """
import functools, sys
import holdfast.server.serve as module
from holdfast.cli.serve import serve_fast
from holdfast.server.workspace_manager import GracePeriods

# An idle server waits for a minute.
module.ServerOptions = functools.partial(module.ServerOptions, graces=GracePeriods(create=1.0, detach=0.1, linger=4.0))
sys.exit(serve_fast(sys.argv[1:]))
"""


async def test_a_server_that_a_command_starts_joins_with_its_own_place_and_leaves_when_it_is_idle() -> None:
    async with cluster() as made:
        permanent = await made.add("a")
        idle = await made.add("b", "--started-by-client", code=BRIEF)
        workspace = await made.open_workspace(idle, "w")
        await made.prompt(idle, workspace, "words=2", "r")
        assert await made.outcome(idle, workspace, "r") == "completed"
        await idle.client.retire_client()
        assert await idle.exit_code() == 0
        assert [node.id for node in await permanent.nodes()] == [permanent.id]

        # The address is in the settings; a command that finds no server starts one.
        del made.home.environment["HOLDFAST_STORE"]
        with made.home.settings.open("a") as settings:
            settings.write(f'\n[storage]\nurl = "{made.dsn}"\n')
        assert made.home.stdout_of("run", "words=2") == "word1 word2"
        listed = (await permanent.nodes())[1]
        assert (len(listed.places), len(listed.places[0]), listed.workspaces) == (1, 32, 1)
        assert made.home.stdout_of("nodes").count("own disk") == 1
        made.home.stdout_of("server", "stop")
        assert [node.id for node in await permanent.nodes()] == [permanent.id]
        rows = await made.fetch("SELECT id FROM holdfast.workspaces WHERE owner IS NOT NULL")
        assert rows == []
        assert "was evicted" not in permanent.log.read_text()


async def _metrics(node: NodeProcess) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in (await node.client.metrics()).splitlines() if not line.startswith("#"))
    return {name.removeprefix("holdfast_"): float(value) for name, value in lines}


async def _metric_reached(node: NodeProcess, name: str, value: float) -> None:
    async def is_reached() -> bool:
        return (await _metrics(node))[name] >= value

    await reached(is_reached)


async def _reached_by_inputs(
    source: NodeProcess, target: NodeProcess, lags: float, workspace: WorkspaceId, session: SessionId
) -> None:
    """Send inputs to one node until a notification about one wakes the other. A poll may read an input first, and the
    owner does not know at once that the other node has clients.
    """

    async def is_woken() -> bool:
        await source.client.put_session(workspace, session, "title")
        return (await _metrics(target))["cluster_wakeup_seconds_count"] > lags

    await reached(is_woken)


async def test_each_metric_of_a_cluster_moves_with_its_cause() -> None:
    async with cluster() as made:
        with made.home.settings.open("a") as settings:
            settings.write("[options]\nmetrics = true\n")
        first = await made.add("a")
        workspace = await made.open_workspace(first, "w")
        run = await made.gated_run(first, workspace, "long")
        second = await made.add("b")
        for node in (first, second):
            await _metric_reached(node, "cluster_nodes", 2)
        before = [await _metrics(node) for node in (first, second)]
        assert [values["cluster_workspaces_owned"] for values in before] == [1, 0]
        assert all(
            values[name] == 0
            for values in before
            for name in (
                "cluster_draining",
                "cluster_fenced_writes_total",
                'cluster_takeovers_total{kind="hint"}',
                'cluster_takeovers_total{kind="lease"}',
                'postgres_calls_waiting{pool="store"}',
            )
        )

        # An input at the other node wakes the owner, and an event of the owner wakes a node with clients.
        lags = [values["cluster_wakeup_seconds_count"] for values in before]
        await made.prompt(second, workspace, "words=2", "queued", run.session)
        await _reached_by_inputs(second, first, lags[0], workspace, run.session)
        await made.open_workspace(second, "w")
        await _reached_by_inputs(first, second, lags[1], workspace, run.session)
        values = await _metrics(second)
        assert values['cluster_wakeup_seconds_bucket{le="+Inf"}'] == values["cluster_wakeup_seconds_count"]
        assert 0 < values["cluster_wakeup_seconds_sum"] < TIMEOUT

        # A statement that waits keeps its connection; further ones wait for one.
        connection = await asyncpg.connect(made.dsn)
        async with connection.transaction():
            await connection.execute("LOCK TABLE holdfast.sessions IN ACCESS EXCLUSIVE MODE")
            requests = [start(second.client.list_sessions(workspace)) for _ in range(7)]
            await _metric_reached(second, 'postgres_connections{pool="store",state="in_use"}', 5)
            await _metric_reached(second, 'postgres_calls_waiting{pool="store"}', 2)
        await connection.close()
        for request in requests:
            await request
        await _metric_reached(second, 'postgres_connections{pool="store",state="idle"}', 1)

        # Another owner: the next write of the first one is refused.
        await made.fetch("UPDATE holdfast.workspaces SET epoch = epoch + 1")
        run.open()
        await _metric_reached(first, "cluster_fenced_writes_total", 1)
        assert await made.outcome(second, workspace, "queued") == "completed"

        # A drain, then a death.
        again = await made.gated_run(first, workspace, "again")
        owner, other = (first, second) if (await _metrics(first))["cluster_workspaces_owned"] else (second, first)
        owner.terminate()
        await _metric_reached(owner, "cluster_draining", 1)
        owner.process.kill()
        await _metric_reached(other, 'cluster_takeovers_total{kind="hint"}', 1)
        await _metric_reached(other, "cluster_workspaces_owned", 1)
        assert await made.outcome(other, workspace, "again") == "interrupted"
        await again.process_gone()
