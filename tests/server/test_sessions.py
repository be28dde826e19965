"""Sessions over the wire: what a change changes, prompts in their order, files under one name."""

import os

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.ledger import PutMessage
from holdfast.domain.messages import Message, Text, TextPart
from server.helpers import exchange, inside, place, serving

NEVER = "0001-01-01T00:00:00Z"


async def test_a_change_without_a_title_leaves_it() -> None:
    async with place() as where, serving(where) as server:
        client, workspace = await server.opened()
        session = await client.create_session(workspace, "Chosen")
        path = f"/v1/workspaces/{workspace}/sessions/{session.id}"
        for body in (b"{}", b'{"title":null}', b'{"cost":7,"message_count":9,"todos":[]}'):
            answer = await exchange(server.address, inside(path, "PUT", body))
            assert (answer.status, answer.json["title"], answer.json["cost"]) == (200, "Chosen", 0)
        assert (await exchange(server.address, inside(path + "x", "PUT", b"{}"))).status == 400
        assert (await client.get_session(workspace, session.id)).title == "Chosen"


async def test_prompts_of_all_sessions_are_newest_first() -> None:
    """Not session by session: one that was used last may hold the oldest prompt."""
    async with place() as where, serving(where) as server:
        client, workspace = await server.opened()
        sessions = [await client.create_session(workspace) for _ in range(2)]
        recorder = server.hub.desk(workspace).workspace.engine.recorder
        for number, (second, session) in enumerate(((1, 0), (2, 1), (3, 0), (3, 0))):
            part = TextPart(Text(str(number)))
            message = Message((part,), MessageId(f"m{number}"), "user", sessions[session].id, "", "", second, second)
            await recorder.put(PutMessage(message))
        found = await client.list_all_user_messages(workspace)
        assert [message.id for message in found] == ["m3", "m2", "m1", "m0"]


async def test_a_file_that_was_read_has_one_name() -> None:
    """The one by which tools look for it: however a client spells it, what it has shown may be changed."""
    async with place() as where, serving(where) as server:
        client, workspace = await server.opened()
        project = where.project()
        os.symlink(project, f"{where.root}/link")
        real = f"{project}/notes.txt"
        for given in ("notes.txt", "./below/../notes.txt", real, f"{where.root}/link/notes.txt"):
            session = (await client.create_session(workspace)).id
            await client.mark_read(workspace, session, given)
            assert await client.list_read_files(workspace, session) == (real,)
            assert await client.last_read(workspace, session, "notes.txt") != NEVER
            assert await client.last_read(workspace, session, real) != NEVER
            assert await client.last_read(workspace, session, "other.txt") == NEVER


@pytest.mark.parametrize(("session", "path"), [("nobody", "a.txt"), ("", "a.txt"), (None, ""), (None, "a\0b")])
async def test_a_mark_that_makes_no_sense_is_refused(session: str | None, path: str) -> None:
    async with place() as where, serving(where) as server:
        client, workspace = await server.opened()
        known = (await client.create_session(workspace)).id
        with pytest.raises(ServerProblem) as refused:
            await client.mark_read(workspace, known if session is None else SessionId(session), path)
        assert refused.value.status == 400
        assert await client.list_read_files(workspace, known) == ()
