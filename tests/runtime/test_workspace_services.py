"""Each dependency of a run is supplied by the services of its workspace: a table with a row for each of them."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.domain.errors import ToolError
from holdfast.domain.events import LiveEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.store_operations import Entry
from holdfast.domain.tools import Permit, SubagentTask, ToolContext
from holdfast.engine.ports import Outlet, Tools
from holdfast.engine.run_context import RunContext, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.runtime.workspace import Workspace
from holdfast.runtime.workspace_services import WorkspaceServices
from holdfast.tasks import TaskOwner
from holdfast.testing.harness import FixedModels, FixedTools
from trials.hostile_commands import new_token, survivors
from workspace.commands import line

CONFIG = """
[options]
max_steps = 7
max_agents = 3
[permissions]
deny = ["bash(rm *)"]
"""
ENVIRONMENT = {"HOME": "/nowhere", "MINE": "1", "PATH": "/bin"}


@dataclasses.dataclass
class ServicesFixture:
    """A workspace with files of its own."""

    root: Path
    server: ServerServices
    workspace: Workspace
    given: ServiceOverrides
    observed: list[str]

    @property
    def parts(self) -> RunContext:
        return self.workspace.engine.run_context

    @property
    def services(self) -> WorkspaceServices:
        assert isinstance(self.workspace.services, WorkspaceServices)
        return self.workspace.services


class SilentOutlet:
    """An outlet without subscribers."""

    def publish(self, entries: Iterable[Entry]) -> None:
        return

    def publish_live(self, event: LiveEvent) -> None:
        return


async def names(tools: Tools) -> set[str]:
    return {tool.spec.name for tool in await tools.current()}


def permit(command: str) -> Permit:
    return Permit("bash", "execute", "/", "run", {"command": command}, command)


async def ledger(fixture: ServicesFixture) -> None:
    assert fixture.parts.ledger is fixture.server.ledger


async def models(fixture: ServicesFixture) -> None:
    assert fixture.parts.models is (fixture.given.models or fixture.services.selected_models)


async def tools(fixture: ServicesFixture) -> None:
    found = await names(fixture.parts.tools)
    if fixture.given.tools is not None:
        assert found == set(), "no others"
    else:
        assert {"bash", "edit", "view", "agent", "agentic_fetch", "question", "job_kill"} <= found


async def current_settings(fixture: ServicesFixture) -> None:
    now = fixture.parts.current_settings
    assert now is not None
    found = now()
    assert (found.limits.steps, found.max_subagents, found.grace) == (7, 3, 9.0), "the files', and those of the server"
    assert now() is found, "made when they change"
    fixture.services.config_store.set(1, "options.max_steps", 8)
    fixture.services.configuration.current()
    assert now().limits.steps == 8


async def outlet(fixture: ServicesFixture) -> None:
    found = fixture.workspace.recorder.outlet
    assert (found is fixture.workspace.bus) == (fixture.given.observe is None)
    assert fixture.observed == ([] if fixture.given.observe is None else [str(fixture.root)])
    assert fixture.services.publish == found.publish_live


async def workspace(fixture: ServicesFixture) -> None:
    assert fixture.parts.workspace == fixture.workspace.id


async def path(fixture: ServicesFixture) -> None:
    assert fixture.parts.path == str(fixture.root)


async def permissions(fixture: ServicesFixture) -> None:
    assert fixture.parts.permissions is fixture.workspace.approvals


async def start_subagent(fixture: ServicesFixture) -> None:
    context = cast(ToolContext, SimpleNamespace(run_id=RunId("r")))
    with pytest.raises(ToolError, match="kind"):
        await fixture.parts.start_subagent(context, SubagentTask("look", "A sub-agent", kind="none"))


async def context_loader(fixture: ServicesFixture) -> None:
    found = fixture.parts.context_loader
    assert found is not None
    around = await found.load(SessionId("s"))
    assert around.directory == str(fixture.root)
    assert [file.text.strip() for file in around.context] == ["Be kind."]


async def subagents(fixture: ServicesFixture) -> None:
    names_found = ("task", "fetch")
    types = [fixture.parts.subagents.find(name) for name in names_found]
    found = {name: item for name, item in zip(names_found, types, strict=True) if item is not None}
    looking = {"glob", "grep", "ls", "view"}
    task, fetch = await names(found["task"].tools), await names(found["fetch"].tools)
    assert looking <= task
    assert not task & {"bash", "edit", "write", "agent", "web_fetch"}
    assert fetch == {*looking, "web_fetch"}
    assert [(subagent_type.model, subagent_type.text) for subagent_type in found.values()] == [
        ("large", "task.md"),
        ("small", "fetch.md"),
    ]


async def environment(fixture: ServicesFixture) -> None:
    assert fixture.parts.environment == ENVIRONMENT


async def cleanup(fixture: ServicesFixture) -> None:
    assert fixture.parts.cleanup == fixture.services.jobs.end_run


async def completion_error(fixture: ServicesFixture) -> None:
    assert fixture.parts.completion_error == fixture.services.jobs.fault_of


async def extensions_ready(fixture: ServicesFixture) -> None:
    assert fixture.parts.extensions_ready == fixture.services.extensions.wait_settled


async def await_tools(fixture: ServicesFixture) -> None:
    assert fixture.parts.await_tools is None, "set by a node of a cluster"


async def await_model(fixture: ServicesFixture) -> None:
    assert fixture.parts.await_model is None, "without a cluster a run without a model fails"


async def may_fall_back(fixture: ServicesFixture) -> None:
    assert fixture.parts.may_fall_back(), "without a cluster the scripted tour may answer"


async def approvals(fixture: ServicesFixture) -> None:
    approvals = fixture.workspace.approvals
    assert [approvals.judge(permit(line)).decision for line in ("rm -r x", "make all")] == ["deny", "ask"]
    assert approvals.timeout() == 86_400
    assert approvals.save_rule is not None
    saving = approvals.save_rule("bash(make)")
    assert saving is not None
    await saving
    assert fixture.services.config_store.read_scope(1)["permissions"]["allow"] == ["bash(make)"]


async def hooks(fixture: ServicesFixture) -> None:
    assert fixture.parts.hooks is fixture.services.extensions.hooks


async def rules_allow(fixture: ServicesFixture) -> None:
    found = fixture.parts.rules_allow
    rules = (("bash(make *)",), ("bash(ls)",), ())
    assert [found(rule, permit("make all")) for rule in rules] == [True, False, False]


async def named_model(fixture: ServicesFixture) -> None:
    found = fixture.parts.named_model
    if fixture.services.selected_models is None:
        assert found is None
    else:
        assert found is not None
        assert (await found("demo/tour")).info.model == "tour"


async def find_subagent_type(fixture: ServicesFixture) -> None:
    requested: list[str] = []
    subagent_type = SubagentType(FixedTools([]))
    parts = fixture.parts

    def known(kind: str, tools: Tools) -> SubagentType:
        requested.append(kind)
        task = parts.subagents.find("task")
        assert task is not None
        assert tools is not task.tools, "all there are, to choose from"
        return subagent_type

    fixture.services.extensions.agents.subagent_type = known  # type: ignore[method-assign]
    assert parts.subagents.find("agent:x") is subagent_type
    assert requested == ["agent:x"]


ROWS: Mapping[str, Callable[[ServicesFixture], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        workspace, path, ledger, models, tools, current_settings, permissions, environment, context_loader, subagents,
        start_subagent, cleanup, completion_error, extensions_ready, hooks, rules_allow, named_model,
        outlet, approvals, find_subagent_type, await_tools, await_model, may_fall_back,
    )
}  # fmt: skip


def test_every_dependency_has_a_row() -> None:
    assert set(RunContext.__struct_fields__) <= set(ROWS)


@pytest.mark.parametrize("is_given", [False, True], ids=["chosen", "given"])
async def test_each_dependency_is_supplied(tmp_path: Path, is_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "home" / ".config" / "holdfast" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    root = tmp_path / "project"
    root.mkdir()
    (root / "AGENTS.md").write_text("Be kind.\n")
    observed: list[str] = []

    def observe(path: str, _: Outlet) -> Outlet:
        observed.append(path)
        return SilentOutlet()

    given = ServiceOverrides(EngineSettings(grace=9.0))
    if is_given:
        model = ScriptedModel(lambda _: Step((Say("hello"),)))
        given = ServiceOverrides(
            EngineSettings(grace=9.0), FixedModels(model), FixedTools([]), observe, warms_guard=False
        )
    server = ServerServices(tmp_path / "data", given)
    fixture = ServicesFixture(root, server, await server.open_workspace(root, ENVIRONMENT), given, observed)
    try:
        for row in ROWS.values():
            await row(fixture)
    finally:
        await server.close()


async def test_commands_of_a_workspace_without_graces_are_killed_at_once(tmp_path: Path) -> None:
    """A command that ignores every other signal would last for its grace of an hour."""
    (root := tmp_path / "project").mkdir()
    server = ServerServices(tmp_path / "data", ServiceOverrides(EngineSettings(grace=3_600.0)))
    try:
        services = (await server.open_workspace(root, ENVIRONMENT)).services
        assert isinstance(services, WorkspaceServices)
        token = new_token()
        commands = TaskOwner()
        text = f"trap '' INT TERM; echo ready; while :; do sleep {token}; done"
        is_ready = asyncio.Event()
        commands.start(services.processes.run(line(text), on_output=lambda _: is_ready.set()), name="command")
        await is_ready.wait()
        services.skip_graces()
        commands.cancel_all()
        await commands.drain()
        assert not survivors(token)
    finally:
        await server.close()
