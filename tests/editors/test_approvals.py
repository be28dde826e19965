"""What an editor is asked, and when it is not; and the order in which it is told."""

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


class Desk:
    """An editor and the ground its asks stand on; requests to the server are written down."""

    def __init__(self) -> None:
        self.workspace = WorkspaceId("w")
        self.directory = "/w"
        self.modes: dict[SessionId, str] = {S: "ask"}
        self.sent: list[tuple[str, Json]] = []
        self.held: asyncio.Event | None = None
        self.requests: list[tuple[str, object]] = []
        self.answers: list[asyncio.Future[Json]] = []
        self.told: list[Json] = []
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
        self.told += updates

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


def _asked(desk: Desk, ask: PermissionRequest) -> None:
    desk.asking.on_event(PermissionRequestEvent(Change("created", ask)))


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
async def test_who_is_not_asked_any_more(mode: str, run: RunId, insists: bool, is_asked: bool, when: str) -> None:
    """Only about what the editor itself has sent, and never about what insists."""
    desk = Desk()
    if when == "before":
        desk.modes[S] = mode
        _asked(desk, _ask(run, insists=insists))
    else:
        _asked(desk, _ask(run, insists=insists))
        await desk.until(lambda: desk.answers)
        desk.modes[S] = mode
        if mode == "yolo":
            desk.asking.allow_all(S)
    await desk.until(lambda: desk.answers if is_asked else desk.requests)
    for _ in range(20):
        await asyncio.sleep(0)
    permission = {"id": "a", "params": {"command": "x"}}
    assert desk.requests == ([] if is_asked else [("allow", permission)])
    if when != "before" and not is_asked:
        assert ("$/cancel_request", {"requestId": 1}) in desk.sent
    await desk.close()


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
async def test_what_an_answer_does(outcome: Json, request_: str) -> None:
    desk = Desk()
    _asked(desk, _ask())
    await desk.until(lambda: desk.answers)
    _asked(desk, _ask())
    desk.answers[0].set_result({"outcome": outcome})
    await desk.until(lambda: desk.requests)
    assert [name for name, _ in desk.requests] == [request_]
    assert len(desk.answers) == 1, "it is asked once"
    await desk.close()


@pytest.mark.parametrize("how", ["granted", "denied", "withdrawn", "open"])
async def test_what_was_answered_elsewhere_is_withdrawn(how: str) -> None:
    desk = Desk()
    _asked(desk, _ask())
    await desk.until(lambda: desk.answers)
    notice = PermissionNotification(
        ToolCallId("c"), how == "granted", how == "denied", "a", S, withdrawn=how == "withdrawn"
    )
    desk.asking.on_event(PermissionNotificationEvent(Change("updated", notice)))
    if how == "open":
        desk.answers[0].set_result({"outcome": {"outcome": "selected", "optionId": "allow"}})
        await desk.until(lambda: desk.requests)
    else:
        await desk.until(lambda: ("$/cancel_request", {"requestId": 1}) in desk.sent)
        assert desk.requests == []
    await desk.close()


async def test_what_waits_for_a_slow_editor_is_joined_and_keeps_its_order() -> None:
    desk = Desk()
    desk.held = asyncio.Event()

    def chunk(text: str, kind: str = "agent_message_chunk") -> Json:
        return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}

    def call(name: str, **more: object) -> Json:
        return {"sessionUpdate": "tool_call_update", "toolCallId": name, **more}

    desk.editor.send_update("s", chunk("first"))
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
        desk.editor.send_update(session, update)
    flushed = start(desk.editor.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    desk.editor.send_update("s", chunk("after"))
    desk.held.set()
    await flushed
    await desk.until(lambda: len(desk.sent) == 9)
    assert [(params["sessionId"], params["update"]) for _, params in desk.sent] == [
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
    await desk.close()


async def test_what_belongs_to_a_new_session_is_told_after_its_name_and_once() -> None:
    desk = Desk()
    desk.editor.send_update_after_response("new", {"sessionUpdate": "plan", "entries": []})
    for result in ({"sessionId": "other"}, {"sessionId": "new"}, {"sessionId": "new"}, {}):
        before = len(desk.sent)
        desk.pipes.on_sent({"id": 1, "result": result})
        await desk.editor.flush()
        if result == {"sessionId": "other"}:
            assert len(desk.sent) == before == 0
    assert [params["sessionId"] for _, params in desk.sent] == ["new"]
    await desk.close()
