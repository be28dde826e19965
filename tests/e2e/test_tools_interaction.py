"""To-dos, questions, web pages and server information for the model, through the real server."""

import json

import pytest

from e2e.tool_client import ToolClient, tool_client
from holdfast.domain.approvals import QuestionRequest
from holdfast.domain.events import SessionEvent
from holdfast.domain.ids import RunId
from server.approval_client import question
from workspace.web_server import web_server

CANARY = "sk-canary-0123456789abcdef0123456789"


async def test_todos_belong_to_session() -> None:
    async with tool_client() as one:
        session = await one.session()
        todos = [
            {"content": "look", "status": "completed", "active_form": "Looking"},
            {"content": "do", "status": "in_progress", "active_form": "Doing"},
        ]
        run = await one.call_tools(session, ("todos", {"todos": todos}))
        items = await one.events_until_end(run)
        received = [item.event.change.object.todos for item in items if isinstance(item.event, SessionEvent)]
        assert any(list_ and [todo.content for todo in list_] == ["look", "do"] for list_ in received)
        known = (await one.client.get_session(one.workspace, session)).todos
        assert known is not None
        assert [todo.status for todo in known] == ["completed", "in_progress"]
        (result,) = await one.results(session)
        metadata = json.loads(result.metadata)
        assert (metadata["is_new"], metadata["completed"], metadata["total"]) == (True, 1, 2)
        (wrong,) = await one.call_tools_and_wait(
            ("todos", {"todos": [{"content": "x", "status": "perhaps"}]}), session=session
        )
        assert wrong.is_error


async def _pending_question(one: ToolClient) -> QuestionRequest:
    while not (found := await one.client.pending_questions(one.workspace)):
        pass
    return found[0]


async def test_answer_to_question_reaches_model() -> None:
    async with tool_client() as one:
        session = await one.session()
        run = await one.call_tools(session, ("question", {"questions": [question("Shall I?"), question("Sure?")]}))
        batch = await _pending_question(one)
        assert [item.question for item in batch.questions] == ["Shall I?", "Sure?"]
        responses = [{"request_id": item.id, "yes": True} for item in batch.questions]
        body = {"batch_request_id": batch.id, "responses": responses}
        assert (await one.client.answer_question(one.workspace, body)).resolved
        await one.run_end(run)
        (result,) = await one.results(session)
        assert not result.is_error
        assert "Shall I?" in result.content
        assert "yes" in result.content.lower()


async def test_question_tool_needs_interactive_client() -> None:
    async with tool_client() as one:
        session = await one.session()
        call = ("question", {"questions": [question("Shall I?")]})
        await one.run_end(await one.call_tools(session, call, interactive=False))
        assert "question" not in {tool.name for tool in one.model.requests[-1].tools}
        (result,) = await one.results(session)
        assert "Questions cannot be answered in this run" in result.content
        await one.run_end(await one.call_tools(session, interactive=True))
        assert "question" in {tool.name for tool in one.model.requests[-1].tools}


async def test_web_requests_need_approval() -> None:
    async with web_server() as web, tool_client(yolo=False) as one:
        web.page("/page", b"<h1>Head</h1>")
        session = await one.session()
        calls = (
            ("fetch", {"url": f"{web.url}/page", "format": "markdown"}),
            ("download", {"url": f"{web.url}/page", "file_path": "page.html"}),
        )
        run = await one.call_tools(session, *calls)
        for tool, action in (("fetch", "fetch"), ("download", "download")):
            (ask,) = await one.pending_permissions()
            assert (ask.tool_name, ask.action) == (tool, action)
            assert ask.tool_call_id
            assert len(web.visits) == (tool == "download")
            assert await one.grant(ask)
        await one.run_end(run)
        fetched, downloaded = await one.results(session)
        assert "# Head" in fetched.content
        assert not downloaded.is_error
        assert (one.project / "page.html").read_bytes() == b"<h1>Head</h1>"


async def test_server_information_for_model_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    async with tool_client(env=(f"OPENAI_API_KEY={CANARY}",)) as one:
        await one.client.config_set(one.workspace, "providers.mine", {"type": "openai", "api_key": CANARY}, scope=1)
        log = one.server.directory.data / "logs"
        log.mkdir(exist_ok=True)
        (log / "server.log").write_text(f"began\nAuthorization: Bearer {CANARY}\napi_key={CANARY}\nended\n")
        info, logs = await one.call_tools_and_wait(("holdfast_info", {}), ("holdfast_logs", {"lines": 10}))
        assert not info.is_error
        assert "demo/scripted" in info.content
        assert "mine" in info.content
        assert "ended" in logs.content
        assert CANARY not in info.content + logs.content


async def test_invalid_calls_are_results_and_turn_continues() -> None:
    """A tool failure is a result; invalid arguments return the expected schema."""
    async with tool_client() as one:
        calls: tuple[tuple[str, object], ...] = (
            ("nonsense", {}),
            ("bash", {"comand": "ls"}),
            ("view", {"file_path": "never.txt"}),
            ("grep", {"pattern": "("}),
            ("ls", {"path": "."}),
        )
        session = await one.session()
        run = await one.call_tools(session, *calls)
        end = await one.run_end(run)
        assert not end.error
        # Read-only calls run in parallel: their results arrive as they complete.
        results = {result.name: result for result in await one.results(session)}
        assert {name for name, result in results.items() if result.is_error} == {"nonsense", "bash", "view", "grep"}
        assert "Available: " in results["nonsense"].content
        assert "bash takes: command" in results["bash"].content
        assert (await one.client.get_run(one.workspace, RunId(run.run_id))).outcome == "completed"
