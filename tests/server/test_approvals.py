"""Permission requests through the real server: requested, answered once, announced to all clients, withdrawn with
their run.
"""

import asyncio
from pathlib import Path

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.view import View
from holdfast.domain.events import (
    ConfigChangedEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    RunCompleteEvent,
)
from holdfast.domain.ids import SessionId
from server.approval_client import approval_client, notices
from server.helpers import collect_run_ends, read_until, run_ended, send_prompt, server_directory, server_process


async def test_r10_request_is_listed_and_resolved_once_with_answering_client() -> None:
    """R10: exactly one of many answers resolves the request; the notification names the answering client."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        (ask,) = await one.pending_permissions()
        assert (ask.tool_name, ask.action, ask.path) == ("bash", "execute", one.server.directory.project())
        assert ask.params["command"] == "make"
        assert ask.rules == (f"bash(make) in {one.server.directory.project()}",)
        assert one.ran == []
        other = await one.server.client()
        body = {"permission": {"id": ask.id, "params": None}, "action": "allow"}
        answers = await asyncio.gather(*(who.grant(one.workspace, body) for who in (one.client, other) * 5))
        assert sum(answer.resolved for answer in answers) == 1
        items = await one.events_until_end(run)
        pending, granted = notices(items)
        assert (pending.granted, pending.denied, pending.id) == (False, False, ask.id)
        assert (granted.granted, granted.id, granted.action) == (True, ask.id, "allow")
        assert granted.by in (one.client.client_id, other.client_id)
        assert one.ran == ["make"]
        assert await one.pending_permissions(0) == ()


@pytest.mark.parametrize(("client_kind", "notified_kind"), [("editor", "editor"), ("a\x1b[2Jworld", ""), ("", "")])
async def test_notification_names_kind_of_answering_client(client_kind: str, notified_kind: str) -> None:
    """An unknown kind of client is omitted."""
    async with approval_client() as one:
        one.client.via = client_kind  # type: ignore[assignment]
        run = await one.bash(await one.session(), "make")
        assert await one.grant((await one.pending_permissions())[0], "allow")
        assert notices(await one.events_until_end(run))[-1].via == notified_kind


async def test_read_only_tool_needs_no_approval() -> None:
    async with approval_client() as one:
        session = await one.session()
        items = await one.events_until_end(await one.bash(session, "ls -la && git status"))
        assert notices(items) == []
        assert one.ran == ["ls -la && git status"]


async def test_denial_ends_turn_and_denial_with_reason_reaches_model() -> None:
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        assert await one.grant((await one.pending_permissions())[0], "deny")
        await one.events_until_end(run)
        assert [result.content for result in await one.results(session)] == ["User denied permission"]
        assert await one.finish_reasons(session) == ["end_turn"]

        run = await one.bash(session, "make")
        assert await one.grant((await one.pending_permissions())[0], "deny", "use ninja")
        await one.events_until_end(run)
        assert (await one.results(session))[-1].content == "User denied permission: use ninja"
        assert await one.finish_reasons(session) == ["end_turn", "tool_use", "end_turn"]

        run = await one.bash(session, "make", interactive=False)
        assert await one.grant((await one.pending_permissions())[0], "deny")
        await one.events_until_end(run)
        assert await one.finish_reasons(session) == ["end_turn", "tool_use", "end_turn", "tool_use", "end_turn"]
        assert one.ran == []


async def test_c60_session_grant_covers_same_request_in_same_session_only() -> None:
    """C-60: the same command is not requested again; another command, session or file is."""
    async with approval_client() as one:
        session, other = await one.session(), await one.session()
        run = await one.bash(session, "make")
        assert await one.grant((await one.pending_permissions())[0], "allow_session")
        await one.events_until_end(run)
        await one.events_until_end(await one.bash(session, "make"))
        assert one.ran == ["make", "make"]
        for directory, line in ((session, "make install"), (session, "make; make"), (other, "make")):
            run = await one.bash(directory, line)
            assert await one.grant((await one.pending_permissions())[0], "deny")
            await one.events_until_end(run)
        assert one.ran == ["make", "make"]

        run = await one.call_tools(session, ("write", {"file_path": "a", "content": "1"}))
        assert await one.grant((await one.pending_permissions())[0], "allow_session")
        await one.events_until_end(run)
        run = await one.call_tools(session, ("write", {"file_path": "b", "content": "1"}))
        assert await one.grant((await one.pending_permissions())[0], "deny")
        await one.events_until_end(run)
        project = Path(one.server.directory.project())
        assert (project / "a").exists()
        assert not (project / "b").exists()


async def test_allow_always_saves_the_displayed_rules() -> None:
    async with approval_client() as one:
        handle = one.server.manager.handles[0]
        asks, project = handle.owned.approvals, one.server.directory.project()
        session, other = await one.session(), await one.session()
        run = await one.bash(session, "make; npm test")
        (ask,) = await one.pending_permissions()
        assert await one.grant(ask, "allow_always")
        await one.events_until_end(run)
        saved = handle.services.config_store.read_scope(1)["permissions"]["allow"]
        assert saved == list(ask.rules) == [f"bash(make) in {project}", f"bash(npm test) in {project}"]
        await one.events_until_end(await one.bash(other, "make; npm test"))
        assert one.ran == ["make; npm test"] * 2

        def refuse(rule: str) -> None:
            raise OSError(rule)

        asks.save_rule = refuse
        run = await one.bash(session, "other")
        (ask,) = await one.pending_permissions()
        with pytest.raises(ServerProblem, match="allowed this once, but the rule could not be saved"):
            await one.grant(ask, "allow_always")
        await one.events_until_end(run)
        assert one.ran[-1] == "other"
        run = await one.bash(session, "other")
        assert await one.grant((await one.pending_permissions())[0], "deny")
        await one.events_until_end(run)


async def test_c47_open_requests_reach_late_clients_end_with_run_and_block_no_session() -> None:
    """C-47: a client that connects while a request is open sees it; a cancel withdraws it for all clients; other
    sessions continue.
    """
    async with approval_client() as one:
        session, other = await one.session(), await one.session()
        run = await one.bash(session, "make")
        (ask,) = await one.pending_permissions()
        late = await one.server.client()
        snapshot = await late.snapshot(one.workspace, session)
        assert [item["id"] for item in snapshot.permissions] == [ask.id]
        async with late.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, PermissionRequestEvent))
            await one.events_until_end(await one.bash(other, "ls"))
            assert one.ran == ["ls"]
            blocked = await one.bash(other, "make")
            assert len(await one.pending_permissions(2)) == 2
            await one.client.cancel_session(one.workspace, session)
            seen = await read_until(
                events,
                lambda item: isinstance(item.event, RunCompleteEvent) and item.event.change.object.run_id == run.run_id,
            )
        withdrawn = [item for item in notices(seen) if item.id == ask.id and item.withdrawn]
        assert [(item.granted, item.denied) for item in withdrawn] == [(False, True)]
        (left,) = await one.pending_permissions(1)
        assert left.run_id == blocked.run_id
        assert (await late.snapshot(one.workspace)).permissions[0]["id"] == left.id
        assert not await one.grant(ask)
        assert await one.grant(left)
        await one.events_until_end(blocked)
        assert one.ran == ["ls", "make"]


async def test_c45_c54_cancelled_step_has_no_further_effect() -> None:
    """C-45, C-54: a command that waits for its approval, and the `write` after it, have no effect once the run is
    cancelled, even if the request is answered at the same moment.
    """
    async with approval_client() as one:
        project = Path(one.server.directory.project())
        for _ in range(5):
            session = await one.session()
            run = await one.call_tools(
                session, ("bash", {"command": "make"}), ("write", {"file_path": "x", "content": "1"})
            )
            (ask,) = await one.pending_permissions()
            cancelled, _ = await asyncio.gather(
                one.client.cancel_session(one.workspace, session), one.grant(ask, "allow"), return_exceptions=True
            )
            assert not isinstance(cancelled, BaseException)
            for more in await one.client.pending_permissions(one.workspace):
                await one.grant(more)
            items = await one.events_until_end(run)
            assert [item.event.change.object.outcome for item in items if isinstance(item.event, RunCompleteEvent)][
                -1
            ] == "cancelled"
            assert not (project / "x").exists()
            assert await one.pending_permissions(0) == ()
        assert one.ran.count("make") <= 5


async def test_r5_answer_after_cancel_does_not_continue_tool() -> None:
    """The cancel is first; a later answer resolves nothing."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        (ask,) = await one.pending_permissions()
        await one.client.cancel_session(one.workspace, session)
        await one.events_until_end(run)
        assert not await one.grant(ask)
        assert one.ran == []


async def test_each_call_of_step_has_its_own_request() -> None:
    """Several requests are open at once; each call waits for its own answer."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, *(f"make {number}" for number in range(5)))
        asks = await one.pending_permissions(5)
        assert len({ask.tool_call_id for ask in asks}) == 5
        for done, ask in enumerate(reversed(asks)):
            assert len(one.ran) == done
            assert await one.grant(ask)
        await one.events_until_end(run)
        assert one.ran == [ask.params["command"] for ask in reversed(asks)]


async def test_denied_call_leaves_other_requests_of_step_open() -> None:
    """One denial ends the turn; the other requests are still answered one by one."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make 1", "make 2")
        first, second = await one.pending_permissions(2)
        assert await one.grant(first, "deny")
        assert await one.grant(second)
        await one.events_until_end(run)
        assert one.ran == [second.params["command"]]
        assert await one.finish_reasons(session) == ["end_turn"]


async def test_yolo_applies_to_workspace_and_is_visible_to_all_clients() -> None:
    async with approval_client() as one:
        session = await one.session()
        other = await one.server.client()
        cursor = (await one.client.snapshot(one.workspace)).cursor
        async with other.events(one.workspace, since=cursor) as events:
            await read_until(events, lambda item: item.number is None)
            await one.client.set_skip(one.workspace, skip=True)
            await read_until(events, lambda item: isinstance(item.event, ConfigChangedEvent))
        assert (await other.get_skip(one.workspace)).skip
        assert (await other.get_workspace(one.workspace)).yolo
        assert notices(await one.events_until_end(await one.bash(session, "make"))) == []
        assert one.ran == ["make"]
        await one.client.set_skip(one.workspace, skip=False)
        run = await one.bash(session, "make")
        assert await one.grant((await one.pending_permissions())[0], "deny")
        await one.events_until_end(run)


async def test_c49_close_or_answer_in_one_workspace_affects_no_other() -> None:
    """C-49: requests, grants and yolo belong to their workspace."""
    async with approval_client() as one:
        there = (await one.client.create_workspace(one.server.directory.project("other"))).id
        await one.client.set_skip(there, skip=True)
        session = await one.session()
        run = await one.bash(session, "make")
        (ask,) = await one.pending_permissions()
        assert await one.client.pending_permissions(there) == ()
        body = {"permission": {"id": ask.id, "params": {}}, "action": "allow"}
        assert not (await one.client.grant(there, body)).resolved
        await one.client.leave_workspace(there)
        assert await one.pending_permissions() == (ask,)
        assert await one.grant(ask)
        await one.events_until_end(run)


async def test_c55_server_stop_withdraws_open_requests() -> None:
    """C-55, C-56 for requests: they delay nothing; the stop withdraws them before the run ends `interrupted`."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        await one.pending_permissions()
        handle = one.server.manager.handles[0]
        received = handle.workspace.bus.subscribe(0)
        await handle.workspace.close()
        events = []
        while frames := await received.take():
            events += [frame.event for frame in frames]
        kinds = [event for event in events if isinstance(event, PermissionNotificationEvent | RunCompleteEvent)]
        assert isinstance(kinds[-2], PermissionNotificationEvent)
        assert kinds[-2].change.object.withdrawn
        assert isinstance(kinds[-1], RunCompleteEvent)
        assert kinds[-1].change.object.run_id == run.run_id
        assert handle.owned.approvals.permissions == ()


async def test_request_times_out_only_without_attached_client() -> None:
    async with approval_client() as one:
        asks = one.server.manager.handles[0].owned.approvals
        asks.timeout = lambda: 0.0
        session = await one.session()
        async with one.client.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: item.number is None)
            run = await one.bash(session, "make")
            seen = await read_until(events, lambda item: isinstance(item.event, PermissionRequestEvent))
            assert seen
            await one.pending_permissions(1)
        await one.pending_permissions(0)
        items = await one.events_until_end(run)
        assert notices(items)[-1].withdrawn
        (result,) = await one.results(session)
        assert "not answered in time" in result.content
        assert one.ran == []


async def test_invalid_grant_is_400() -> None:
    bodies: list[dict[str, object]] = [
        {},
        {"action": "allow"},
        {"permission": {"id": "x"}, "action": "allow"},
        {"permission": {"id": "x", "params": {}}, "action": "perhaps"},
        {"permission": {"id": "x", "params": {}}},
        {"permission": {"id": 5, "params": {}}, "action": "allow"},
        {"permission": None, "action": "allow"},
    ]
    async with approval_client() as one:
        for body in bodies:
            with pytest.raises(ServerProblem) as caught:
                await one.client.grant(one.workspace, body)
            assert caught.value.status == 400, body


async def test_answer_to_unknown_request_is_not_an_error() -> None:
    async with approval_client() as one:
        body = {"permission": {"id": "never", "params": None}, "action": "allow"}
        assert not (await one.client.grant(one.workspace, body)).resolved
        assert not (await one.client.cancel_question(one.workspace)).resolved
        assert not (await one.client.answer_question(one.workspace, {"responses": []})).resolved


async def test_request_with_unusual_text_is_transmitted() -> None:
    """Unpaired surrogates and long lines pass through the log, the stream and the list."""
    async with approval_client() as one:
        session = await one.session()
        line = "make \ud800 " + "x" * 50_000
        run = await one.bash(session, line.encode("utf-8", "replace").decode())
        (ask,) = await one.pending_permissions()
        assert len(ask.params["command"]) == len(line)
        assert await one.grant(ask, "deny", "no \U0001f600")
        await one.events_until_end(run)


async def test_deleting_session_withdraws_its_requests() -> None:
    async with approval_client() as one:
        session = await one.session()
        await one.bash(session, "make")
        await one.pending_permissions()
        await one.client.delete_session(one.workspace, session)
        assert await one.pending_permissions(0) == ()
        assert SessionId(session) not in {item.id for item in await one.client.list_sessions(one.workspace)}


async def test_c55_kill_leaves_no_request_and_no_effect() -> None:
    """C-55, R9: the run ends `interrupted`, its request is not listed, and its action is not performed."""
    async with server_directory() as directory:
        project = directory.project()
        async with server_process(directory) as running, Client(directory.address) as client:
            workspace = (await client.create_workspace(project)).id
            session = (await client.create_session(workspace, "s")).id
            await send_prompt(client, workspace, session, 'tool=write {"file_path": "x", "content": "1"}', "r1")
            while not await client.pending_permissions(workspace):
                pass
            running.process.kill()
            await running.wait()
        async with server_process(directory), Client(directory.address) as client:
            workspace = (await client.create_workspace(project)).id
            (end,) = await collect_run_ends(client, workspace, ["r1"])
            assert end.outcome == "interrupted"
            snapshot = await client.snapshot(workspace, session)
            assert (snapshot.permissions, snapshot.questions) == ((), ())
            view = View()
            async with client.events(workspace, since=0) as events:
                notified_kind = await read_until(events, run_ended("r1"))
            for item in notified_kind[:-1]:
                view.apply(item)
            assert view.permissions == {}, "R4: it is closed before the end"
            notices = [item.event for item in notified_kind if isinstance(item.event, PermissionNotificationEvent)]
            closed = [notice.change.object for notice in notices if notice.change.object.denied]
            assert [(notice.withdrawn, notice.by, notice.action) for notice in closed] == [(True, "", "")]
            assert not (Path(project) / "x").exists()
            (result,) = [item for message in snapshot.messages for item in message.tool_results]
            assert result.content == "Interrupted: the server stopped before this call was run."


async def test_saved_rule_of_earlier_version_for_relative_program_is_requested_again() -> None:
    async with approval_client() as one:
        handle, project = one.server.manager.handles[0], one.server.directory.project()
        handle.services.config_store.set(1, "permissions.allow", ["bash(./run.sh)", "bash(make)"])
        session = await one.session()
        await one.events_until_end(await one.bash(session, "make"))
        run = await one.bash(session, "./run.sh")
        (ask,) = await one.pending_permissions()
        problems = await one.client.config_problems(one.workspace)
        assert [(item.severity, item.line) for item in problems] == [("warning", 4)]
        assert "requested once more" in problems[0].text
        assert await one.grant(ask, "allow_always")
        await one.events_until_end(run)
        new = f"bash(./run.sh) in {project} using {project}/run.sh"
        assert handle.services.config_store.read_scope(1)["permissions"]["allow"] == ["bash(make)", new]
        await one.events_until_end(await one.bash(session, "./run.sh"))
        assert one.ran == ["make", "./run.sh", "./run.sh"]
        assert await one.client.config_problems(one.workspace) == ()
        with pytest.raises(ServerProblem, match="without its directory"):
            await one.client.config_set(one.workspace, "permissions.allow", [new, "bash(./other)"], scope=1)
        await one.client.config_set(one.workspace, "permissions.allow", ["bash(make)"], scope=1)
        run = await one.bash(session, "./run.sh")
        (ask,) = await one.pending_permissions()
        assert await one.grant(ask, "deny")
        await one.events_until_end(run)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("permissions.deny", ["bahs(x)"], "did you mean bash"),
        ("permissions.allow", ["bash(x"], "has no effect as it is written"),
        ("permissions.dney", ["bash"], "did you mean deny"),
        ("hooks.PreToolUs", [{"command": "x"}], "did you mean PreToolUse"),
        ("hooks.PreToolUse", [{"command": "x", "matcher": "["}], "not a regular expression"),
        ("tools.grep.timeuot", 3, "did you mean timeout"),
        ("options.disabled_tools", ["bahs"], "did you mean bash"),
    ],
)
async def test_ineffective_rule_is_refused_over_the_wire(key: str, value: object, expected: str) -> None:
    async with approval_client() as one:
        for scope in (0, 1):
            with pytest.raises(ServerProblem, match=expected):
                await one.client.config_set(one.workspace, key, value, scope=scope)
