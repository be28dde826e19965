"""The workspace as constructed by `runtime/workspace.py`, on the real database."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.domain.errors import BadRequest, DatabaseDamaged, DataDirectoryBusy
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, ScriptedModels, Step
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.tools.registry import BuiltinTools

QUIET = EngineSettings(titles=False)


def models() -> ScriptedModels:
    def script(request: ModelRequest) -> Step:
        if request.messages[-1].role == "user":
            return Step((Say("Let me look."), Call("ls")))
        return Step((Say("I have looked."),))

    return ScriptedModels(ScriptedModel(script))


def open_services(data: Path) -> ServerServices:
    """Open the services of a server with the scripted model."""
    return ServerServices(data, ServiceOverrides(QUIET, models(), BuiltinTools(), warms_guard=False))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "hello.txt").write_text("hello\n")
    return path


async def test_a_prompt_from_end_to_end_and_again_after_a_restart(tmp_path: Path, project: Path) -> None:
    services = open_services(tmp_path / "data")
    workspace = await services.open_workspace(project)
    session = (await workspace.sessions.create()).id
    run = await workspace.inputs.submit(Prompt(session, "look", run_id=RunId("r1")))
    assert run.position == 0
    await workspace.engine.wait_until_idle(session)
    await services.close()

    again = open_services(tmp_path / "data")
    reopened = await again.open_workspace(project)
    assert reopened.record.id == workspace.record.id
    assert reopened.record.newest == workspace.bus.newest, "a clean end: the numbering goes on"
    messages = await again.ledger.messages(reopened.record.id, session)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert "hello.txt" in messages[2].tool_results[0].content
    # The same request after a restart still gets its response and starts nothing.
    repeated = await reopened.inputs.submit(Prompt(session, "look", run_id=RunId("r1")))
    assert repeated.outcome == "completed"
    await again.close()


async def test_directory_has_one_workspace_under_every_path(tmp_path: Path, project: Path) -> None:
    """R8: concurrently, through a link, with dots in the path."""
    services = open_services(tmp_path / "data")
    link = tmp_path / "link"
    link.symlink_to(project)
    found = await asyncio.gather(
        *(services.open_workspace(path) for path in (project, link, project / ".." / "project"))
    )
    found.append(await services.open_workspace(project))
    assert len({id(workspace) for workspace in found}) == 1
    with pytest.raises(BadRequest, match="not a directory"):
        await services.open_workspace(project / "hello.txt")
    await services.close()


async def test_a_second_server_on_the_same_data_directory_is_refused(tmp_path: Path) -> None:
    """R8: the error names the owner."""
    services = open_services(tmp_path / "data")
    with pytest.raises(DataDirectoryBusy, match=r"process \d+"):
        open_services(tmp_path / "data")
    await services.close()


def test_foreign_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "holdfast.db").write_bytes(b"this is not a database, and it is somebody's only copy of it")
    before = (data / "holdfast.db").read_bytes()
    with pytest.raises(DatabaseDamaged, match=r"holdfast\.db"):
        open_services(data)
    assert (data / "holdfast.db").read_bytes() == before


def test_a_full_disk_loses_no_end(tmp_path: Path, project: Path) -> None:
    """Nothing is accepted meanwhile, the failure is published at once, and the end is stored once there is space."""
    child = Path(__file__).with_name("full_disk.py")
    done = subprocess.run(
        [sys.executable, str(child), str(tmp_path / "data"), str(project)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "refused": True,
        "ends_meanwhile": 0,
        "notices": ["error"],
        "ends": {"r1": "completed", "r3": "completed"},
    }
