"""Permissions through the real server: asked, answered once, told to everybody, withdrawn with their run."""

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


async def test_an_ask_is_listed_answered_once_and_told_with_its_winner() -> None:
    """R10: exactly one of many answers resolves it; everybody hears whose it was."""
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


@pytest.mark.parametrize(("said", "told"), [("editor", "editor"), ("a\x1b[2Jworld", ""), ("", "")])
async def test_the_kind_of_client_that_answered_is_told(said: str, told: str) -> None:
    """What nobody knows is told to nobody."""
    async with approval_client() as one:
        one.client.via = said  # type: ignore[assignment]
        run = await one.bash(await one.session(), "make")
        assert await one.grant((await one.pending_permissions())[0], "allow")
        assert notices(await one.events_until_end(run))[-1].via == told


async def test_what_only_looks_is_not_asked() -> None:
    async with approval_client() as one:
        session = await one.session()
        items = await one.events_until_end(await one.bash(session, "ls -la && git status"))
        assert notices(items) == []
        assert one.ran == ["ls -la && git status"]


async def test_a_no_stops_the_turn_and_a_reason_goes_to_the_model() -> None:
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


async def test_c60_allow_for_this_session_covers_what_was_shown_in_its_session_only() -> None:
    """C-60: the same line again is not asked; another line, another session, another file are."""
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


async def test_allow_always_saves_the_rules_that_were_shown() -> None:
    async with approval_client() as one:
        handle = one.server.manager.handles[0]
        asks, project = handle.workspace.approvals, one.server.directory.project()
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


async def test_c47_asks_are_seen_late_vanish_with_their_run_and_block_nobody() -> None:
    """C-47: a client that comes while an ask is open sees it; a cancel withdraws it for everybody; another session
    works on meanwhile.
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


async def test_c45_c54_nothing_of_a_step_happens_after_its_cancel() -> None:
    """C-45, C-54: a command that waits for its ask, and the `write` after it, have no effect once the run is cancelled,
    not even when the ask is answered at the same moment.
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


async def test_r5_a_cancelled_ask_never_lets_its_tool_go_on() -> None:
    """The cancel is there first; an answer that comes later resolves nothing."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        (ask,) = await one.pending_permissions()
        await one.client.cancel_session(one.workspace, session)
        await one.events_until_end(run)
        assert not await one.grant(ask)
        assert one.ran == []


async def test_one_ask_for_each_call_of_a_step_in_any_order() -> None:
    """Many at once: each call waits for its own answer."""
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


async def test_a_denied_call_spares_the_others_of_its_step_nothing() -> None:
    """One no stops the turn; the asks beside it are still answered one by one."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make 1", "make 2")
        first, second = await one.pending_permissions(2)
        assert await one.grant(first, "deny")
        assert await one.grant(second)
        await one.events_until_end(run)
        assert one.ran == [second.params["command"]]
        assert await one.finish_reasons(session) == ["end_turn"]


async def test_yolo_is_of_the_workspace_and_seen_by_everybody() -> None:
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


async def test_c49_closing_or_answering_in_one_workspace_disturbs_no_other() -> None:
    """C-49: asks, grants and yolo are of their workspace."""
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


async def test_c55_a_stopped_server_withdraws_what_is_open() -> None:
    """C-55, C-56 for asks: they delay nothing; the stop withdraws them before the run ends `interrupted`."""
    async with approval_client() as one:
        session = await one.session()
        run = await one.bash(session, "make")
        await one.pending_permissions()
        handle = one.server.manager.handles[0]
        heard = handle.workspace.bus.subscribe(0)
        await handle.workspace.close()
        events = []
        while frames := await heard.take():
            events += [frame.event for frame in frames]
        kinds = [event for event in events if isinstance(event, PermissionNotificationEvent | RunCompleteEvent)]
        assert isinstance(kinds[-2], PermissionNotificationEvent)
        assert kinds[-2].change.object.withdrawn
        assert isinstance(kinds[-1], RunCompleteEvent)
        assert kinds[-1].change.object.run_id == run.run_id
        assert handle.workspace.approvals.permissions == ()


async def test_an_ask_waits_while_somebody_is_there_and_runs_out_when_nobody_is() -> None:
    async with approval_client() as one:
        asks = one.server.manager.handles[0].workspace.approvals
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


async def test_grants_that_make_no_sense_are_400() -> None:
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


async def test_unknown_asks_are_not_errors() -> None:
    async with approval_client() as one:
        body = {"permission": {"id": "never", "params": None}, "action": "allow"}
        assert not (await one.client.grant(one.workspace, body)).resolved
        assert not (await one.client.cancel_question(one.workspace)).resolved
        assert not (await one.client.answer_question(one.workspace, {"responses": []})).resolved


async def test_odd_text_in_an_ask_breaks_nothing() -> None:
    """Half characters and long lines go through the log, the stream and the list."""
    async with approval_client() as one:
        session = await one.session()
        line = "make \ud800 " + "x" * 50_000
        run = await one.bash(session, line.encode("utf-8", "replace").decode())
        (ask,) = await one.pending_permissions()
        assert len(ask.params["command"]) == len(line)
        assert await one.grant(ask, "deny", "no \U0001f600")
        await one.events_until_end(run)


async def test_a_session_that_is_deleted_takes_its_asks_along() -> None:
    async with approval_client() as one:
        session = await one.session()
        await one.bash(session, "make")
        await one.pending_permissions()
        await one.client.delete_session(one.workspace, session)
        assert await one.pending_permissions(0) == ()
        assert SessionId(session) not in {item.id for item in await one.client.list_sessions(one.workspace)}


async def test_c55_after_a_kill_no_ask_is_left_and_nothing_is_done() -> None:
    """C-55, R9: the run ends `interrupted`, its ask is listed nowhere, and what it asked for is not done unasked."""
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
                told = await read_until(events, run_ended("r1"))
            for item in told[:-1]:
                view.apply(item)
            assert view.permissions == {}, "R4: it is closed before the end"
            notices = [item.event for item in told if isinstance(item.event, PermissionNotificationEvent)]
            closed = [notice.change.object for notice in notices if notice.change.object.denied]
            assert [(notice.withdrawn, notice.by, notice.action) for notice in closed] == [(True, "", "")]
            assert not (Path(project) / "x").exists()
            (result,) = [item for message in snapshot.messages for item in message.tool_results]
            assert result.content == "Interrupted: the server stopped before this call was run."


async def test_a_saved_rule_of_an_earlier_version_for_a_relative_program_is_asked_about_once_more() -> None:
    async with approval_client() as one:
        handle, project = one.server.manager.handles[0], one.server.directory.project()
        handle.services.config_store.set(1, "permissions.allow", ["bash(./run.sh)", "bash(make)"])
        session = await one.session()
        await one.events_until_end(await one.bash(session, "make"))
        run = await one.bash(session, "./run.sh")
        (ask,) = await one.pending_permissions()
        problems = await one.client.config_problems(one.workspace)
        assert [(item.severity, item.line) for item in problems] == [("warning", 4)]
        assert "asked about once more" in problems[0].text
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
        ("hooks.PreToolUse", [{"command": "x", "matcher": "["}], "no regular expression"),
        ("tools.grep.timeuot", 3, "did you mean timeout"),
        ("options.disabled_tools", ["bahs"], "did you mean bash"),
    ],
)
async def test_rules_that_have_no_effect_are_refused_over_the_wire(key: str, value: object, expected: str) -> None:
    async with approval_client() as one:
        for scope in (0, 1):
            with pytest.raises(ServerProblem, match=expected):
                await one.client.config_set(one.workspace, key, value, scope=scope)
