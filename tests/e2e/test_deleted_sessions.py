"""A deleted session is erased: unique texts in every kind of location, then a search of all files and responses."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.cli_environment import CliEnvironment, cli_environment
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import RemovedEvent, RunCompleteEvent, SessionEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Attachment
from holdfast.protocol.bodies import AgentMessage
from server.helpers import read_until, run_ended
from upgrade.recorded_work import answer, calls

CANARY = "canary-of-the-deleted-session"


async def work(cli_env: CliEnvironment, client: Client, workspace: WorkspaceId) -> SessionId:
    """Create a session with its text in title, prompts, attachments, responses, errors, files, output, sub-agents,
    to-dos.
    """
    session = (await client.create_session(workspace, f"{CANARY}-title")).id
    note = Attachment(f"{CANARY}-attachment".encode(), f"/x/{CANARY}-path", f"{CANARY}-name.txt", "text/plain")
    (cli_env.project / "much.sh").write_text('seq -f "%g $1" 1 20000\n')
    todo = [{"content": f"{CANARY}-todo", "status": "pending", "active_form": "x"}]
    prompt = calls(
        [("agent", {"prompt": f"{CANARY}-helper"})],
        [("write", {"file_path": "made.txt", "content": f"{CANARY}-content"})],
        [("edit", {"file_path": "made.txt", "old_string": "content", "new_string": "changed"})],
        [("todos", {"todos": todo})],
        [("bash", {"command": f"sh much.sh {CANARY}-output"})],
        [("bash", {"command": f"sh much.sh {CANARY}-job; sleep 600", "run_in_background": True})],
        then=f"{CANARY}-answer",
    )
    await run(client, workspace, session, prompt, "deleted-1", attachments=(note,), yolo=True)
    await run(client, workspace, session, f"{CANARY}-long " + "x" * 5000, "deleted-2")
    await run(client, workspace, session, f"please fail {CANARY}", "deleted-3")
    await client.summarize(workspace, session)
    await client.run_shell(workspace, session, f"echo {CANARY}-shell")
    return session


async def run(client: Client, workspace: WorkspaceId, session: SessionId, text: str, name: str, **more: Any) -> None:  # noqa: ANN401
    async with client.events(workspace, since=0) as events:
        await client.send_prompt(workspace, AgentMessage(session, text, RunId(name), interactive=False, **more))
        await read_until(events, run_ended(RunId(name)))


def files_with(place: Path) -> list[str]:
    files = [path for path in place.rglob("*") if path.is_file()]
    return [str(path) for path in files if CANARY.encode() in path.read_bytes() or CANARY in path.name]


async def answers(client: Client, workspace: WorkspaceId, session: SessionId) -> str:
    """Return all API responses about the workspace as one text."""
    output: list[object] = [
        await client.snapshot(workspace),
        await client.list_sessions(workspace),
        await client.list_messages(workspace, session),
        await client.list_all_user_messages(workspace),
        await client.list_history(workspace, session),
        await client.list_read_files(workspace, session),
        await client.list_runs(workspace, limit=1000),
        await client.list_queued(workspace, session),
        await client.list_jobs(workspace),
        await client.stats(workspace),
        await client.all_stats(),
    ]
    for only in ("", session):
        page = await client.read_log(workspace, limit=1000, session=only)
        assert not page.more
        output.append(page)
    return msgspec.json.encode(output).decode()


async def test_deleted_session_leaves_no_text() -> None:
    async with cli_environment(answer) as cli_env:
        given = tuple(f"{key}={value}" for key, value in cli_env.environment.items())
        client = await cli_env.client()
        workspace = (await client.create_workspace(str(cli_env.project), env=given)).id
        kept = (await client.create_session(workspace, "kept")).id
        await run(client, workspace, kept, "something else", "kept-1")
        session = await work(cli_env, client, workspace)
        assert CANARY in await answers(client, workspace, session)
        assert len(files_with(cli_env.data)) >= 3
        numbers = (await client.snapshot(workspace)).cursor
        await client.delete_session(workspace, session)
        assert files_with(cli_env.data) == []
        assert CANARY not in await answers(client, workspace, session)
        await check_stream(client, workspace, session, numbers)
        await check_run_ids(client, workspace, kept)
        assert CANARY not in cli_env.log
        await cli_env.stop()
        assert files_with(cli_env.data) == []


async def check_stream(client: Client, workspace: WorkspaceId, session: SessionId, numbers: int) -> None:
    """A new reader gets every number, the ends of the runs without text, and no content."""
    cursor = (await client.snapshot(workspace)).cursor
    async with client.events(workspace, since=0) as events:
        seen = await read_until(events, lambda item: item.number == cursor)
    assert [item.number for item in seen if item.number] == list(range(1, cursor + 1))
    assert CANARY not in str([item.event for item in seen])
    ends = [item.event.change.object for item in seen if isinstance(item.event, RunCompleteEvent)]
    found = {str(end.run_id): (end.outcome, end.text, end.error) for end in ends}
    assert found["deleted-1"] == found["deleted-2"] == ("completed", "", "")
    assert found["deleted-3"] == ("failed", "", "")
    assert found["kept-1"][1] != ""
    gone = [item for item in seen if isinstance(item.event, RemovedEvent)]
    assert {item.event.payload.session_id for item in gone if isinstance(item.event, RemovedEvent)} >= {session}
    assert all(item.number is not None and item.number <= numbers for item in gone)
    last = [item.event for item in seen if isinstance(item.event, SessionEvent)][-1]
    assert (last.change.type, last.change.object.id, last.change.object.title) == ("deleted", session, "")


async def check_run_ids(client: Client, workspace: WorkspaceId, kept: SessionId) -> None:
    with pytest.raises(ServerProblem) as caught:
        await client.send_prompt(workspace, AgentMessage(kept, "again", RunId("deleted-1")))
    assert caught.value.status == 409
    with pytest.raises(ServerProblem) as caught:
        await client.get_run(workspace, RunId("deleted-1"))
    assert caught.value.status == 404
