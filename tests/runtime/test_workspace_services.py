"""Every part that an engine gets is filled from what its workspace has: a table with a row for each of them."""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import pytest

from holdfast.domain.events import LiveEvent
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import Entry
from holdfast.domain.tools import Permit
from holdfast.engine.ports import Outlet, Tools
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.services import ServerServices, ServiceOverrides, WorkspaceServices
from holdfast.runtime.workspace import WorkspaceParts
from holdfast.storage.ledger import SqliteLedger
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
    ledger: SqliteLedger
    house: ServerServices
    services: WorkspaceServices
    given: ServiceOverrides
    heard: list[str]

    @property
    def parts(self) -> WorkspaceParts:
        return self.services.parts()


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
    assert place.parts.ledger is place.ledger


async def models(place: Place) -> None:
    assert place.parts.models is (place.given.models or place.services.choice)


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
    place.services.store.set(1, "options.max_steps", 8)
    place.services.configuration.current()
    assert now().limits.steps == 8


async def wrap_outlet(place: Place) -> None:
    outlet = Silent()
    assert (place.parts.wrap_outlet(outlet) is outlet) == (place.given.listen is None)
    assert place.heard == ([] if place.given.listen is None else [str(place.root)])


async def context_loader(place: Place) -> None:
    found = place.parts.context_loader
    assert found is not None
    around = await found.load(SessionId("s"))
    assert around.directory == str(place.root)
    assert [file.text.strip() for file in around.context] == ["Be kind."]


async def subagent_types(place: Place) -> None:
    found = place.parts.subagent_types
    assert set(found) == {"task", "fetch"}
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


async def judge(place: Place) -> None:
    make = place.parts.judge
    assert make is not None
    decide = make(str(place.root))
    assert [decide(permit(line)).decision for line in ("rm -r x", "make all")] == ["deny", "ask"]


async def hooks(place: Place) -> None:
    assert place.parts.hooks is place.services.extensions.hooks


async def rules_allow(place: Place) -> None:
    found = place.parts.rules_allow
    rules = (("bash(make *)",), ("bash(ls)",), ())
    assert [found(rule, permit("make all")) for rule in rules] == [True, False, False]


async def named_model(place: Place) -> None:
    found = place.parts.named_model
    if place.services.choice is None:
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
        assert tools is not parts.subagent_types["task"].tools, "all there are, to choose from"
        return subagent_type

    place.services.extensions.agents.subagent_type = known  # type: ignore[method-assign]
    assert parts.find_subagent_type("agent:x") is subagent_type
    assert asked == ["agent:x"]


ROWS: Mapping[str, Callable[[Place], Awaitable[None]]] = {
    row.__name__: row
    for row in (
        ledger, models, tools, current_settings, wrap_outlet, context_loader, subagent_types,
        environment, cleanup, completion_error, extensions_ready, judge,
        hooks, rules_allow, named_model, find_subagent_type,
    )
}  # fmt: skip
ELSEWHERE = {"settings": "`current_settings` is asked", "clock": "the system's", "new_id": "the system's"}


def test_every_part_has_a_row() -> None:
    assert {*ROWS, *ELSEWHERE} == set(WorkspaceParts.__struct_fields__)


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
    heard: list[str] = []

    def listen(path: str, _: Outlet) -> Outlet:
        heard.append(path)
        return Silent()

    given = ServiceOverrides(EngineSettings(grace=9.0))
    if is_given:
        model = ScriptedModel(lambda _: Step((Say("hello"),)))
        given = ServiceOverrides(EngineSettings(grace=9.0), FixedModels(model), FixedTools([]), listen)
    store = SqliteLedger(tmp_path / "data")
    house = ServerServices(tmp_path / "data", store, given)
    services = WorkspaceServices(house, await store.open_workspace(str(root)), ENVIRONMENT)
    place = Place(root, store, house, services, given, heard)
    try:
        for row in ROWS.values():
            await row(place)
    finally:
        await services.close()
        await house.close()
        await store.close()
