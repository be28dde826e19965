"""Each dependency of a run is supplied by the services of its workspace: a table with a row for each of them."""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.domain.errors import ToolError
from holdfast.domain.events import LiveEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import Entry
from holdfast.domain.tools import Permit, SubagentTask, ToolContext
from holdfast.engine.ports import Outlet, Tools
from holdfast.engine.run_context import RunContext, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.runtime.workspace import Workspace
from holdfast.runtime.workspace_services import WorkspaceServices
from holdfast.testing.harness import FixedModels, FixedTools

CONFIG = """
[options]
max_steps = 7
max_agents = 3
[permissions]
deny = ["bash(rm *)"]
"""
ENVIRONMENT = {"HOME": "/nowhere", "MINE": "1", "PATH": "/bin"}


@dataclasses.dataclass
class Place:
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


class Silent:
    """An outlet that nobody hears."""

    def publish(self, entries: Iterable[Entry]) -> None:
        return

    def publish_live(self, event: LiveEvent) -> None:
        return


async def names(tools: Tools) -> set[str]:
    return {tool.spec.name for tool in await tools.current()}


def permit(command: str) -> Permit:
    return Permit("bash", "execute", "/", "run", {"command": command}, command)


async def ledger(place: Place) -> None:
    assert place.parts.ledger is place.server.ledger


async def models(place: Place) -> None:
    assert place.parts.models is (place.given.models or place.services.selected_models)


async def tools(place: Place) -> None:
    found = await names(place.parts.tools)
    if place.given.tools is not None:
        assert found == set(), "no others"
    else:
        assert {"bash", "edit", "view", "agent", "agentic_fetch", "question", "job_kill"} <= found


async def current_settings(place: Place) -> None:
    now = place.parts.current_settings
    assert now is not None
    found = now()
    assert (found.limits.steps, found.max_subagents, found.grace) == (7, 3, 9.0), "the files', and those of the server"
    assert now() is found, "made when they change"
    place.services.config_store.set(1, "options.max_steps", 8)
    place.services.configuration.current()
    assert now().limits.steps == 8


async def outlet(place: Place) -> None:
    found = place.workspace.recorder.outlet
    assert (found is place.workspace.bus) == (place.given.observe is None)
    assert place.observed == ([] if place.given.observe is None else [str(place.root)])
    assert place.services.publish == found.publish_live


async def workspace(place: Place) -> None:
    assert place.parts.workspace == place.workspace.id


async def path(place: Place) -> None:
    assert place.parts.path == str(place.root)


async def permissions(place: Place) -> None:
    assert place.parts.permissions is place.workspace.approvals


async def start_subagent(place: Place) -> None:
    context = cast(ToolContext, SimpleNamespace(run_id=RunId("r")))
    with pytest.raises(ToolError, match="kind"):
        await place.parts.start_subagent(context, SubagentTask("look", "A sub-agent", kind="none"))


async def context_loader(place: Place) -> None:
    found = place.parts.context_loader
    assert found is not None
    around = await found.load(SessionId("s"))
    assert around.directory == str(place.root)
    assert [file.text.strip() for file in around.context] == ["Be kind."]


async def subagents(place: Place) -> None:
    names_found = ("task", "fetch")
    types = [place.parts.subagents.find(name) for name in names_found]
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


async def environment(place: Place) -> None:
    assert place.parts.environment == ENVIRONMENT


async def cleanup(place: Place) -> None:
    assert place.parts.cleanup == place.services.jobs.end_run


async def completion_error(place: Place) -> None:
    assert place.parts.completion_error == place.services.jobs.fault_of


async def extensions_ready(place: Place) -> None:
    assert place.parts.extensions_ready == place.services.extensions.wait_settled


async def approvals(place: Place) -> None:
    approvals = place.workspace.approvals
    assert [approvals.judge(permit(line)).decision for line in ("rm -r x", "make all")] == ["deny", "ask"]
    assert approvals.timeout() == 86_400
    assert approvals.save_rule is not None
    approvals.save_rule("bash(make)")
    assert place.services.config_store.read_scope(1)["permissions"]["allow"] == ["bash(make)"]


async def hooks(place: Place) -> None:
    assert place.parts.hooks is place.services.extensions.hooks


async def rules_allow(place: Place) -> None:
    found = place.parts.rules_allow
    rules = (("bash(make *)",), ("bash(ls)",), ())
    assert [found(rule, permit("make all")) for rule in rules] == [True, False, False]


async def named_model(place: Place) -> None:
    found = place.parts.named_model
    if place.services.selected_models is None:
        assert found is None
    else:
        assert found is not None
        assert (await found("demo/tour")).info.model == "tour"


async def find_subagent_type(place: Place) -> None:
    asked: list[str] = []
    subagent_type = SubagentType(FixedTools([]))
    parts = place.parts

    def known(kind: str, tools: Tools) -> SubagentType:
        asked.append(kind)
        task = parts.subagents.find("task")
        assert task is not None
        assert tools is not task.tools, "all there are, to choose from"
        return subagent_type

    place.services.extensions.agents.subagent_type = known  # type: ignore[method-assign]
    assert parts.subagents.find("agent:x") is subagent_type
    assert asked == ["agent:x"]


ROWS: Mapping[str, Callable[[Place], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        workspace, path, ledger, models, tools, current_settings, permissions, environment, context_loader, subagents,
        start_subagent, cleanup, completion_error, extensions_ready, hooks, rules_allow, named_model,
        outlet, approvals, find_subagent_type,
    )
}  # fmt: skip


def test_every_dependency_has_a_row() -> None:
    assert set(RunContext.__struct_fields__) <= set(ROWS)


@pytest.mark.parametrize("is_given", [False, True], ids=["chosen", "given"])
async def test_each_part_is_filled(tmp_path: Path, is_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
        return Silent()

    given = ServiceOverrides(EngineSettings(grace=9.0))
    if is_given:
        model = ScriptedModel(lambda _: Step((Say("hello"),)))
        given = ServiceOverrides(
            EngineSettings(grace=9.0), FixedModels(model), FixedTools([]), observe, warms_guard=False
        )
    server = ServerServices(tmp_path / "data", given)
    place = Place(root, server, await server.open_workspace(root, ENVIRONMENT), given, observed)
    try:
        for row in ROWS.values():
            await row(place)
    finally:
        await server.close()
