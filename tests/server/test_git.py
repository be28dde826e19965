"""Git through the real server: a prompt runs no program of the repository and does not wait for git."""

import asyncio
import json
import os
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from holdfast.client.client import Client
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import Message, TextPart
from holdfast.domain.model_requests import ModelRequest
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import start
from holdfast.workspace.git.readonly_check import git_runs_nothing_else
from server.helpers import EchoModel, collect_run_ends, in_process_server, server_directory
from trials.hostile_repositories import FORMS, KEYS, Arena

TOOLS = (
    Call("grep", '{"pattern": "one"}'),
    Call("glob", '{"pattern": "**/*.txt"}'),
    Call("ls"),
    *(Call("bash", json.dumps({"command": line})) for line in ("git status", "git diff", "git log -p -1")),
)
LAZY = {"extensions.partialclone", "remote.*.promisor", "remote.*.url"}


def answer(request: ModelRequest) -> Step:
    return Step(TOOLS) if request.messages[-1].role == "user" else Step((Say("done"),))


async def test_first_prompt_runs_no_program_of_repository() -> None:
    """With every tool that reads files, and with read-only git commands, each of which needs approval here."""
    async with server_directory() as directory, in_process_server(directory, ScriptedModel(answer)) as server:
        arena = Arena(directory.root / "arena")
        text = arena.payload([key for key, pattern in KEYS.items() if pattern not in LAZY])
        workspaces = [FORMS[form](arena, text)[0] for form in ("plain", "commondir", "gitfile", "submodule", "bare")]
        arena.fired()
        client = await server.client()
        for path in workspaces:
            workspace = (await client.create_workspace(str(path))).id
            denying = start(deny_all(client, workspace))
            await run(client, workspace, "look")
            denying.cancel()
            await server.manager.handle(workspace).services.git_scan.finished()
            await client.list_files(workspace)
        assert arena.fired() == []


async def deny_all(client: Client, workspace: WorkspaceId) -> None:
    while True:
        for ask in await client.pending_permissions(workspace):
            await client.grant(workspace, {"permission": msgspec.to_builtins(ask), "action": "deny"})


async def run(client: Client, workspace: WorkspaceId, text: str, session: str = "") -> str:
    made = session or (await client.create_session(workspace, "s")).id
    message = AgentMessage(type(made)(made), text, interactive=False)  # type: ignore[arg-type]
    accepted = await client.send_prompt(workspace, message)
    await collect_run_ends(client, workspace, [accepted.run_id])
    return made


def repository(path: Path) -> None:
    for words in (("init", "-q", "-b", "trunk"), ("commit", "-q", "--allow-empty", "-m", "first words")):
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=path, check=True, capture_output=True)
    (path / "new.txt").touch()


async def test_read_only_git_needs_no_approval_in_ordinary_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository is examined outside the event loop."""
    threads: list[bool] = []

    def examined(*given: object) -> bool:
        threads.append(threading.current_thread() is threading.main_thread())
        return git_runs_nothing_else(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("holdfast.workspace.git.readonly_check.git_runs_nothing_else", examined)
    async with server_directory() as directory, in_process_server(directory, ScriptedModel(answer)) as server:
        repository(Path(directory.project()))
        client, workspace = await server.open_workspace()
        session = await run(client, workspace, "look")
        messages = await client.list_messages(workspace, SessionId(session))
    results = [result.content for message in messages for result in message.tool_results]
    assert any("On branch trunk" in text for text in results)
    assert threads == [False, False, False]


def texts(message: Message) -> str:
    return "\n".join(part.data.text for part in message.parts if isinstance(part, TextPart))


async def test_git_changes_are_added_to_first_message_only() -> None:
    model = EchoModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        repository(Path(directory.project()))
        client, workspace = await server.open_workspace()
        await server.manager.handle(workspace).services.git_scan.finished()
        session = await run(client, workspace, "one")
        await run(client, workspace, "two", session)
    first, second = model.requests
    assert "Git branch: trunk, commit " in first.system
    assert "new.txt" not in first.system
    reported = texts(first.messages[0])
    assert "one" in reported
    for fact in ("?? new.txt", "first words"):
        assert fact in reported
    assert second.messages[0] == first.messages[0]
    assert "<git-status>" not in texts(second.messages[-1])


async def test_a_prompt_does_not_wait_for_a_scan() -> None:
    """Its result is part of the next request."""
    model = EchoModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        root = Path(directory.project())
        repository(root)
        pipe = root / ".git/objects/info/alternates"
        os.mkfifo(pipe)
        client, workspace = await server.open_workspace()
        session = await run(client, workspace, "one")
        writing = await asyncio.to_thread(os.open, pipe, os.O_WRONLY)
        pipe.unlink()
        os.close(writing)
        await server.manager.handle(workspace).services.git_scan.finished()
        await run(client, workspace, "two", session)
    first, second = model.requests
    assert "<git-status>" not in texts(first.messages[-1])
    assert second.messages[0] == first.messages[0]
    assert "?? new.txt" in texts(second.messages[-1])
