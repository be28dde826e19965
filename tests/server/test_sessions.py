"""Sessions over the wire: effect of a change, order of prompts, names of files."""

import asyncio
import os
from itertools import count

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import PutMessage
from holdfast.protocol.bodies import AgentMessage
from server.helpers import FeedModel, exchange, in_process_server, raw_request, send_prompt, server_directory

NEVER = "0001-01-01T00:00:00Z"


async def test_a_change_without_a_title_leaves_it() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = await client.create_session(workspace, "Chosen")
        path = f"/v1/workspaces/{workspace}/sessions/{session.id}"
        for body in (b"{}", b'{"title":null}', b'{"cost":7,"message_count":9,"todos":[]}'):
            answer = await exchange(server.address, raw_request(path, "PUT", body))
            assert (answer.status, answer.json["title"], answer.json["cost"]) == (200, "Chosen", 0)
        assert (await exchange(server.address, raw_request(path + "x", "PUT", b"{}"))).status == 400
        assert (await client.get_session(workspace, session.id)).title == "Chosen"


async def test_prompts_of_all_sessions_are_newest_first() -> None:
    """Not session by session: the most recently used session may contain the oldest prompt."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        sessions = [await client.create_session(workspace) for _ in range(2)]
        recorder = server.manager.handle(workspace).owned.engine.recorder
        for number, (second, session) in enumerate(((1, 0), (2, 1), (3, 0), (3, 0))):
            part = TextPart(Text(str(number)))
            message = Message((part,), MessageId(f"m{number}"), "user", sessions[session].id, "", "", second, second)
            await recorder.put(PutMessage(message))
        found = await client.list_all_user_messages(workspace)
        assert [message.id for message in found] == ["m3", "m2", "m1", "m0"]


async def test_read_file_has_one_name() -> None:
    """The name that tools look up: whatever spelling a client uses, a file it has shown may be changed."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        project = directory.project()
        os.symlink(project, f"{directory.root}/link")
        real = f"{project}/notes.txt"
        for given in ("notes.txt", "./below/../notes.txt", real, f"{directory.root}/link/notes.txt"):
            session = (await client.create_session(workspace)).id
            await client.mark_read(workspace, session, given)
            assert await client.list_read_files(workspace, session) == (real,)
            assert await client.last_read(workspace, session, "notes.txt") != NEVER
            assert await client.last_read(workspace, session, real) != NEVER
            assert await client.last_read(workspace, session, "other.txt") == NEVER


@pytest.mark.parametrize(("session", "path"), [("nobody", "a.txt"), ("", "a.txt"), (None, ""), (None, "a\0b")])
async def test_invalid_read_mark_is_refused(session: str | None, path: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        known = (await client.create_session(workspace)).id
        with pytest.raises(ServerProblem) as refused:
            await client.mark_read(workspace, known if session is None else SessionId(session), path)
        assert refused.value.status == 400
        assert await client.list_read_files(workspace, known) == ()


async def test_a_busy_session_is_deleted_while_prompts_arrive() -> None:
    """It accepts no prompts after the deletion begins, or the deletion would have to wait for them."""
    model = FeedModel()
    async with server_directory() as here, in_process_server(here, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        await send_prompt(client, workspace, session, "work for ever", "r")
        await model.asked.wait()
        statuses: list[int] = []

        async def insist() -> None:
            for number in count():
                more = AgentMessage(session, "more", RunId(f"more-{number}"), delivery="queue")
                try:
                    await client.send_prompt(workspace, more)
                except ServerProblem as problem:
                    statuses.append(problem.status)
                    return

        async with asyncio.timeout(10):
            await asyncio.gather(insist(), insist(), client.delete_session(workspace, session))
        assert len(statuses) == 2
        assert set(statuses) <= {400, 404}
        assert await client.list_sessions(workspace) == ()


async def test_run_state_filter_covers_all_runs() -> None:
    """The active run may be older than many ended ones."""
    model = FeedModel()
    async with server_directory() as here, in_process_server(here, model) as server:
        client, workspace = await server.open_workspace()
        busy, other = [(await client.create_session(workspace)).id for _ in range(2)]
        await send_prompt(client, workspace, busy, "long", "long")
        await model.asked.wait()
        for number in range(3):
            await send_prompt(client, workspace, other, "cancelled", f"other-{number}")
            await client.cancel_session(workspace, other)
        await server.manager.handles[0].owned.engine.wait_until_idle(other)
        await send_prompt(client, workspace, busy, "behind it", "waits")
        ids = {
            state: [run.run_id for run in await client.list_runs(workspace, state=state, limit=2)]
            for state in ("active", "waiting", "ended")
        }
        assert ids == {"active": ["long"], "waiting": ["waits"], "ended": ["other-2", "other-1"]}
        assert await client.list_runs(workspace, state="active", session=other, limit=2) == ()
        first = await client.get_run(workspace, RunId("long"))
        assert await client.list_runs(workspace, state="active", before=first.number, limit=2) == ()
        more = await client.list_runs(workspace, state="ended", limit=10)
        assert [run.run_id for run in more] == ["other-2", "other-1", "other-0"]
