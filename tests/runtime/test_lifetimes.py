"""A workspace or server that cannot be opened leaves nothing open, and closing continues when one part fails."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from holdfast.bus.bus import Subscription
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError, WorkspaceClosing
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.engine.approvals import Approvals
from holdfast.engine.run_context import RunContext
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, ScriptedModels, Step
from holdfast.runtime import server_services
from holdfast.runtime.server_services import ServerServices
from holdfast.runtime.workspace import FixedServices
from holdfast.runtime.workspace_services import WorkspaceServices
from holdfast.testing.gates import Gate, start

STEPS = ("services", "run context", "can answer", "start")


class RequestedFailure(HoldfastError):
    """The failure that a test requested."""


class BreakableServer(ServerServices):
    """Fails at the requested step, and records which services are open and which were closed."""

    def __init__(self, data_dir: Path) -> None:
        self.breaks: set[str] = set()
        self.open: list[str] = []
        self.closed: list[str] = []
        self.answers = Gate(is_open=True)
        super().__init__(data_dir)

    def fail_at(self, step: str) -> None:
        if step in self.breaks:
            raise RequestedFailure

    def workspace_services(self, record: WorkspaceRecord, *_: object) -> Any:  # noqa: ANN401 - a stand-in
        self.fail_at("services")
        self.open.append(record.path)
        model = ScriptedModel(lambda _: Step((Say("done"),)))
        settings = EngineSettings(titles=False)
        return BreakableServices(
            self, record.path, FixedServices(self.ledger, ScriptedModels(model), settings=settings)
        )

    async def close_parts(self) -> None:
        self.closed.append("server")
        await super().close_parts()
        self.fail_at("close server")


class BreakableServices:
    def __init__(self, server: BreakableServer, path: str, fixed: FixedServices) -> None:
        self.server = server
        self.path = path
        self.fixed = fixed

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.fixed, name)

    def run_context(self, record: WorkspaceRecord, approvals: Approvals) -> RunContext:
        self.server.fail_at("run context")
        return self.fixed.run_context(record, approvals)

    async def can_answer(self, _: Collection[str]) -> bool:
        await self.server.answers()
        self.server.fail_at("can answer")
        return True

    def start(self) -> None:
        self.server.fail_at("start")

    async def close(self) -> None:
        self.server.open.remove(self.path)
        self.server.closed.append(Path(self.path).name)
        self.server.fail_at(f"close {Path(self.path).name}")


class LifetimeFixture:
    """A data directory with two projects, the first of which has a waiting prompt."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.projects = [directory / "one", directory / "two"]
        for project in self.projects:
            project.mkdir()

    def server(self) -> BreakableServer:
        return BreakableServer(self.data)

    async def assert_free(self) -> None:
        """Check that the data directory is unlocked: it can be opened at once."""
        await self.server().close()


@pytest.fixture
def fixture(tmp_path: Path) -> LifetimeFixture:
    return LifetimeFixture(tmp_path)


async def test_failed_server_construction_releases_the_directory(
    fixture: LifetimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RequestedFailure

    for part in ("Guard", "ModelDiscovery", "WebClient", "PrivateGit"):
        with monkeypatch.context() as patch:
            patch.setattr(server_services, part, refuse)
            with pytest.raises(RequestedFailure):
                ServerServices(fixture.data)
        await fixture.assert_free()


@pytest.mark.parametrize("step", STEPS)
async def test_a_workspace_that_cannot_be_opened_leaves_nothing_open(fixture: LifetimeFixture, step: str) -> None:
    """The next request makes a new attempt."""
    await _leave_a_waiting_run(fixture)
    server = fixture.server()
    server.breaks = {step}
    for _ in range(2):
        with pytest.raises(RequestedFailure):
            await server.open_workspace(fixture.projects[0], unattended=True)
        assert server.open == []
    assert server.closed == ([] if step == "services" else ["one", "one"])
    server.breaks = set()
    workspace = await server.open_workspace(fixture.projects[0], unattended=True)
    assert server.open == [str(fixture.projects[0])]
    for run in workspace.recovered.requeued:
        await workspace.engine.wait_until_idle(run.session_id)
    await server.close()
    assert server.open == []
    await fixture.assert_free()


async def _leave_a_waiting_run(fixture: LifetimeFixture) -> None:
    """Leave a run that had not started when its server stopped."""
    server = fixture.server()
    workspace = await server.open_workspace(fixture.projects[0])
    session = await workspace.sessions.create()
    await workspace.inputs.submit(Prompt(session.id, "go", run_id=RunId("r1")))
    # The caller of `submit` is resumed before the task of the run, and `close` stops the lane before its first await.
    await workspace.engine.close()
    await server.close()


@pytest.mark.parametrize("fails", ["", "close one", "close two", "close server"])
async def test_all_parts_are_closed_even_if_one_fails(fixture: LifetimeFixture, fails: str) -> None:
    server = fixture.server()
    for project in fixture.projects:
        await server.open_workspace(project)
    server.breaks = {fails}
    if fails:
        with pytest.raises(RequestedFailure):
            await server.close()
    else:
        await server.close()
    assert sorted(server.closed[:2]) == ["one", "two"]
    assert server.closed[2:] == ["server"], "shared services are closed after the workspaces"
    await fixture.assert_free()


async def test_closing_does_not_wait_for_a_workspace_being_opened(fixture: LifetimeFixture) -> None:
    """Its parts are closed, and the caller that waits for it receives the reason."""
    await _leave_a_waiting_run(fixture)
    server = fixture.server()
    server.answers.shut()
    opening = start(server.open_workspace(fixture.projects[0], unattended=True))
    await server.answers.reached.wait()
    await server.close()
    assert server.closed == ["one", "server"]
    with pytest.raises(WorkspaceClosing):
        await opening
    await fixture.assert_free()


async def test_cancelled_caller_does_not_stop_the_opening(fixture: LifetimeFixture) -> None:
    await _leave_a_waiting_run(fixture)
    server = fixture.server()
    server.answers.shut()
    first = start(server.open_workspace(fixture.projects[0], unattended=True))
    await server.answers.reached.wait()
    second = start(server.open_workspace(fixture.projects[0]))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    server.answers.open()
    workspace = await second
    for run in workspace.recovered.requeued:
        await workspace.engine.wait_until_idle(run.session_id)
    assert len(server.open) == 1
    await server.close()


async def test_streams_of_a_workspace_end_even_if_its_services_cannot_be_closed(fixture: LifetimeFixture) -> None:
    server = fixture.server()
    workspace = await server.open_workspace(fixture.projects[0])
    reader = start(_read(workspace.bus.subscribe(None)))
    server.breaks = {"close one"}
    with pytest.raises(RequestedFailure):
        await server.close_workspace(workspace)
    await reader
    server.breaks = set()
    again = await server.open_workspace(fixture.projects[0])
    assert again is not workspace
    await server.close()


async def _read(stream: Subscription) -> None:
    while await stream.take():
        pass


def closable(thing: object) -> set[str]:
    """Return the names of the attributes that have to be closed."""
    names = (name for name in vars(thing) if not name.startswith("_"))
    return {name for name in names if callable(getattr(getattr(thing, name), "close", None))}


class CloseRecorder:
    """Records what was closed, and lets one close fail."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.names: list[str] = []

    def of(self, name: str) -> object:
        async def close() -> None:
            self.names.append(name)
            if name == self.fails:
                raise RequestedFailure

        return close


SERVICES = ("git_scan", "jobs", "extensions", "selected_models", "token_refresher")
"""In the order in which they are closed: no part is used after its dependencies are closed."""


@pytest.mark.parametrize("fails", ["", *SERVICES])
async def test_workspace_services_close_all_parts(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerServices(tmp_path / "data")
    record = await server.ledger.open_workspace(str(tmp_path))
    services = WorkspaceServices(server, record, {}, lambda _: None)
    assert closable(services) == {*SERVICES, "git", "ledger"}, "git and the ledger are the server's"
    closing = CloseRecorder(fails)
    for name in SERVICES:
        monkeypatch.setattr(getattr(services, name), "close", closing.of(name))
    if fails:
        with pytest.raises(RequestedFailure):
            await services.close()
    else:
        await services.close()
    assert closing.names == list(SERVICES)
    monkeypatch.undo()
    await services.close()
    await server.close()


@pytest.mark.parametrize("fails", ["", "guard", "discovery", "git"])
async def test_server_services_close_all_parts(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerServices(tmp_path / "data")
    assert closable(server) == {"guard", "discovery", "git", "ledger"}, "the ledger is closed after the others"
    closing = CloseRecorder(fails)
    for name in ("guard", "discovery"):
        monkeypatch.setattr(getattr(server, name), "close", closing.of(name))

    def close_git() -> None:
        closing.names.append("git")
        if fails == "git":
            raise RequestedFailure

    monkeypatch.setattr(server.git, "close", close_git)
    if fails:
        with pytest.raises(RequestedFailure):
            await server.close_parts()
    else:
        await server.close_parts()
    assert closing.names == ["guard", "discovery", "git"]
    monkeypatch.undo()
    await server.close()


async def test_directory_in_use_is_not_changed(fixture: LifetimeFixture) -> None:
    server = fixture.server()
    with pytest.raises(DataDirectoryBusy):
        fixture.server()
    workspace = await server.open_workspace(fixture.projects[0])
    await workspace.sessions.create()
    await server.close()
