"""A data directory and settings written by an earlier version are opened and read completely.

One archive for each recorded version; `make_fixture.py` writes them. An archive is never changed afterwards.
"""

import hashlib
import json
import secrets
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from e2e.cli_environment import CliEnvironment
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.server_address import ServerAddress
from holdfast.domain.files import UndoRequest
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage
from holdfast.server.web.web_auth import proof
from model_server.server import ModelServer
from server.helpers import read_until, run_ended
from upgrade.recorded_work import DELETED, answer, read_all

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


def unpack(archive: Path, cli_env: CliEnvironment) -> dict[str, Any]:
    """Unpack the recorded files into this stage, as if they had just been written there."""
    with tarfile.open(archive) as tar:
        tar.extractall(cli_env.root, filter="fully_trusted")
    expected = (cli_env.root / "expected.json").read_text()
    old, new = json.loads(expected)["root"], str(cli_env.root)
    assert len(old) == len(new)
    for path in (item for item in cli_env.root.rglob("*") if item.is_file()):
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    with apsw.Connection(str(cli_env.data / "holdfast.db")) as connection:
        # Old events and sign-ins expire; their age does not matter here.
        now = time.time_ns() // 1_000_000
        connection.execute("UPDATE events SET at = at + ? - (SELECT max(at) FROM events)", (now,))
    connection.close()
    trust = cli_env.data / "trust.json"
    trust.write_text(trust.read_text().replace(project_digest(old, cli_env), project_digest(new, cli_env)))
    note = json.loads((cli_env.data / "web.json").read_text())
    for page in note["pages"]:
        page["seen"] = time.time()
    (cli_env.data / "web.json").write_text(json.dumps(note))
    plain: dict[str, Any] = json.loads(expected.replace(old, new))
    return plain


def project_digest(root: str, cli_env: CliEnvironment) -> str:
    """Return the recorded version's digest of the project's settings file, which covers its path."""
    name = f"{root}/w/holdfast.toml".encode()
    data = (cli_env.project / "holdfast.toml").read_bytes()
    return hashlib.sha256(len(name).to_bytes(8, "big") + name + hashlib.sha256(data).digest()).hexdigest()


@asynccontextmanager
async def reopened(archive: Path) -> AsyncIterator[tuple[CliEnvironment, dict[str, Any]]]:
    async with ModelServer(answer, models={"big": 1, "small": 1}) as provider:
        cli_env = CliEnvironment(provider)
        cli_env.environment["UPGRADE_MODEL_URL"] = provider.base_url()
        try:
            yield cli_env, unpack(archive, cli_env)
        finally:
            await cli_env.close()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_an_earlier_versions_data_is_opened_and_read(archive: Path, reserved_port: int) -> None:
    async with reopened(archive) as (cli_env, expected):
        port = json.loads((cli_env.data / "web.json").read_text())["port"]
        tcp, token = reserved_port, (cli_env.data / "token").read_text().strip()
        await cli_env.serve("--host", f"tcp://127.0.0.1:{tcp}")
        client = await cli_env.client()
        ids = expected["ids"]
        for name in ("w", "v"):
            given = tuple(f"{key}={value}" for key, value in cli_env.environment.items())
            assert (await client.create_workspace(str(cli_env.root / name), env=given)).id == ids[name]
        await check_crash(client, ids["w"])
        check_deleted(cli_env)
        for name in ("w", "v"):
            check_work(expected[name], await read_all(client, ids[name]))
        for run in ("deleted-1", "deleted-2", "deleted-3"):
            with pytest.raises(ServerProblem, match="409"):
                await client.send_prompt(ids["w"], AgentMessage(ids["crashed"], "again", RunId(run)))
        await check_undo(client, ids["w"], expected["w"])
        async with Client(ServerAddress(host="127.0.0.1", port=port)) as page:
            await check_sign_in(page, port, expected)
        async with Client(ServerAddress(host="127.0.0.1", port=tcp, token=token)) as remote:
            assert {item.id for item in await remote.list_workspaces()} == {ids["w"], ids["v"]}
        listed = await cli_env.stdout_of("sessions", "--json")
        assert {item["id"] for item in json.loads(listed)} >= set(expected["w"]["listed"])
        assert "openai" in await cli_env.stdout_of("login", "--list")
        assert "listening" in await cli_env.stdout_of("logs")


async def check_crash(client: Client, workspace: WorkspaceId) -> None:
    """The run with the open approval ended with the server; the prompt after it is executed now."""
    async with client.events(workspace, since=0) as events:
        await read_until(events, run_ended(RunId("crashed-2")))
    outcomes = [(await client.get_run(workspace, RunId(f"crashed-{number}"))).outcome for number in (1, 2)]
    assert outcomes == ["interrupted", "completed"]
    assert await client.pending_permissions(workspace) == ()


def check_deleted(cli_env: CliEnvironment) -> None:
    """Nothing of a session deleted by the earlier version is left, and its run ids are not reused."""
    files = [path for path in cli_env.data.rglob("*") if path.is_file()]
    assert [path for path in files if DELETED.encode() in path.read_bytes()] == []
    assert len([path for path in files if path.name.endswith("-out.txt")]) == 1


def check_work(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Recorded responses are returned unchanged; fields, sessions and events may have been added."""
    for kind in ("sessions", "messages", "files", "read", "runs"):
        for name, value in expected[kind].items():
            assert contains(found[kind][name], value), (kind, name)
    assert [item for item in found["listed"] if item in expected["listed"]] == expected["listed"]
    assert [item for item in found["typed"] if item in expected["typed"]] == expected["typed"]
    check_log(expected, found)
    assert found["trust"]["trusted"] == expected["trust"]["trusted"]
    assert contains(found["config"]["permissions"], expected["config"]["permissions"])
    for key in ("max_minutes", "context_paths"):
        assert found["config"]["options"][key] == expected["config"]["options"][key]
    for key in ("sessions", "messages", "prompt_tokens"):
        assert found["stats"][key] >= expected["stats"][key]


def check_log(expected: dict[str, Any], found: dict[str, Any]) -> None:
    now = {event["number"]: event for event in found["log"]}
    for event in expected["log"]:
        same = now[event["number"]]
        session = session_of(event)
        if session in expected["sessions"]:
            assert contains(same["payload"], event["payload"]), event["number"]
        elif event["type"] == "run_complete":
            end, before = same["payload"]["payload"], event["payload"]["payload"]
            assert (end["run_id"], end["outcome"]) == (before["run_id"], before["outcome"])
            assert (end.get("text", ""), end.get("error", "")) == ("", "")
        else:
            assert (same["type"], same["payload"]) == ("removed", {"session_id": session})


def session_of(event: dict[str, Any]) -> str:
    about = event["payload"]["payload"]
    return str(about["id"] if event["type"] == "session" else about["session_id"])


async def check_undo(client: Client, workspace: WorkspaceId, expected: dict[str, Any]) -> None:
    session = next(name for name, files in expected["files"].items() if files)
    report = await client.undo_changes(workspace, UndoRequest(path="made.txt", session_id=session, dry_run=True))
    assert [item.path for item in report.files] != []


async def check_sign_in(page: Client, port: int, expected: dict[str, Any]) -> None:
    """A signed-in page is recognised by its key."""
    nonce = secrets.token_hex(16)
    ours = (await page.greet_page(expected["page"], nonce)).nonce
    answered = proof(expected["key"], "page", port, nonce, ours)
    assert (await page.return_page(expected["page"], answered)).token


def contains(value: object, part: object) -> bool:
    """Return true if `value` contains everything in `part`: later versions may add fields."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(key in value and contains(value[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(value, list) and len(value) == len(part) and all(map(contains, value, part))
    return value == part
