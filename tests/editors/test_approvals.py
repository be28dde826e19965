"""Approval requests to an editor, their omission, and the order of its updates."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.acp.approvals import EditorApprovals
from holdfast.acp.editor_connection import EditorConnection, StdioPipes
from holdfast.acp.session_updates import SessionUpdates
from holdfast.client.client import Client
from holdfast.domain.approvals import PermissionNotification, PermissionRequest
from holdfast.domain.events import Change, PermissionNotificationEvent, PermissionRequestEvent
from holdfast.domain.ids import RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.testing.gates import start

Json = dict[str, Any]
S, OWN, OTHER = SessionId("s"), RunId("own"), RunId("other")


class ApprovalFixture:
    """An editor with the dependencies of its approvals; requests to the server are recorded."""

    def __init__(self) -> None:
        self.workspace = WorkspaceId("w")
        self.directory = "/w"
        self.modes: dict[SessionId, str] = {S: "ask"}
        self.sent: list[tuple[str, Json]] = []
        self.held: asyncio.Event | None = None
        self.requests: list[tuple[str, object]] = []
        self.answers: list[asyncio.Future[Json]] = []
        self.notifications: list[Json] = []
        self.news = asyncio.Event()
        self.only = SessionUpdates(S, "/w")
        self.only.own_runs.add(OWN)
        self.pipes = StdioPipes(cast(asyncio.StreamReader, None), cast(asyncio.StreamWriter, None))
        self.editor = EditorConnection(self.pipes)
        self.editor.start(self._call, self._notify)
        self.asking = EditorApprovals(self, self.editor)

    @property
    def client(self) -> Client:
        return cast(Client, self)

    def session_updates(self, session: SessionId) -> SessionUpdates | None:
        return self.only if session == S else None

    def send_updates(self, session: SessionId, updates: list[Json]) -> None:
        self.notifications += updates

    async def grant(self, workspace: WorkspaceId, answer: Json) -> None:
        assert workspace == self.workspace
        self.requests.append((answer["action"], answer["permission"]))
        self.news.set()

    async def cancel_run(self, workspace: WorkspaceId, run: RunId) -> None:
        self.requests.append(("cancel", run))
        self.news.set()

    async def _call(self, method: str, params: Json) -> Json:
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.news.set()
        self.pipes.on_sent({"method": method, "id": len(self.answers), "params": params})
        return await answer

    async def _notify(self, method: str, params: Json) -> None:
        if self.held is not None:
            await self.held.wait()
        self.sent.append((method, params))
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def close(self) -> None:
        await self.asking.close()
        await self.editor.close()


def _ask(run: RunId = OWN, *, insists: bool = False) -> PermissionRequest:
    return PermissionRequest(
        "a", S, ToolCallId("c"), "bash", "", "execute", {"command": "x"}, "/w", run, insists=insists, rules=("bash(x)",)
    )


def _is_requested(fixture: ApprovalFixture, ask: PermissionRequest) -> None:
    fixture.asking.on_event(PermissionRequestEvent(Change("created", ask)))


@pytest.mark.parametrize(
    ("mode", "run", "insists", "is_asked"),
    [
        ("ask", OWN, False, True),
        ("yolo", OWN, False, False),
        ("yolo", OTHER, False, True),
        ("yolo", OWN, True, True),
        ("ask", OWN, True, True),
    ],
)
@pytest.mark.parametrize("when", ["before", "while it is open"])
async def test_requests_that_are_omitted(mode: str, run: RunId, insists: bool, is_asked: bool, when: str) -> None:
    """Only for prompts of the editor itself, and never for requests that insist."""
    fixture = ApprovalFixture()
    if when == "before":
        fixture.modes[S] = mode
        _is_requested(fixture, _ask(run, insists=insists))
    else:
        _is_requested(fixture, _ask(run, insists=insists))
        await fixture.until(lambda: fixture.answers)
        fixture.modes[S] = mode
        if mode == "yolo":
            fixture.asking.allow_all(S)
    await fixture.until(lambda: fixture.answers if is_asked else fixture.requests)
    for _ in range(20):
        await asyncio.sleep(0)
    permission = {"id": "a", "params": {"command": "x"}}
    assert fixture.requests == ([] if is_asked else [("allow", permission)])
    if when != "before" and not is_asked:
        assert ("$/cancel_request", {"requestId": 1}) in fixture.sent
    await fixture.close()


@pytest.mark.parametrize(
    ("outcome", "request_"),
    [
        ({"outcome": "selected", "optionId": "allow"}, "allow"),
        ({"outcome": "selected", "optionId": "allow_session"}, "allow_session"),
        ({"outcome": "selected", "optionId": "allow_always"}, "allow_always"),
        ({"outcome": "selected", "optionId": "deny"}, "deny"),
        ({"outcome": "selected", "optionId": "what"}, "deny"),
        ({"outcome": "selected"}, "deny"),
        ({"outcome": "cancelled"}, "cancel"),
        ({}, "cancel"),
    ],
)
async def test_effect_of_answer(outcome: Json, request_: str) -> None:
    fixture = ApprovalFixture()
    _is_requested(fixture, _ask())
    await fixture.until(lambda: fixture.answers)
    _is_requested(fixture, _ask())
    fixture.answers[0].set_result({"outcome": outcome})
    await fixture.until(lambda: fixture.requests)
    assert [name for name, _ in fixture.requests] == [request_]
    assert len(fixture.answers) == 1, "it is asked once"
    await fixture.close()


@pytest.mark.parametrize("how", ["granted", "denied", "withdrawn", "open"])
async def test_request_answered_elsewhere_is_withdrawn(how: str) -> None:
    fixture = ApprovalFixture()
    _is_requested(fixture, _ask())
    await fixture.until(lambda: fixture.answers)
    notice = PermissionNotification(
        ToolCallId("c"), how == "granted", how == "denied", "a", S, withdrawn=how == "withdrawn"
    )
    fixture.asking.on_event(PermissionNotificationEvent(Change("updated", notice)))
    if how == "open":
        fixture.answers[0].set_result({"outcome": {"outcome": "selected", "optionId": "allow"}})
        await fixture.until(lambda: fixture.requests)
    else:
        await fixture.until(lambda: ("$/cancel_request", {"requestId": 1}) in fixture.sent)
        assert fixture.requests == []
    await fixture.close()


async def test_updates_for_slow_editor_are_merged_in_order() -> None:
    fixture = ApprovalFixture()
    fixture.held = asyncio.Event()

    def chunk(text: str, kind: str = "agent_message_chunk") -> Json:
        return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}

    def call(name: str, **more: object) -> Json:
        return {"sessionUpdate": "tool_call_update", "toolCallId": name, **more}

    fixture.editor.send_update("s", chunk("first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for session, update in (
        ("s", chunk("a")),
        ("s", chunk("b")),
        ("t", chunk("c")),
        ("s", chunk("d", "agent_thought_chunk")),
        ("s", call("1", title="x", status="pending")),
        ("s", call("1", status="completed")),
        ("s", call("2", status="pending")),
        ("s", {"sessionUpdate": "plan", "entries": []}),
        ("s", {"sessionUpdate": "plan", "entries": [1]}),
    ):
        fixture.editor.send_update(session, update)
    flushed = start(fixture.editor.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    fixture.editor.send_update("s", chunk("after"))
    fixture.held.set()
    await flushed
    await fixture.until(lambda: len(fixture.sent) == 9)
    assert [(params["sessionId"], params["update"]) for _, params in fixture.sent] == [
        ("s", chunk("first")),
        ("s", chunk("ab")),
        ("t", chunk("c")),
        ("s", chunk("d", "agent_thought_chunk")),
        ("s", call("1", title="x", status="completed")),
        ("s", call("2", status="pending")),
        ("s", {"sessionUpdate": "plan", "entries": []}),
        ("s", {"sessionUpdate": "plan", "entries": [1]}),
        ("s", chunk("after")),
    ]
    await fixture.close()


async def test_updates_of_new_session_follow_its_id_once() -> None:
    fixture = ApprovalFixture()
    fixture.editor.send_update_after_response("new", {"sessionUpdate": "plan", "entries": []})
    for result in ({"sessionId": "other"}, {"sessionId": "new"}, {"sessionId": "new"}, {}):
        before = len(fixture.sent)
        fixture.pipes.on_sent({"id": 1, "result": result})
        await fixture.editor.flush()
        if result == {"sessionId": "other"}:
            assert len(fixture.sent) == before == 0
    assert [params["sessionId"] for _, params in fixture.sent] == ["new"]
    await fixture.close()
