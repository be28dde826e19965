"""Each argument with which the services of a workspace construct a part: a table with a row for each of them."""

import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.domain.events import ConfigChangedEvent, LiveEvent
from holdfast.engine.settings import EngineSettings
from holdfast.runtime import workspace_services
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.runtime.workspace_services import WorkspaceServices

CLIENT = {"HOME": "/nowhere", "MINE": "1", "PATH": "/bin"}
CONFIG = """
[options]
disabled_tools = ["ls"]
sandbox_network = false
[tools.ls]
max_items = 3
[providers.mine]
type = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "$MINE_KEY"
"""


class Fixture(NamedTuple):
    """The services of a workspace, the last arguments of each part, and the live events."""

    server: ServerServices
    services: WorkspaceServices
    given: Mapping[str, Mapping[str, Any]]
    published: list[LiveEvent]
    busy: list[bool]

    @property
    def environment(self) -> Mapping[str, str]:
        return self.services.environment or os.environ


Row = Callable[[Fixture, Any], object]
PARTS: dict[str, dict[str, Row]] = {
    "GitScan": {
        "git": lambda f, value: value is f.server.git,
        "spawn": lambda f, value: value is f.services.spawn,
        "directory": lambda f, value: value == f.services.record.path,
        "environment": lambda f, value: value == f.environment,
    },
    "GuardedSpawn": {"guard": lambda f, value: value is f.server.guard},
    "Substitution": {"spawn": lambda f, value: value is f.services.spawn},
    "Configuration": {
        "places": lambda f, value: value.directory == f.services.record.path,
        "environment": lambda f, value: value == f.environment,
        "run": lambda f, value: value is not None,
        "on_change": lambda f, value: publishes_a_change(f, value),  # noqa: PLW0108 - defined below
        "documents": lambda f, value: value is f.server.documents,
    },
    "ConfigStore": {
        "user": lambda f, value: value == str(f.server.data_dir / "config.json"),
        "workspace": lambda f, value: value == str(f.services.data_dir / "config.json"),
        "documents": lambda f, value: value is f.server.documents,
        "keys_file": lambda f, value: value == "",
    },
    "Credentials": {
        "path": lambda f, value: value == f.services.configuration.locations.credentials_file,
        "environment": lambda f, value: value is os.environ,
        "tokens": lambda f, value: value is None,
    },
    "TokenRefresher": {"credentials": lambda f, value: value is f.services.credentials},
    "SelectedModels": {
        "inputs": lambda f, value: (
            (value.new_token, value.sign_in, value.on_use)
            == (f.services._new_token, f.services._sign_in, f.services._note_model)
        ),
        "discovery": lambda f, value: value is f.server.discovery,
    },
    "ProgramFiles": {"search_path": lambda f, value: "/bin" in value().split(":")},
    "PermissionCheck": {
        "reading": lambda f, value: value == f.services.configuration.snapshot,
        "path": lambda f, value: value == f.services.record.path,
        "saved_file": lambda f, value: value == str(f.services.data_dir / "config.json"),
        "programs": lambda f, value: value is f.services._programs,
    },
    "JobLimits": {"grace": lambda f, value: value == 9.0},
    "Jobs": {
        "now_ms": lambda f, value: value == f.services.clock.now_ms,
        "limits": lambda f, value: value.grace == 9.0,
        "on_busy": lambda f, value: value(True) or f.busy.pop(),
    },
    "Processes": {
        "guard": lambda f, value: value is f.server.guard,
        "output_files": lambda f, value: value == f.services.data_dir / "output",
        "grace": lambda f, value: value == 9.0,
    },
    "Shell": {
        "processes": lambda f, value: value is f.services.processes,
        "secrets": lambda f, value: value == f.services._secrets,
    },
    "ExtensionContext": {
        "path": lambda f, value: value == f.services.record.path,
        "data_dir": lambda f, value: value == f.services.data_dir,
        "configuration": lambda f, value: value is f.services.configuration,
        "credentials": lambda f, value: value is f.services.credentials,
        "spawn": lambda f, value: value is f.services.spawn,
        "environment": lambda f, value: value is f.services.environment,
        "publish": lambda f, value: value == f.services.publish,
        "secrets": lambda f, value: value == f.services._secrets,
        "git": lambda f, value: value is f.server.git,
    },
    "ToolNeeds": {
        "spawn": lambda f, value: value.func is f.services.spawn and value.keywords == {"is_real": True},
        "git": lambda f, value: value is f.server.git,
        "settings": lambda f, value: value() is f.services.settings.tools and value().ls["max_items"] == 3,
        "disabled": lambda f, value: [*value()] == ["ls"],
        "readable": lambda f, value: value()[0] == str(f.services.data_dir / "output"),
        "unavailable": lambda f, value: value == f.services._unavailable,
        "skill_at": lambda f, value: value == f.services.extensions.skills.by_path,
        "known_todos": lambda f, value: value == f.services._todos,
        "facts": lambda f, value: value == f.services._describe_settings,
        "log_file": lambda f, value: value() == f.server.data_dir / "logs" / "server.log",
        "web": lambda f, value: value is f.server.web,
        "on_view": lambda f, value: value == f.services.extensions.lsp.on_view,
        "on_change": lambda f, value: value == f.services.extensions.lsp.on_change,
        "more": lambda f, value: (
            {"agent", "agentic_fetch", "bash", "job_kill", "job_output", "question"}
            == {tool.spec.name for tool in value}
        ),
    },
    "JobKill": {"jobs": lambda f, value: value is f.services.jobs},
    "JobOutputTool": {"jobs": lambda f, value: value is f.services.jobs},
    "SandboxPolicy": {
        "workspace": lambda f, value: value == f.services.record.path,
        "scratch": lambda f, value: value == str(f.services.data_dir / "scratch"),
        "network": lambda f, value: value is False,
        "hidden": lambda f, value: (
            str(f.server.data_dir) in value and {*f.services.configuration.locations.private_directories} <= {*value}
        ),
        "home": lambda f, value: value is f.services.settings.sandbox,
        "home_directory": lambda f, value: value == f.services.environment.get("HOME", ""),
    },
}


def publishes_a_change(fixture: Fixture, on_change: Callable[[], None]) -> bool:
    fixture.published.clear()
    on_change()
    return [type(event) for event in fixture.published] == [ConfigChangedEvent]


@asynccontextmanager
async def opened(root: Path, monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> AsyncIterator[Fixture]:
    monkeypatch.setenv("HOME", str(root / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    config = root / "home" / ".config" / "holdfast" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    project = root / "project"
    project.mkdir()
    given: dict[str, Mapping[str, Any]] = {}

    def recording(name: str, part: Callable[..., object]) -> Callable[..., object]:
        def construct(*args: object, **kwargs: object) -> object:
            given[name] = inspect.signature(part).bind(*args, **kwargs).arguments
            return part(*args, **kwargs)

        return construct

    for name in PARTS:
        monkeypatch.setattr(workspace_services, name, recording(name, getattr(workspace_services, name)))
    server = ServerServices(root / "data", ServiceOverrides(EngineSettings(grace=9.0), warms_guard=False))
    try:
        record = await server.ledger.open_workspace(str(project))
        published: list[LiveEvent] = []
        busy: list[bool] = []
        services = server.workspace_services(record, environment, published.append, busy.append)
        services._sandbox_policy()
        yield Fixture(server, services, given, published, busy)
        await services.close()
    finally:
        await server.close()


@pytest.mark.parametrize("environment", [CLIENT, {}], ids=["client", "server"])
async def test_every_argument_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> None:
    async with opened(tmp_path, monkeypatch, environment) as fixture:
        for part, rows in PARTS.items():
            given = fixture.given[part]
            assert {*given} == {*rows}, part
            for name, row in rows.items():
                assert row(fixture, given[name]), (part, name)


async def test_a_change_is_published_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, monkeypatch, CLIENT) as fixture:
        for steps in (None, 8):
            fixture.published.clear()
            if steps:
                fixture.services.config_store.set(1, "options.max_steps", steps)
            fixture.services.notify_settings_changed()
            changes = [event for event in fixture.published if isinstance(event, ConfigChangedEvent)]
            assert [event.change.object.workspace_id for event in changes] == [fixture.services.record.id]


async def test_variables_with_keys_are_withheld_from_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**CLIENT, "MINE_KEY": "secret"}
    async with opened(tmp_path, monkeypatch, environment) as fixture:
        selected = fixture.services.selected_models
        assert selected is not None
        await selected.providers_view()
        found = fixture.services.shell.environment(fixture.services.record.path, environment)
        assert found.get("MINE") == "1"
        assert "MINE_KEY" not in found
        fixture.services.add_client_keys({"MINE_KEY": "other", "MINE": "2"})
        now = fixture.services.configuration.environment()
        assert (now["MINE_KEY"], now["MINE"]) == ("other", "1")
        assert msgspec.structs.asdict(fixture.services.configuration.current().options)["sandbox_network"] is False
