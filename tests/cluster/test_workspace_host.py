"""The workspaces of a node: real hosts and workspace managers of several servers, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cluster.host_world import HostNode, HostWorld
from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnavailable
from holdfast.domain.ids import NodeId, RunId, WorkspaceId
from holdfast.domain.runs import Prompt, Run
from holdfast.domain.store_operations import EndRun
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.runtime.workspace import Workspace
from holdfast.runtime.workspace_host import WorkspaceHost
from holdfast.server.presence import Attach, Claim, ClientId, Detach, Presence
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.testing.gates import SimpleTool
from holdfast.testing.seeded_loop import SeededLoop, elapse, in_virtual_time

W = WorkspaceId("workspace-1")


def failures() -> list[str]:
    """Return the errors that were only reported to the loop, which are expected then."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SeededLoop)
    found = [str(context["message"]) for context in loop.failures]
    loop.failures.clear()
    return found


async def world_of(*names: str, tool: SimpleTool | None = None) -> tuple[HostWorld, list[HostNode]]:
    """Return servers that have joined. With a tool each run calls it once."""
    world = HostWorld()
    if tool is not None:
        world.tools = [tool]
        world.model = ScriptedModel(
            lambda request: Step(
                (Say("words"),) if any(m.role == "tool" for m in request.messages[-1:]) else (Call(tool.spec.name),)
            )
        )
    nodes = [world.add(name) for name in names]
    await elapse(1.0)
    return world, nodes


async def prompt(handle: WorkspaceHandle, run_id: str = "r") -> Run:
    """Send a prompt in a new session."""
    session = await handle.workspace.sessions.create()
    return await handle.workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId(run_id)))


async def run_of(world: HostWorld, run_id: str = "r") -> Run:
    record = await world.ledger.run(W, RunId(run_id))
    assert record is not None
    return record.run


async def reach(condition: Callable[[], object], seconds: float = 10.0) -> float:
    """Let time pass until a condition holds. Return how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() < began + seconds, "it never happened"
        await elapse(0.05)
    return loop.time() - began


def attach(node: HostNode, handle: WorkspaceHandle, client: str) -> None:
    """Begin a stream of a client."""
    node.manager.apply(Attach(handle.id, ClientId(client)))
    handle.client_attached()


def detach(node: HostNode, handle: WorkspaceHandle, client: str) -> None:
    """End a stream of a client."""
    handle.client_detached()
    node.manager.apply(Detach(handle.id, ClientId(client)))


def kill(node: HostNode) -> None:
    """Let a server vanish as after SIGKILL: nothing of it reaches the database, and its lock is free."""
    node.cut()
    node.store.lose_listener()


def is_empty(node: HostNode) -> bool:
    """Return whether nothing of the workspace is left on a node."""
    return (
        node.node_of(W) is None
        and not node.manager.handles
        and not node.manager.presence.workspaces
        and all(services.is_closed for services in node.services)
    )


def gated(world_ready: asyncio.Event) -> SimpleTool:
    async def wait(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await world_ready.wait()
        return ToolOutcome("done")

    return SimpleTool("wait", wait)


def run(main: Coroutine[None, None, None]) -> None:
    in_virtual_time(lambda: main)


def test_an_idle_workspace_is_released_and_leaves_nothing_behind() -> None:
    """Ownership 6: idle workspaces are released; the first prompt claims, at any node."""

    async def main() -> None:
        world, (a, b) = await world_of("A", "B")
        handle = await a.create()
        assert handle.is_local
        assert world.state(W).clients == {NodeId("A-node-1"): {"": 1}}
        await elapse(5.0)
        assert world.cluster.workspaces[W].owner is None
        assert not world.cluster.workspaces[W].wanted
        assert is_empty(a)
        assert not world.state(W).clients
        handle = await b.create()
        assert a.owns(W) or b.owns(W)
        await prompt(handle)
        await elapse(5.0)
        assert (await run_of(world)).outcome == "completed"
        assert is_empty(b)
        await world.close()

    run(main())


@pytest.mark.parametrize("seconds", [3.0, 12.0])
def test_a_client_does_not_wait_for_a_poll_until_its_workspace_has_an_owner(seconds: float, tmp_path: Path) -> None:
    """Neither when the workspace is new, nor when it is opened again after clients have left it."""

    async def main() -> None:
        world, (a, b) = await world_of("A", "B")
        directories = [tmp_path / str(number) for number in range(8)]
        for directory in directories:
            directory.mkdir()
        for node in (a, b, b, a):
            owners = set[bool]()
            for directory in directories:
                client = world.new_client()
                began = asyncio.get_running_loop().time()
                handle = await node.create(str(directory), client=client)
                assert asyncio.get_running_loop().time() - began < 0.2
                assert handle.node is not None
                assert handle.node.owner is not None or handle.is_local
                owners.add(handle.is_local)
                attach(node, handle, client)
                detach(node, handle, client)
            assert owners == {True, False}
            await elapse(seconds)
        await world.close()

    run(main())


def test_a_workspace_with_clients_of_another_node_is_not_released() -> None:
    async def main() -> None:
        world, (a, b) = await world_of("A", "B")
        first, client = await a.create(), world.new_client()
        second = await b.create(client=client)
        assert (first.is_local, second.is_local) == (True, False)
        attach(b, second, client)
        await elapse(10.0)
        assert a.owns(W)
        detach(b, second, client)
        await elapse(5.0)
        assert world.cluster.workspaces[W].owner is None
        assert is_empty(a)
        assert is_empty(b)
        await world.close()

    run(main())


def test_a_workspace_that_cannot_be_opened_is_not_kept_for_its_client() -> None:
    async def main() -> None:
        world, (a, _b) = await world_of("A", "B")
        record = await world.ledger.join_workspace("/")
        a.fault = OSError("no descriptor is free")
        a.cut()
        with pytest.raises(StorageUnavailable):
            await a.start(a.host.use(record, {}))
        a.heal()
        await elapse(8.0)
        assert is_empty(a)
        assert not world.state(W).clients
        assert world.cluster.workspaces[W].owner is None
        await world.close()
        failures()

    run(main())


def test_a_workspace_whose_client_leaves_before_it_has_an_owner_is_not_kept() -> None:
    async def main() -> None:
        world, (a,) = await world_of("A")
        record = await world.ledger.join_workspace("/")
        a.host.membership.drain()
        using = a.start(a.host.use(record, {}))
        await reach(lambda: (node := a.node_of(W)) is not None and node.opened is not None)
        using.cancel()
        await elapse(3.0)
        assert using.cancelled()
        assert is_empty(a)
        await world.close()

    run(main())


def test_an_unexpected_error_while_a_workspace_is_opened_does_not_last() -> None:
    async def main() -> None:
        world, (a,) = await world_of("A")
        a.fault = OSError("no descriptor is free")
        record = await world.ledger.join_workspace("/")
        using = a.start(a.host.use(record, {}))
        await elapse(1.0)
        assert failures() == [f"workspace {W} could not be opened or closed"]
        with pytest.raises(StorageUnavailable):
            await using
        assert (await a.create()).is_local
        await world.close()
        # No task is left that nothing stops.
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_a_refused_epoch_does_not_end_a_later_ownership() -> None:
    async def main() -> None:
        world, (a,) = await world_of("A")
        own, fences = a.ledger.own_workspace, list[int]()  # type: ignore[attr-defined]

        async def refuse(*_: object) -> None:
            a.ledger.own_workspace = own  # type: ignore[attr-defined]
            node = a.node_of(W)
            assert node is not None
            node._calls = replace(node._calls, handle_fence=lambda _, epoch: fences.append(epoch))
            node.grant = 2
            world.cluster.workspaces[W].epoch = 2
            raise OwnerChanged

        a.ledger.own_workspace = refuse  # type: ignore[attr-defined]
        await a.create()
        await reach(lambda: fences)
        assert fences == [1]
        await reach(lambda: a.owns(W))
        await world.close()

    run(main())


def test_a_run_that_starts_at_the_moment_of_a_release_is_not_interrupted() -> None:
    async def main() -> None:
        ready = asyncio.Event()
        world, (a,) = await world_of("A", tool=gated(ready))
        handle = await a.create()
        await prompt(handle)
        await reach(handle.owned.is_busy)
        await elapse(0.3)
        kept = await a.start(a.host.release(W))
        assert kept is a.node_of(W)
        assert a.owns(W)
        ready.set()
        await elapse(1.0)
        assert (await run_of(world)).outcome == "completed"
        await world.close()

    run(main())


def test_a_workspace_is_released_only_when_the_end_of_its_last_run_is_stored() -> None:
    async def main() -> None:
        ready = asyncio.Event()
        world, (a,) = await world_of("A", tool=gated(ready))
        await prompt(await a.create())
        await elapse(3.0)
        commit = a.ledger.commit  # type: ignore[attr-defined]

        async def commit_slowly(*batch: Any) -> object:  # noqa: ANN401
            if any(isinstance(item, EndRun) for write in batch[3] for item in write.operations):
                await elapse(0.5)
            return await commit(*batch)

        a.ledger.commit = commit_slowly  # type: ignore[attr-defined]
        ready.set()
        await elapse(4.0)
        assert world.cluster.workspaces[W].owner is None
        assert (await run_of(world)).outcome == "completed"
        await world.close()

    run(main())


def test_a_release_that_an_input_of_another_node_forestalls_keeps_the_workspace() -> None:
    async def main() -> None:
        world, (a, b) = await world_of("A", "B")
        handle = await a.create()
        remote = await b.create()
        session = await remote.workspace.sessions.create()
        await elapse(0.5)
        world.loses_notification = lambda: True
        await remote.workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId("r")))
        owned = handle.owned
        assert owned.newest < world.cluster.workspaces[W].newest
        kept = await a.start(a.host.release(W))
        assert kept is not None
        assert world.cluster.workspaces[W].epoch == 1
        await elapse(1.0)
        assert (await run_of(world)).outcome == "completed"
        await world.close()

    run(main())


def test_a_dead_node_is_replaced_by_hint_and_tools_wait_for_its_lease() -> None:
    """Ownership 2, 3, 5: the successor recovers at once, but its tools and services start after the lease."""

    async def main() -> None:
        acted: list[float] = []

        async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            acted.append(asyncio.get_running_loop().time())
            await elapse(100.0)
            return ToolOutcome("done")

        world, (a, b) = await world_of("A", "B", tool=SimpleTool("work", act))
        await a.create()
        client = world.new_client()
        remote = await b.create(client=client)
        attach(b, remote, client)
        await prompt(remote, "first")
        await reach(lambda: len(acted) == 1)
        kill(a)
        deadline = a.deadline
        await prompt(remote, "second")
        assert await reach(lambda: b.owns(W)) < 2.0
        assert (await run_of(world, "first")).outcome == "interrupted"
        assert [services.is_started for services in b.services] == [False], "services may run programs"
        assert len(acted) == 1
        await reach(lambda: len(acted) == 2)
        assert acted[1] >= deadline
        assert [services.is_started for services in b.services] == [True]
        assert [services.is_closed for services in b.services] == [False], "the services of the follower are used"
        world.nodes.remove(a)
        a.heal()
        await a.close()
        await world.close()

    run(main())


def test_a_node_that_was_declared_dead_drops_all_and_joins_again_with_its_clients() -> None:
    """Ownership 1: the new id follows only when all tools are gone, and the clients are counted again."""

    async def main() -> None:
        world, (a,) = await world_of("A")
        world.close_seconds = 3.0
        client = world.new_client()
        handle = await a.create(client=client)
        attach(a, handle, client)
        first = handle.owned
        world.evict_owner(W)
        await reach(lambda: a.host.membership.view.node is None)
        await reach(lambda: first.engine.closing)
        began = asyncio.get_running_loop().time()
        assert a.deadline <= began, "tools are frozen"
        await reach(lambda: a.host.membership.view.node == "A-node-2")
        assert a.services[0].skips_graces, "frozen processes do not react to other signals than SIGKILL"
        assert asyncio.get_running_loop().time() >= began + 2.5
        await reach(lambda: a.owns(W))
        assert world.state(W).clients == {NodeId("A-node-2"): {"": 1}}
        assert handle.workspace is not first
        assert handle.owned.approvals._readers == 1
        detach(a, handle, client)
        await elapse(12.0)
        assert is_empty(a)
        await world.close()

    run(main())


def test_requests_for_approval_wait_while_clients_of_any_node_are_attached() -> None:
    async def main() -> None:
        async def ask(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            await context.permit(Permit("bash", "execute", "/", "run", {"command": "make"}, "make"))
            return ToolOutcome("allowed")

        world, (a, b) = await world_of("A", "B", tool=SimpleTool("ask", ask))
        handle, client = await a.create(), world.new_client()
        remote = await b.create(client=client)
        attach(b, remote, client)
        await elapse(1.5)
        session = await remote.workspace.sessions.create()
        await remote.workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId("r"), interactive=True))
        await reach(lambda: handle.owned.approvals.permissions)
        await elapse(100.0)
        assert handle.owned.approvals.permissions, "the client at the other node may still answer"
        detach(b, remote, client)
        await elapse(100.0)
        assert (await run_of(world)).outcome == "completed", "the request was denied after its time"
        await world.close()

    run(main())


def test_a_failed_recovery_stops_the_runs_that_it_has_started() -> None:
    async def main() -> None:
        world, (a, _b) = await world_of("A", "B")
        opened: list[Workspace] = []
        recover = Workspace.recover

        async def recover_once(workspace: Workspace, **options: bool) -> None:
            await recover(workspace, **options)
            opened.append(workspace)
            if len(opened) == 1:
                raise StorageUnavailable

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workspace, "recover", recover_once)
            handle = await a.create()
            await reach(lambda: handle.is_local)
        assert [workspace.engine.closing for workspace in opened] == [True, False]
        await world.close()

    run(main())


@pytest.mark.parametrize("seconds", [600.0, 0.0])
def test_a_drain_lets_active_runs_end_and_the_next_owner_continues(seconds: float) -> None:
    """Ownership 6: a draining node claims nothing, and prompts that it accepts are left to the next owner."""

    async def main() -> None:
        ready = asyncio.Event()
        world, (a, b) = await world_of("A", "B", tool=gated(ready))
        handle, client = await a.create(), world.new_client()
        attach(a, handle, client)
        await prompt(handle, "first")
        await reach(handle.owned.is_busy)
        release = a.store.release

        async def release_slowly(*request: Any) -> bool:  # noqa: ANN401
            await elapse(1.0)
            return await release(*request)

        a.store.release = release_slowly  # type: ignore[method-assign,assignment]
        a.call(lambda: a.manager.drain(seconds))
        await elapse(0.05)
        if seconds:
            await prompt(handle, "second")
            assert (await run_of(world, "second")).started_at == 0
            ready.set()
        await reach(lambda: not a.owns(W))
        assert handle.workspace is not None
        a.node_of(W).update()  # type: ignore[union-attr]
        await elapse(0.3)
        assert not a.owns(W), "it was given up"
        assert (await run_of(world, "first")).outcome == ("completed" if seconds else "interrupted")
        await reach(a.manager.stopping.is_set)
        assert list(world.cluster.nodes) == ["B-node-1"]
        if seconds:
            # The workspace has unfinished work, so it is claimed without a client.
            await reach(lambda: any(services.is_started for services in b.services))
            await elapse(2.0)
            assert (await run_of(world, "second")).outcome == "completed"
        ready.set()
        await world.close()

    run(main())


def test_a_drain_does_not_wait_for_a_workspace_that_was_taken_over() -> None:
    async def main() -> None:
        world, (a, _b) = await world_of("A", "B", tool=gated(asyncio.Event()))
        handle = await a.create()
        await prompt(handle)
        await reach(handle.owned.is_busy)
        a.call(lambda: a.manager.drain(600.0))
        await elapse(0.5)
        world.evict_owner(W)
        assert await reach(a.manager.stopping.is_set, 60.0) < 10.0
        assert world.cluster.workspaces[W].epoch < 10, "nodes claimed and released it in turn"
        await world.close()

    run(main())


def test_a_host_that_was_never_started_can_be_stopped() -> None:
    """The server may fail to start after it has connected."""

    async def main() -> None:
        world, (a,) = await world_of("A")
        closed: list[bool] = []

        async def close() -> None:
            closed.append(True)

        host = WorkspaceHost(a.host._server, a.host.ledger, a.host.cluster, on_stop=close)
        await host.stop()
        assert closed
        await world.close()

    run(main())


def test_polls_continue_after_errors_and_reads_that_never_end() -> None:
    async def main() -> None:
        world, (a,) = await world_of("A")
        await a.create()
        states = a.store.workspace_states

        async def never(*_: object) -> object:
            return await asyncio.get_running_loop().create_future()

        async def wrong(*_: object) -> object:
            raise ValueError("unexpected")

        for fault, expected in ((never, 0), (wrong, 1)):
            a.store.workspace_states = fault  # type: ignore[method-assign,assignment]
            await elapse(1.5)
            a.store.workspace_states = states  # type: ignore[method-assign]
            await elapse(6.0)
            assert len(failures()) >= expected
            assert is_empty(a), "it was released after the fault"
            await a.create()
        await world.close()

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_a_workspace_that_is_needed_again_while_it_closes_is_found_by_its_id(*, fails: bool) -> None:
    """It may be of another place, where the same path is another directory."""

    async def main() -> None:
        world, (a,) = await world_of("A")
        handle, client = await a.create(), world.new_client()
        manager, joined = a.manager, list[str]()

        async def join(path: str) -> None:
            joined.append(path)

        a.ledger.join_workspace = join  # type: ignore[attr-defined]
        await elapse(0.9)
        a.store.delay = 0.3
        await reach(lambda: manager._closing)
        if fails:
            a.fault = OSError("no descriptor is free")
        manager.presence = _claimed(manager.presence, handle.id, client)
        await reach(lambda: not manager._closing)
        await elapse(7.0)
        assert not joined
        found = manager.presence.workspaces.get(W)
        assert found is None or found.phase == "open", "clients can open it"
        assert bool(found) is not fails
        a.store.delay = 0.0
        await world.close()
        failures()

    run(main())


def _claimed(presence: Presence, workspace: WorkspaceId, client: str) -> Presence:
    """Return the presence with a claim of a client, as a create during the close leaves it."""
    here = presence.workspaces[workspace]
    claims = {ClientId(client): Claim(hold="create", generation=999)}
    return replace(presence, workspaces={**presence.workspaces, workspace: replace(here, claims=claims)})


def test_a_request_that_is_under_way_when_a_workspace_is_dropped_gets_an_error() -> None:
    async def main() -> None:
        world, (a, _b) = await world_of("A", "B")
        handle = await a.create()
        session = await handle.workspace.sessions.create()
        commit = a.ledger.commit  # type: ignore[attr-defined]

        async def hang(*_: object) -> object:
            return await asyncio.get_running_loop().create_future()

        a.ledger.commit = hang  # type: ignore[attr-defined]
        request = a.start(handle.workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId("r"))))
        await elapse(0.1)
        world.evict_owner(W)
        await reach(request.done)
        assert isinstance(request.exception(), StorageError)
        a.ledger.commit = commit  # type: ignore[attr-defined]
        await world.close()

    run(main())
