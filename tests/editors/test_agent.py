"""The agent of an editor without processes: each request, its effects on the server and the editor, and its errors."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from acp import RequestError, schema

from editors.agent_fixture import (
    AVAILABLE,
    EXTENSIONS,
    LOCAL,
    NOTES,
    PROBLEM,
    REMOTE,
    TCP,
    AgentFixture,
    Json,
    answer,
    chunk,
    open_agent,
    open_session,
    permission,
    session,
    snapshot,
    start_request,
    words,
)
from holdfast.acp import agent as agent_module
from holdfast.acp.initialize import initialize_result
from holdfast.acp.workspace_bridge import WorkspaceBridge
from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.errors import BadRequest
from holdfast.domain.events import (
    Change,
    MessageEvent,
)
from holdfast.domain.files import UndoneFile, UndoReport
from holdfast.domain.ids import SessionId
from holdfast.testing.gates import settle_down, until

# Errors.


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RequestError(-1, "as it is"), -1, "as it is"),
        (BadRequest("Bad."), -32602, "Bad."),
        *[(ServerProblem(status, "no"), -32602, "no") for status in (400, 404, 409, 413)],
        *[(ServerProblem(status, "no"), -32603, "no") for status in (401, 500, 503)],
        (ServerProblem(500), -32603, "The server answered with status 500."),
        (ClientError("Lost."), -32603, "Lost."),
        (ConnectionError("x"), -32603, "The editor has disconnected."),
        (ValueError("secret"), -32603, "Internal error of holdfast acp."),
    ],
)
async def test_each_error_of_a_request(error: Exception, code: int, text: str) -> None:
    @agent_module._with_rpc_errors
    async def fails() -> None:
        raise error

    with pytest.raises(RequestError) as raised:
        await fails()
    assert (raised.value.code, str(raised.value)) == (code, text)

    @agent_module._with_rpc_errors
    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await is_cancelled()


async def _code_of(request: Any) -> tuple[int, str]:  # noqa: ANN401 - of any method
    with pytest.raises(RequestError) as raised:
        await request
    return raised.value.code, str(raised.value)


# Handshake.


async def test_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_agent(monkeypatch) as fixture:
        result = await fixture.agent.initialize(protocol_version=1)
        assert result.model_dump(by_alias=True, exclude_none=True, exclude_unset=True) == initialize_result(1)
        assert not fixture.agent.supports_forms
        forms = schema.ClientCapabilities.model_validate({"elicitation": {"form": {}}})
        for capabilities, expected in (
            (forms, True),
            (None, True),
            (schema.ClientCapabilities(), False),
            (forms, True),
        ):
            await fixture.agent.initialize(protocol_version=1, client_capabilities=capabilities)
            assert fixture.agent.supports_forms == expected
        assert await _code_of(fixture.agent.authenticate(method_id="x")) == (
            -32602, "Signing in is not supported (x): keys are stored by holdfast login."
        )  # fmt: skip
        bridge = await fixture.agent._bridge_for("/")
        assert bridge.approvals.supports_forms


# Sessions.


async def test_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_agent(monkeypatch, list_commands=EXTENSIONS, get_workspace=NOTES) as fixture:
        created = await fixture.agent.new_session(cwd="/")
        assert created.session_id == "new"
        assert created.modes is not None
        modes = created.modes
        assert (modes.current_mode_id, [mode.id for mode in modes.available_modes]) == ("ask", ["ask", "yolo"])
        assert fixture.requests() == [("enter", "/"), ("snapshot",), ("create_session",), ("snapshot", "new")]
        assert await fixture.updates() == [], "an editor does not know the session before the response"
        fixture.pipes.on_sent({"id": 1, "result": {"sessionId": "new"}})
        assert await fixture.updates() == [("new", AVAILABLE), ("new", PROBLEM)]
        assert fixture.environments == [tuple(f"{name}={value}" for name, value in os.environ.items())]
        assert fixture.connections[0].cursor == 5
        # A problem is shown once.
        await fixture.agent.new_session(cwd="/")
        fixture.pipes.on_sent({"id": 2, "result": {"sessionId": "new"}})
        assert await fixture.updates() == [("new", AVAILABLE)]
    assert fixture.requests()[-1] == ("leave", "/")


async def test_sessions_are_opened_with_or_without_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer("hello")
    async with open_agent(monkeypatch, snapshot=snapshot(5, before), list_commands=EXTENSIONS) as fixture:
        loaded = await fixture.agent.load_session(cwd="/", session_id="s")
        assert loaded is not None
        assert loaded.modes is not None
        assert loaded.modes.current_mode_id == "ask"
        assert fixture.requests() == [("enter", "/"), ("snapshot",), ("snapshot", "s")]
        assert fixture.sent == [("s", chunk("hello")), ("s", AVAILABLE)], "they precede the response"
        await fixture.updates()
        await fixture.agent.set_session_mode(session_id="s", mode_id="yolo")
        resumed = await fixture.agent.resume_session(cwd="/", session_id="s")
        assert resumed.modes is not None
        assert resumed.modes.current_mode_id == "yolo"
        assert fixture.sent == [("s", AVAILABLE)]
        await fixture.updates()
        # What the snapshot contains is not sent again, what follows is.
        await fixture.event(MessageEvent(Change("updated", answer("hello you"))), 5)
        assert await fixture.updates() == []
        await fixture.event(MessageEvent(Change("updated", answer("hello you"))), 6)
        assert await fixture.updates() == [("s", chunk(" you"))]
        await fixture.event(MessageEvent(Change("deleted", answer("hello you all"))), 7)
        assert await fixture.updates() == []
        gone = (-32002, "There is no such session in this directory: see the list of sessions.")
        for name in ("unknown", "sub"):
            for method in (fixture.agent.load_session, fixture.agent.resume_session):
                assert await _code_of(method(cwd="/", session_id=name)) == gone
            not_open = (-32002, "That session is not open here: load it first.")
            assert await _code_of(fixture.agent.prompt(session_id=name, prompt=words("hi"))) == not_open


async def test_bridges_are_opened_once_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any  # noqa: ANN401
) -> None:  # fmt: skip
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    real = str(tmp_path.resolve())
    async with open_agent(monkeypatch, enter=[ClientError("Away."), None, None]) as fixture:
        for path in ("relative", "", "/nul\0"):
            assert await _code_of(fixture.agent.new_session(cwd=path)) == (-32602, "cwd must be an absolute path.")
        assert fixture.requests() == []
        assert await _code_of(fixture.agent.new_session(cwd=str(link))) == (-32603, "Away.")
        assert fixture.requests() == [("enter", real), ("leave", real)]
        one, two = await asyncio.gather(fixture.agent._bridge_for(str(link)), fixture.agent._bridge_for(real))
        assert one is two
        assert fixture.requests() == [("enter", real), ("snapshot",)]
        assert await fixture.agent._bridge_for("/") is not one
    assert fixture.requests() == [("enter", "/"), ("snapshot",), ("leave", real), ("leave", "/")]


async def test_sessions_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = (
        session("old", updated_at=1), session("sub", updated_at=9, parent_session_id=SessionId("old")),
        session("late", updated_at=7),
    )  # fmt: skip
    async with open_agent(monkeypatch, list_sessions=sessions) as fixture:
        assert (await fixture.agent.list_sessions()).sessions == []
        rows = [("late", "/", "1970-01-01T00:00:07+00:00"), ("old", "/", "1970-01-01T00:00:01+00:00")]
        for cwd in ("/", None):
            listed = (await fixture.agent.list_sessions(cwd=cwd)).sessions
            assert [(item.session_id, item.cwd, item.updated_at) for item in listed] == rows
        await fixture.agent.list_sessions(cwd="/usr")
        both = (await fixture.agent.list_sessions()).sessions
        assert [item.cwd for item in both] == ["/", "/", "/usr", "/usr"]
        assert len((await fixture.agent.list_sessions(cwd="/usr")).sessions) == 2


SERVER: Any = schema.McpServerStdio(name="my db", command="db", args=["-x"], env=[])


@pytest.mark.parametrize(("where", "is_used"), [(LOCAL, True), (TCP, False), (REMOTE, False)])
@pytest.mark.parametrize("method", ["new_session", "load_session", "resume_session"])
async def test_mcp_servers_of_an_editor(
    where: ServerLocation, is_used: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_agent(monkeypatch, where, mcp_lend=[None, ServerProblem(500, "no"), None]) as fixture:
        name = {} if method == "new_session" else {"session_id": "s"}
        await getattr(fixture.agent, method)(cwd="/", mcp_servers=[SERVER], **name)
        lent = [entry for entry in fixture.requests() if entry[0] == "mcp_lend"]
        assert len(lent) == is_used
        if is_used:
            assert [(key, item.command, item.args) for key, item in lent[0][1].items()] == [("my_db", "db", ("-x",))]  # type: ignore[attr-defined]
        # A failure is logged only, and they are registered again with each prompt, for a server that was restarted.
        await fixture.agent._open_session("/", "s", replays=False)
        fixture.requests()
        for _ in range(2):
            prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
            await fixture.end("cancelled")
            await prompt
            assert [entry[0] for entry in fixture.requests()] == ["mcp_lend", "send_prompt"][not is_used :]


# Modes.


async def test_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch) as fixture:
        agent = fixture.agent
        assert await _code_of(agent.set_session_mode(session_id="s", mode_id="x")) == (-32602, "A mode is ask or yolo.")
        assert (await _code_of(agent.set_session_mode(session_id="t", mode_id="ask")))[0] == -32002
        prompt = start_request(agent.prompt(session_id="s", prompt=words("hi")))
        await until(lambda: any(entry[0] == "send_prompt" for entry in fixture.log))
        run = next(iter(agent._prompts["s"]))
        bridge = agent._sessions["s"]
        for id, owner in (("own", run), ("other", "x")):
            request = permission(id, run=owner)
            fixture.results["snapshot"] = snapshot(5, permissions=(request,))
            await bridge.attach(SessionId("new"), replays=False)
        await until(lambda: len(fixture.asked) == 2)
        fixture.requests()
        await agent.set_session_mode(session_id="s", mode_id="ask")
        await settle_down()
        assert fixture.requests() == []
        await agent.set_session_mode(session_id="s", mode_id="yolo")
        await until(lambda: bool(fixture.log))
        await settle_down()
        granted: list[Any] = fixture.requests()
        answers = [(name, body["permission"]["id"], body["action"]) for name, body in granted]
        assert answers == [("grant", "own", "allow")]
        prompt.cancel()
        await asyncio.wait([prompt])


# Prompts.


@pytest.mark.parametrize(
    ("outcome", "fields", "reason", "expected"),
    [
        ("completed", {}, "end_turn", "end_turn"),
        ("completed", {}, "max_tokens", "max_tokens"),
        ("completed", {}, "content_filter", "refusal"),
        ("completed", {}, None, "end_turn"),
        ("cancelled", {}, None, "cancelled"),
        ("failed", {"error": "limit: 5 steps"}, None, "max_turn_requests"),
        ("failed", {"error": "No limit: left"}, None, "No limit: left"),
        ("failed", {}, None, "The run failed."),
        ("interrupted", {}, None, "The server was stopped during this run. Its results so far are kept: send a prompt "
         "to continue."),
    ],
)  # fmt: skip
async def test_end_of_a_prompt(
    outcome: str, fields: Json, reason: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = (answer("x", "error", id="earlier"), *((answer("y", reason),) if reason else ()))
    async with open_session(monkeypatch, list_messages=messages) as fixture:
        for mode in ("ask", "yolo"):
            await fixture.agent.set_session_mode(session_id="s", mode_id=mode)
            image = schema.ImageContentBlock(type="image", data="eA==", mime_type="image/png")
            prompt = start_request(fixture.agent.prompt(session_id="s", prompt=[*words("/init", "now"), image]))
            await fixture.end(outcome, **fields)
            if " " in expected:
                assert await _code_of(prompt) == (-32603, expected)
            else:
                assert (await prompt).stop_reason == expected
            (_, message), *more = fixture.requests()
            assert more == ([("list_messages", "s")] if outcome == "completed" else [])
            values = (message.session_id, message.prompt, message.client_id, message.interactive, message.yolo)  # type: ignore[attr-defined]
            assert values == ("s", "/init now", "me", True, mode == "yolo")
            assert [item.content for item in message.attachments] == [b"x"]  # type: ignore[attr-defined]
            assert fixture.agent._prompts == {"s": {}}
            assert not fixture.agent._sessions["s"]._expected_ends


async def test_updates_precede_the_response_to_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch, list_messages=()) as fixture:
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
        await until(lambda: any(entry[0] == "send_prompt" for entry in fixture.log))
        fixture.may_send.clear()
        await fixture.event(MessageEvent(Change("created", answer("one"))), 6)
        await fixture.end("completed")
        await settle_down()
        assert not prompt.done(), "the editor has not received the answer yet"
        fixture.may_send.set()
        await prompt
        assert fixture.sent == [("s", chunk("one"))]


async def test_an_opening_that_is_not_complete_ends_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = AgentFixture(monkeypatch)
    opening = asyncio.Event()

    async def hang(_: object) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(WorkspaceBridge, "open", hang)
    request = start_request(fixture.agent.new_session(cwd="/"))
    await opening.wait()
    await fixture.agent._close()
    assert fixture.requests() == [("leave", "/")], "it is over when the agent is closed"
    await asyncio.wait([request])
    await fixture.editor.close()


DONE = UndoReport((UndoneFile("a", "restored", 1), UndoneFile("b", "refused", 1, "", "edited")), True)


@pytest.mark.parametrize(
    ("text", "results", "requests", "said"),
    [
        ("/summarize", {}, [("summarize", "s")], "The session was summarised."),
        ("/undo all", {"undo_changes": DONE}, ["undo_changes"], "Undone:\n- a: restored\n- b: refused (edited)"),
        ("/undo", {"undo_changes": msgspec.structs.replace(DONE, is_done=False)}, ["undo_changes"],
         "Nothing was undone:\n- a: restored\n- b: refused (edited)"),
        ("/undo", {"undo_changes": UndoReport((), True)}, ["undo_changes"], "There is nothing to undo."),
    ],
)  # fmt: skip
async def test_built_in_commands(
    text: str, results: Json, requests: list[Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_session(monkeypatch, **results) as fixture:
        assert (await fixture.agent.prompt(session_id="s", prompt=words(text))).stop_reason == "end_turn"
        log = fixture.requests()
        if requests == ["undo_changes"]:
            assert [(name, body.session_id, body.force) for name, body in log] == [("undo_changes", "s", False)]  # type: ignore[attr-defined]
        else:
            assert log == requests
        assert fixture.sent == [("s", chunk(said))], "it precedes the response"


async def test_init_sends_the_prompt_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch, init_prompt=SimpleNamespace(prompt="describe"), list_messages=()) as fixture:
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("/init")))
        await fixture.end("completed")
        await prompt
        log = fixture.requests()
        assert [entry[0] for entry in log] == ["init_prompt", "send_prompt", "list_messages"]
        assert log[1][1].prompt == "describe"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("errors", "entered", "sends", "raised"),
    [
        ([None], 0, 1, ""),
        ([Unreachable("x"), None], 1, 2, ""),
        ([ConnectionLost("x"), None], 1, 2, ""),
        ([Unreachable("x"), Unreachable("again")], 1, 2, "again"),
        ([TimedOut("late")], 0, 1, "late"),
        ([ServerProblem(500, "no")], 0, 1, "no"),
    ],
)
async def test_a_prompt_restarts_the_server(
    errors: list[Any], entered: int, sends: int, raised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_session(monkeypatch, send_prompt=[*errors], list_messages=()) as fixture:
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
        if raised:
            assert await _code_of(prompt) == (-32603, raised)
        else:
            await until(lambda: len([entry for entry in fixture.log if entry[0] == "send_prompt"]) == sends)
            await fixture.end("completed")
            await prompt
        log = fixture.requests()
        assert [entry[0] for entry in log].count("enter") == entered
        runs = [entry[1].run_id for entry in log if entry[0] == "send_prompt"]  # type: ignore[attr-defined]
        assert (len(runs), len({*runs})) == (sends, 1), "the run id makes a repetition safe"
        assert not fixture.agent._sessions["s"]._expected_ends


# Cancelling.


@pytest.mark.parametrize("status", [0, 404, 500])
async def test_cancel_of_own_runs(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ServerProblem(status, "no") if status else None
    async with open_session(monkeypatch, cancel_run=error) as fixture:
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
        await until(lambda: any(entry[0] == "send_prompt" for entry in fixture.log))
        (run,) = fixture.agent._prompts["s"]
        await settle_down()
        fixture.log[:] = [entry for entry in fixture.log if entry[0] == "send_prompt"]
        for request in (fixture.agent.cancel, fixture.agent.close_session):
            if status == 500:
                assert (await _code_of(request(session_id="s")))[1] == "no"
            else:
                await request(session_id="s")
            assert [entry for entry in fixture.log if entry[0] != "send_prompt"] == [("cancel_run", run)]
            fixture.log[:] = [entry for entry in fixture.log if entry[0] == "send_prompt"]
        await fixture.end("cancelled")
        assert (await prompt).stop_reason == "cancelled"


async def test_cancel_without_own_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_session(monkeypatch) as fixture:
        await fixture.agent.cancel(session_id="unknown")
        assert fixture.requests() == []
        await fixture.agent.cancel(session_id="s")
        assert fixture.requests() == [("cancel_session", "s")]
        await fixture.agent.close_session(session_id="s")
        await fixture.agent.close_session(session_id="s")
        await fixture.agent.cancel(session_id="s")
        assert fixture.requests() == []
        await fixture.event(MessageEvent(Change("created", answer("one"))), 6)
        assert await fixture.updates() == [], "a closed session is not followed"
        assert (await _code_of(fixture.agent.prompt(session_id="s", prompt=words("x"))))[0] == -32002


async def test_a_cancel_before_the_prompt_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not know the run yet, so the cancel is repeated after the prompt."""
    async with open_session(monkeypatch, list_messages=()) as fixture:
        gate = asyncio.Event()
        bridge = fixture.agent._sessions["s"]
        send = bridge.send

        async def slow(message: Any) -> None:  # noqa: ANN401
            await gate.wait()
            await send(message)

        monkeypatch.setattr(bridge, "send", slow)
        fixture.results["cancel_run"] = [ServerProblem(404, "no"), None]
        prompt = start_request(fixture.agent.prompt(session_id="s", prompt=words("hi")))
        await settle_down()
        (run,) = fixture.agent._prompts["s"]
        await fixture.agent.cancel(session_id="s")
        gate.set()
        await fixture.end("cancelled")
        assert (await prompt).stop_reason == "cancelled"
        assert [entry[0] for entry in fixture.requests()] == ["cancel_run", "send_prompt", "cancel_run"]
        assert run
