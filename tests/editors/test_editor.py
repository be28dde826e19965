"""Behaviour of an editor over real pipes, with the protocol's own client."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from acp import RequestError, image_block, resource_block, resource_link_block, text_block
from acp.helpers import embedded_text_resource
from acp.schema import ClientCapabilities, ElicitationCapabilities, ElicitationFormCapabilities, McpServerStdio

from cli.isolated_home import IsolatedHome
from editors.editor_client import TIMEOUT, EditorClient, editor_client, server_client
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import HelloEvent, McpEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import BinaryPart, text_of
from holdfast.domain.settings import McpSettings
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.gates import start
from server.helpers import run_ended

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITE = 'tool=write {"file_path": "note.txt", "content": "one\\ntwo\\n"}'
QUESTION = 'tool=question {"questions": [{"type": "yes_no", "question": "Shall I?", "description": "Now."}]}'
NONSENSE = (
    b"nonsense {",
    b"[]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"jsonrpc":"2.0","id":{},"result":1}',
    b'{"jsonrpc":"2.0","id":9,"error":1}',
    b'{"jsonrpc":"2.0","method":5}',
    b'{"jsonrpc":"2.0","method":"session/cancel"}',
)
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def kept(home: IsolatedHome) -> AsyncIterator[EditorClient]:
    """One editor for most tests, because starting one is slow."""
    shout = home.home / ".config" / "holdfast" / "commands" / "shout.md"
    shout.parent.mkdir(parents=True)
    shout.write_text("---\ndescription: Be loud\n---\nwords=$ARGUMENTS of this\n")
    async with editor_client(home) as editor:
        yield editor


@pytest.fixture
def editor(kept: EditorClient, home: IsolatedHome) -> EditorClient:
    """Reset the editor."""
    kept.clear()
    (home.work / "note.txt").unlink(missing_ok=True)
    return kept


async def test_turn_is_streamed(home: IsolatedHome, editor: EditorClient) -> None:
    """Thoughts, text, tools with their kinds and locations, the plan; all before the response to the prompt."""
    todos = json.dumps({"todos": [{"content": "Look", "status": "in_progress", "active_form": "Looking"}]})
    (home.work / "a.py").write_text("print(1)\n")
    session = await editor.session()
    await editor.until(lambda: editor.updates(session, "available_commands_update"))
    done = await editor.prompt(session, f'think words=20 tool=view {{"file_path": "a.py"}} tool=todos {todos}')
    assert done.stop_reason == "end_turn"
    assert editor.text(session) == " ".join(f"word{number}" for number in range(1, 21))
    assert editor.text(session, "agent_thought_chunk") == "I pretend to think about it." * 3
    view, plan = editor.calls(session).values()
    assert (view["kind"], view["title"], view["status"]) == ("read", "view a.py", "completed")
    assert view["locations"] == [{"path": str(home.work / "a.py")}]
    assert "print(1)" in view["content"][0]["content"]["text"]
    assert (plan["kind"], plan["status"]) == ("think", "completed")
    entries = editor.updates(session, "plan")[-1]["entries"]
    assert entries == [{"content": "Look", "priority": "medium", "status": "in_progress"}]
    assert not editor.updates(session, "user_message_chunk"), "an editor shows its own prompt itself"
    names = editor.updates(session, "available_commands_update")[0]["availableCommands"]
    assert {"init", "summarize", "undo", "shout"} <= {item["name"] for item in names}
    await editor.prompt(session, "/shout 4")
    assert editor.text(session).endswith("word1 word2 word3 word4")


async def test_everything_on_stdout_is_the_protocol(alone: IsolatedHome) -> None:
    """Invalid input on stdin is skipped, and its end is the end of the process."""
    process = await asyncio.create_subprocess_exec(
        *_command(), env=alone.environment, cwd=alone.work, stdin=-1, stdout=-1, stderr=-1
    )
    ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    new = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": str(alone.work), "mcpServers": []}}
    bad = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": {"sessionId": "x", "prompt": []}}
    odd = {"jsonrpc": "2.0", "id": 4, "method": "no/such", "params": {}}
    relative = {"jsonrpc": "2.0", "id": 5, "method": "session/new", "params": {"cwd": "w", "mcpServers": []}}
    sense = (json.dumps(item).encode() for item in (ask, new, bad, odd, relative))
    lines = b"\n".join([NONSENSE[0], next(sense), *NONSENSE, *sense])
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(lines + b"\n")
    answers: dict[int, dict[str, object]] = {}
    while len(answers) < 5:
        message = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        assert message["jsonrpc"] == "2.0"
        if "method" not in message:
            answers[message["id"]] = message
    process.stdin.close()
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    assert b"Traceback" not in err
    assert "result" in answers[2]
    assert [answers[number]["error"]["code"] for number in (3, 4, 5)] == [-32002, -32601, -32602]  # type: ignore[index]
    assert "absolute" in str(answers[5]["error"])


async def test_change_is_shown_before_approval(home: IsolatedHome, editor: EditorClient) -> None:
    session = await editor.session()
    done = await editor.prompt(session, f"please {WRITE}")
    assert done.stop_reason == "end_turn"
    call, options = editor.asked[0]
    assert {item.kind for item in options} == {"allow_once", "allow_always", "reject_once"}
    assert call.kind == "edit"
    assert call.content is not None
    change = call.content[0].model_dump(by_alias=True, exclude_none=True)
    place = str(home.work / "note.txt")
    assert change == {"type": "diff", "path": place, "newText": "one\ntwo\n"}
    notifications = editor.calls(session)[call.tool_call_id]
    assert (notifications["status"], notifications["locations"]) == ("completed", [{"path": place}])
    assert (home.work / "note.txt").read_text() == "one\ntwo\n"
    # The same once more, denied: the turn is over, and the call is not left open.
    (home.work / "note.txt").unlink()
    editor.choose = lambda _: "deny"
    done = await editor.prompt(session, f"again {WRITE}")
    assert done.stop_reason == "end_turn"
    assert [item["status"] for item in editor.calls(session).values()] == ["completed", "failed"]
    assert not (home.work / "note.txt").exists()


async def test_r10_request_answered_elsewhere_is_withdrawn(home: IsolatedHome, editor: EditorClient) -> None:
    """R10: the first answer counts, and the request is closed everywhere."""
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        editor.choose = lambda _: None
        prompt = start(editor.prompt(session, f"please {WRITE}"))
        await editor.until(lambda: editor.asked)
        requests = [ask for ask in await client.pending_permissions(workspace) if ask.session_id == session]
        await client.grant(
            workspace, {"permission": {"id": requests[0].id, "params": requests[0].params}, "action": "allow"}
        )
        assert (await prompt).stop_reason == "end_turn"
        request = next(item for item in editor.raw if item.get("method") == "session/request_permission")
        withdrawn = [item["params"] for item in editor.raw if item.get("method") == "$/cancel_request"]
        assert withdrawn == [{"requestId": request["id"]}]


async def test_cancelling_ends_the_turn_as_cancelled(home: IsolatedHome, editor: EditorClient) -> None:
    """Also with an open question, and before the prompt was received."""
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        prompt = start(editor.prompt(session, "words=5000 pause=10"))
        await editor.until(lambda: "word3" in editor.text(session))
        await editor.agent.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        editor.choose = lambda _: ""
        assert (await editor.prompt(session, 'tool=bash {"command": "touch x"}')).stop_reason == "cancelled"
        prompt = start(editor.prompt(session, "words=5000 pause=10 at once"))
        await asyncio.sleep(0)
        await editor.agent.cancel(session_id=session)
        assert (await prompt).stop_reason == "cancelled"
        runs = await client.list_runs(workspace, session=SessionId(session))
        assert {run.outcome for run in runs} == {"cancelled"}


async def test_a_session_is_loaded_listed_and_resumed(home: IsolatedHome, editor: EditorClient) -> None:
    session = await editor.session()
    await editor.prompt(session, "think words=3 tool=ls")
    before = editor.text(session), editor.calls(session)
    async with editor_client(home) as other:
        listed = await other.agent.list_sessions(cwd=other.cwd)
        assert session in [item.session_id for item in listed.sessions]
        assert all(item.cwd == other.cwd and item.updated_at for item in listed.sessions)
        loaded = await other.agent.load_session(cwd=other.cwd, session_id=session)
        assert loaded is not None
        assert loaded.modes is not None
        assert loaded.modes.current_mode_id == "ask"
        assert other.text(session, "user_message_chunk") == "think words=3 tool=ls"
        assert other.text(session) == before[0]
        assert _shown(other.calls(session)) == _shown(before[1])
    await editor.agent.close_session(session_id=session)
    editor.clear()
    await editor.agent.resume_session(session_id=session, cwd=editor.cwd)
    assert not editor.text(session, "user_message_chunk")
    await editor.prompt(session, "words=2")
    assert editor.text(session) == "word1 word2"
    with pytest.raises(RequestError, match="no such session"):
        await editor.agent.load_session(cwd=editor.cwd, session_id="nobody")
    assert "not open here" in await editor.prompt_error("nobody", "words=1")
    await editor.agent.close_session(session_id=session)
    assert "not open here" in await editor.prompt_error(session, "words=1")


def _shown(calls: dict[str, dict[str, object]]) -> list[object]:
    return [[item.get(key) for key in ("title", "kind", "status", "content")] for item in calls.values()]


async def test_images_and_files_are_attached(home: IsolatedHome, editor: EditorClient) -> None:
    (home.work / "a b.py").write_text("x = 1\n")
    uri = (home.work / "a b.py").as_uri()
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        blocks: list[Any] = [
            text_block("Look at "),
            resource_link_block("a b.py", uri),
            text_block(", "),
            resource_block(embedded_text_resource("zed:///selection", "some text")),
            image_block(PIXEL, "image/png"),
        ]
        await editor.agent.prompt(session_id=session, prompt=blocks)
        prompt = (await client.list_messages(workspace, SessionId(session)))[0]
        assert text_of(prompt) == 'Look at @"a b.py", zed:///selection'
        files = {part.data.mime_type: part.data.data for part in prompt.parts if isinstance(part, BinaryPart)}
        assert files == {"text/plain": b"some text", "image/png": base64.b64decode(PIXEL)}
        for bad in (image_block("%%%", "image/png"), image_block(PIXEL, "image/tiff")):
            with pytest.raises(RequestError, match=r"base64|PNG"):
                await editor.agent.prompt(session_id=session, prompt=[text_block("see"), bad])


async def test_actions_of_other_clients_are_shown(home: IsolatedHome, editor: EditorClient) -> None:
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        await client.send_prompt(workspace, AgentMessage(SessionId(session), "words=4 from elsewhere", RunId("")))
        await editor.until(lambda: editor.text(session) == "word1 word2 word3 word4")
        assert editor.text(session, "user_message_chunk") == "words=4 from elsewhere"
        # It can be cancelled from here.
        await client.send_prompt(workspace, AgentMessage(SessionId(session), "words=5000 pause=10", RunId("other")))
        await editor.until(lambda: "word6" in editor.text(session))
        await editor.agent.cancel(session_id=session)
        await _ended(client, workspace, RunId("other"))


async def _ended(client: Client, workspace: WorkspaceId, run: RunId) -> None:
    async with asyncio.timeout(TIMEOUT), client.events(workspace, since=0) as events:
        async for item in events:
            if run_ended(run)(item):
                return


async def test_c46_killed_server_is_replaced(alone: IsolatedHome) -> None:
    """C-46: the active run is reported as an error, and the next prompt starts a new server."""
    async with editor_client(alone) as editor:
        session = await editor.session()
        prompt = start(editor.prompt_error(session, "words=5000 pause=10"))
        await editor.until(lambda: "word3" in editor.text(session))
        process = alone.server_process()
        assert process is not None
        os.kill(process, 9)
        assert "was stopped" in await prompt
        await editor.prompt(session, "words=2 again")
        assert editor.text(session).endswith("word1 word2")
        again = alone.server_process()
        assert again is not None
        assert again != process
        os.kill(again, 9)
        await editor.prompt(session, "words=3 at once")
        assert editor.text(session).endswith("word1 word2 word3")


@pytest.mark.parametrize("requests", [WRITE, QUESTION])
async def test_r10_requests_of_killed_server_are_withdrawn(alone: IsolatedHome, requests: str) -> None:
    """R10: the request ends with its run; a later answer has no effect."""
    async with editor_client(alone) as editor:
        session = await editor.session()
        editor.choose = lambda _: None
        prompt = start(editor.prompt_error(session, f"please {requests}"))
        await editor.until(lambda: editor.asked)
        process = alone.server_process()
        assert process is not None
        os.kill(process, 9)
        assert "was stopped" in await prompt
        request = next(item for item in editor.raw if item.get("method") == "session/request_permission")
        await editor.until(lambda: [item for item in editor.raw if item.get("method") == "$/cancel_request"])
        withdrawn = [item["params"] for item in editor.raw if item.get("method") == "$/cancel_request"]
        assert withdrawn == [{"requestId": request["id"]}]
        await editor.prompt(session, "words=2 again")
        assert editor.text(session).endswith("word1 word2")


async def test_two_modes(home: IsolatedHome, editor: EditorClient) -> None:
    """Yolo requires no approval; it applies to prompts of this editor only."""
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        await editor.agent.set_session_mode(session_id=session, mode_id="yolo")
        await editor.prompt(session, f"please {WRITE}")
        assert (home.work / "note.txt").exists()
        assert not editor.asked
        assert (await client.get_skip(workspace)).skip is False
        (run,) = await client.list_runs(workspace, session=SessionId(session))
        assert run.yolo
        # Selected during a request, it is the answer.
        (home.work / "note.txt").unlink()
        await editor.agent.set_session_mode(session_id=session, mode_id="ask")
        editor.choose = lambda _: None
        prompt = start(editor.prompt(session, f"again {WRITE}"))
        await editor.until(lambda: editor.asked)
        await editor.agent.set_session_mode(session_id=session, mode_id="yolo")
        assert (await prompt).stop_reason == "end_turn"
        assert (home.work / "note.txt").exists()
        with pytest.raises(RequestError, match="ask or yolo"):
            await editor.agent.set_session_mode(session_id=session, mode_id="rage")


async def test_settings_errors_are_shown_and_unreadable_deny_rule_needs_approval(
    home: IsolatedHome, editor: EditorClient
) -> None:
    """Also in the editor's yolo mode; the rules to be saved are shown in full."""
    settings = home.work / "holdfast.toml"
    settings.write_text("permissions.deny = ['bahs(x)']\n")
    try:
        session = await editor.session()
        await editor.until(lambda: f"{settings}:1: permissions.deny[0]" in json.dumps(editor.updates(session)))
        await editor.agent.set_session_mode(session_id=session, mode_id="yolo")
        editor.choose = lambda _: "deny"
        await editor.prompt(session, f"please {WRITE}")
        assert len(editor.asked) == 1
        assert "is not valid" in json.dumps(editor.asked[0], default=str)
        assert not (home.work / "note.txt").exists()
    finally:
        settings.unlink()
    editor.asked.clear()
    await editor.agent.set_session_mode(session_id=session, mode_id="ask")
    await editor.prompt(session, f"please {WRITE}")
    assert "Always allow saves: `write:write(note.txt)`" in json.dumps(editor.asked[0], default=str)


async def test_slash_commands(home: IsolatedHome, editor: EditorClient) -> None:
    async with server_client(home) as (client, workspace):
        session = await editor.session()
        await editor.prompt(session, f"please {WRITE}")
        await editor.prompt(session, "/undo")
        assert "note.txt: removed" in editor.text(session)
        assert not (home.work / "note.txt").exists()
        await editor.prompt(session, "/summarize")
        assert editor.text(session).endswith("The session was summarised.")
        await editor.prompt(session, "/init")
        prompts = await client.list_user_messages(workspace, SessionId(session))
        assert "AGENTS.md" in text_of(prompts[0])


QUESTIONS = [
    {"type": "yes_no", "question": "Shall I?", "description": "It decides."},
    {
        "type": "single_choice",
        "question": "Which?",
        "description": "A colour.",
        "choices": [{"id": "red", "label": "Red"}, {"id": "blue", "label": "Blue"}],
    },
    {"type": "free_text", "question": "Why?", "description": "In your words."},
]


def _question_step() -> str:
    return f"tool=question {json.dumps({'questions': QUESTIONS})}"


async def test_questions_are_asked_one_by_one(home: IsolatedHome, editor: EditorClient) -> None:
    """For editors without forms; questions with free text are skipped."""
    session = await editor.session()
    editor.choose = lambda options: options[-2].option_id if len(options) > 1 else "skip"
    await editor.prompt(session, _question_step())
    assert [call.title for call, _ in editor.asked] == ["Shall I?", "Which?", "Why?"]
    output = _answer_all(editor, session)
    assert 'User selected: ["blue"]' in output
    assert "User answered: no" in output
    assert "skipped" in output


async def test_questions_use_form_if_supported(home: IsolatedHome) -> None:
    able = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))
    async with editor_client(home, able) as editor:
        session = await editor.session()
        await editor.prompt(session, _question_step())
        fields = editor.forms[0]["requestedSchema"]["properties"]
        assert [field["type"] for field in fields.values()] == ["boolean", "string", "string"]
        assert not editor.asked
        output = _answer_all(editor, session)
        assert all(word in output for word in ("yes", "red", "because"))


def _answer_all(editor: EditorClient, session: str) -> str:
    (call,) = editor.calls(session).values()
    assert call["status"] == "completed"
    return str(call["content"])


async def test_mcp_servers_of_editor(home: IsolatedHome) -> None:
    """They are available for its prompts and end with it; nothing of them is stored."""
    program = str(Path(sys.executable).parent / "mcp-server-time")
    clock = McpServerStdio(name="my clock!", command=program, args=["--local-timezone", "UTC"], env=[])
    async with server_client(home) as (client, workspace):
        async with editor_client(home) as editor:
            session = (await editor.agent.new_session(cwd=editor.cwd, mcp_servers=[clock])).session_id
            await _wait_for_state(client, workspace, {"my_clock": "connected"})
            editor.choose = lambda _: "allow"
            await editor.prompt(session, 'tool=mcp_my_clock_get_current_time {"timezone": "UTC"}')
            (call,) = editor.calls(session).values()
            assert call["status"] == "completed", call
            assert "UTC" in str(call["content"])
            async with Client(home.where.address) as unknown:
                with pytest.raises(ServerProblem, match="no open stream"):
                    await unknown.mcp_lend(workspace, {"x": McpSettings(command="true")})
        await _wait_for_state(client, workspace, {})


async def _wait_for_state(client: Client, workspace: WorkspaceId, wanted: dict[str, str]) -> None:
    async with asyncio.timeout(TIMEOUT), client.events(workspace, since=0) as events:
        async for item in events:
            if isinstance(item.event, HelloEvent | McpEvent):
                states = await client.mcp_states(workspace)
                if {name: info.state for name, info in states.items()} == wanted:
                    return


def _command(*more: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "acp", *more]
