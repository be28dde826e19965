"""Sub-agents through the real server: nested, on the same stream, cancelled with their run."""

import json

import msgspec
import pytest

from e2e.tool_client import bash, script, tool_client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import MessageEvent, RunCompleteEvent, SessionEvent
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.usage import Price, Usage
from holdfast.providers.scripted_model import ScriptedModel
from holdfast.testing.conversation_validity import problems_of_session
from server.helpers import send_prompt
from workspace.web_server import web_server


def agent(*calls: tuple[str, object]) -> tuple[str, dict[str, object]]:
    """Return a call of a sub-agent that makes these calls."""
    return ("agent", {"prompt": json.dumps(calls)})


async def test_sub_agent_has_child_session() -> None:
    async with tool_client() as one:
        (one.project / "a.txt").write_text("inside\n")
        session = await one.session()
        run = await one.call_tools(session, agent(("view", {"file_path": "a.txt"}), bash("touch never")))
        items = await one.events_until_end(run)
        messages = await one.client.list_messages(one.workspace, session)
        (call,) = [call for message in messages for call in message.tool_calls]
        (asked,) = [message for message in messages if message.tool_calls]
        nested = f"{asked.id}$${call.id}"
        (child,) = [
            item.event.change.object
            for item in items
            if isinstance(item.event, SessionEvent) and item.event.change.object.id == nested
        ][:1]
        assert (child.parent_session_id, child.title) == (session, "New Agent Session")
        received = [item.event.change.object for item in items if isinstance(item.event, MessageEvent)]
        assert {message.role for message in received if message.session_id == nested} == {"user", "assistant", "tool"}
        seen, refused = await one.results(child.id)
        assert "inside" in seen.content
        assert refused.is_error
        assert not (one.project / "never").exists()
        (result,) = await one.results(session)
        assert (result.content, result.is_error) == ("done", False)
        ends = [item.event.change.object.session_id for item in items if isinstance(item.event, RunCompleteEvent)]
        assert ends == [nested, session]
        with pytest.raises(ServerProblem) as caught:
            await send_prompt(one.client, one.workspace, child.id, "hello")
        assert caught.value.status == 409


async def test_sub_agent_and_its_requests_end_with_cancelled_run() -> None:
    async with tool_client(yolo=False) as one:
        outside = one.server.directory.root / "outside.txt"
        outside.write_text("x")
        session = await one.session()
        run = await one.call_tools(session, agent(("view", {"file_path": str(outside)})), agent(("ls", {"path": "/"})))
        model_requests = await one.pending_permissions(2)
        assert all(ask.session_id != session for ask in model_requests)
        await one.client.cancel_run(one.workspace, run.run_id)
        items = await one.events_until_end(run)
        assert await one.client.pending_permissions(one.workspace) == ()
        ends = [item.event.change.object for item in items if isinstance(item.event, RunCompleteEvent)]
        assert [end.cancelled for end in ends] == [True, True, True]
        assert ends[-1].session_id == session
        for place in (session, *(ask.session_id for ask in model_requests)):
            assert problems_of_session(list(await one.client.list_messages(one.workspace, place))) == []


async def test_cost_of_sub_agent_is_added() -> None:
    info = ModelInfo("demo", "scripted", 200_000, 4_096, price=Price(1_000.0))
    model = ScriptedModel(lambda request: msgspec.structs.replace(script(request), usage=Usage(1_000, 0)), info=info)
    async with tool_client(model=model) as one:
        session = await one.session()
        await one.call_tools_and_wait(agent(), session=session)
        assert len(model.requests) == 3
        assert (await one.client.get_session(one.workspace, session)).cost == pytest.approx(3.0)


async def test_web_sub_agent_cannot_reach_local_machine() -> None:
    """One permission for the task; a page from outside, here through the client's proxy; nothing on this machine."""
    async with web_server() as web:
        web.page("http://pages.example/page", b"<h1>Head</h1><p>far away</p>")
        web.page("/page", b"<p>near</p>")
        async with tool_client(yolo=False, env=(f"http_proxy={web.url}",)) as one:
            session = await one.session()
            calls = [["web_fetch", {"url": url}] for url in ("http://pages.example/page", f"{web.url}/page")]
            run = await one.call_tools(session, ("agentic_fetch", {"prompt": json.dumps(calls)}))
            (ask,) = await one.pending_permissions()
            assert (ask.tool_name, ask.action) == ("agentic_fetch", "fetch")
            assert web.visits == []
            assert await one.grant(ask)
            await one.run_end(run)
            answers = [
                message for request in one.model.requests for message in request.messages if message.role == "tool"
            ]
            output = " ".join(result.content for message in answers for result in message.tool_results)
            assert "far away" in output
            assert "near" not in output
            assert [visit.path for visit in web.visits] == ["http://pages.example/page"]
            assert text_of((await one.client.list_messages(one.workspace, session))[-1]) == "done"
