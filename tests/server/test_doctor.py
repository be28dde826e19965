"""Checks of everything a workspace needs: each finding names its area and a remedy."""

import asyncio
import stat
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.domain.doctor import Finding
from holdfast.domain.errors import HoldfastError
from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step
from holdfast.server.health import checks, doctor
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.testing.harness import FixedModels
from holdfast.workspace.process.guard_client import Guard
from server.helpers import in_process_server, server_directory

REAL = ModelInfo("acme", "one")


async def _found(server_models: FixedModels, areas: str, files: dict[str, str] | None = None) -> list[Finding]:
    async with server_directory() as directory, in_process_server(directory, server_models) as server:
        project = directory.project()
        for name, text in (files or {}).items():
            (directory.root / "project" / name).write_text(text)
        assert project
        client, workspace = await server.open_workspace()
        return list((await client.doctor(workspace, areas)).findings)


def _models(*acts: Say | Fail) -> FixedModels:
    model = ScriptedModel(lambda _: Step(tuple(acts)), info=REAL)
    return FixedModels(model, model)


async def test_responding_model_is_ok() -> None:
    (found,) = await _found(_models(Say("ready")), "models")
    assert (found.severity, found.what) == ("ok", "large and small: acme/one answers.")


async def test_refusing_model_is_reported_with_reason() -> None:
    (found,) = await _found(_models(Fail("The key is wrong.")), "models")
    assert found.severity == "error"
    assert "acme/one" in found.what
    assert "The key is wrong." in found.what
    assert "holdfast login" in found.what_to_do


async def test_invalid_setting_has_file_and_line() -> None:
    text = '[options]\nmax_steps = "many"\n\n[mcp.x]\ncommand = "true"\n'
    found = await _found(_models(Say("x")), "settings,trust", {"holdfast.toml": text})
    places = [(item.area, item.severity, item.file.rpartition("/")[2], item.line) for item in found]
    assert places == [("settings", "error", "holdfast.toml", 2), ("trust", "warning", "holdfast.toml", 4)]
    assert "holdfast trust" in found[1].what_to_do


async def test_process_supervision_and_escaped_processes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a PID namespace there is no finding. Elsewhere the findings name the limits and the surviving processes."""
    (found,) = await _found(_models(Say("x")), "processes")
    assert found.severity == ("ok" if "PID namespace, which it cannot leave" in found.what else "note")
    monkeypatch.setattr(checks, "orphaned_processes", lambda: {4711: "sleep 1000"})
    guard = Guard("tree")
    guard.escapes = 2
    try:
        handle = SimpleNamespace(services=SimpleNamespace(processes=SimpleNamespace(guard=guard)))
        findings = await checks.processes(cast(WorkspaceHandle, handle))
    finally:
        await guard.close()
    assert [item.severity for item in findings] == ["warning", "warning", "note"]
    assert "4711" in findings[0].what
    assert "killed their supervisors 2 times" in findings[1].what
    assert "also kills the server" in findings[2].what


async def test_data_directory_is_checked() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        directory.data.chmod(0o755)
        (found,) = (await client.doctor(workspace, "data directory")).findings
        assert (found.severity, found.file) == ("warning", str(directory.data))
        assert found.what_to_do == f"chmod 700 {directory.data}"
        directory.data.chmod(0o700)
        (found,) = (await client.doctor(workspace, "data directory")).findings
        assert found.severity == "ok"
        assert stat.S_IMODE(directory.data.stat().st_mode) == 0o700


async def test_search_and_sandbox_are_checked() -> None:
    found = {item.area: item for item in await _found(_models(Say("x")), "search tools,sandbox")}
    assert set(found) == {"search tools", "sandbox"}
    assert found["sandbox"].what.startswith("off")


async def test_gaps_of_the_sandbox_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.workspace.sandbox.sandbox.can_filter", lambda: False)
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.sandbox", "workspace", scope=1)
        found = (await client.doctor(workspace, "sandbox")).findings
        gaps = (await client.get_sandbox(workspace)).gaps
    assert found[0].severity == "ok"
    assert gaps
    assert {item.what for item in found if item.severity == "warning"} == {f"not closed: {gap}" for gap in gaps}


async def test_failing_check_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_: WorkspaceHandle) -> Sequence[Finding]:
        raise ValueError("a secret")

    async def complains(_: WorkspaceHandle) -> Sequence[Finding]:
        raise HoldfastError("It is so.")

    async def hangs(_: WorkspaceHandle) -> Sequence[Finding]:
        await asyncio.get_running_loop().create_future()
        return ()

    chosen = {"one": breaks, "two": complains, "three": hangs, "settings": doctor.CHECKS["settings"]}
    async with server_directory() as directory, in_process_server(directory) as server:
        await server.open_workspace()
        findings = (await doctor.run_checks(server.manager.handles[0], chosen, limit=0.05)).findings
    assert [(item.area, item.severity) for item in findings[:3]] == [
        (name, "error") for name in ("one", "two", "three")
    ]
    assert "secret" not in findings[0].what
    assert findings[1].what == "It is so."
    assert findings[3].area == "settings"
