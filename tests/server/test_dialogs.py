"""Approval requests for stock clients: one dialog at a time, open ones first on a new stream."""

import json
from typing import Any

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.events import (
    ApprovalEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    encode_event,
)
from holdfast.domain.ids import SessionId, ToolCallId
from holdfast.server.streams.crush_stream import PAUSE_SECONDS, CrushDialogs
from server.approval_client import approval_client, question
from server.helpers import RawStream


def ask(name: str) -> PermissionRequest:
    return PermissionRequest(name, SessionId("s"), ToolCallId("c" + name), "bash", "", "execute", {}, "/w")


def batch(name: str) -> QuestionRequest:
    return QuestionRequest(name, SessionId("s"), ToolCallId("c"), ())


def request_event(name: str) -> ApprovalEvent:
    return PermissionRequestEvent(Change("created", ask(name)))


def resolved_event(name: str, *, granted: bool = False, denied: bool = False) -> ApprovalEvent:
    return PermissionNotificationEvent(
        Change("created", PermissionNotification(ToolCallId("c"), granted, denied, name))
    )


def question_event(name: str) -> ApprovalEvent:
    return QuestionRequestEvent(Change("created", batch(name)))


def question_closed_event(name: str) -> ApprovalEvent:
    return QuestionNotificationEvent(Change("created", QuestionNotification(name)))


class Screen:
    """A reader that records the ids it receives."""

    def __init__(self, dialogs: CrushDialogs) -> None:
        self._dialogs = dialogs

    def receive(self, event: ApprovalEvent, now: float = 0.0) -> list[str]:
        return [_named(body) for body in self._dialogs.feed(event, encode_event(event), now)]

    def next_due(self) -> float | None:
        return self._dialogs.next_due

    def due(self, now: float) -> list[str]:
        return [_named(body) for body in self._dialogs.due(now)]


def _named(body: bytes) -> str:
    event: dict[str, Any] = json.loads(body)
    payload = event["payload"]["payload"]
    name = payload.get("id") or payload.get("batch_id")
    is_notice = event["type"].endswith("notification")
    return f"-{name}" if is_notice else str(name)


def test_one_permission_at_a_time() -> None:
    screen = Screen(CrushDialogs())
    assert screen.receive(request_event("a")) == ["a"]
    assert screen.receive(resolved_event("a")) == ["-a"]
    assert screen.receive(request_event("b")) == []
    assert screen.receive(request_event("c")) == []
    assert screen.receive(resolved_event("b", denied=True)) == ["-b"]
    assert screen.receive(request_event("d")) == []
    assert screen.receive(resolved_event("a", granted=True)) == ["-a", "c"]
    assert screen.receive(resolved_event("c", denied=True)) == ["-c", "d"]
    assert screen.receive(resolved_event("d", denied=True)) == ["-d"]
    assert screen.receive(request_event("e")) == ["e"]


def test_one_form_at_a_time_and_a_pause_between_two() -> None:
    screen = Screen(CrushDialogs())
    assert screen.receive(question_event("a"), 10.0) == ["a"]
    assert screen.receive(question_event("b"), 10.0) == []
    assert screen.receive(question_event("c"), 10.0) == []
    assert screen.receive(question_closed_event("b"), 11.0) == [], (
        "a notice about what is not shown would close what is"
    )
    assert screen.next_due() is None
    assert screen.receive(question_closed_event("a"), 12.0) == ["-a"]
    assert screen.next_due() == 12.0 + PAUSE_SECONDS
    assert screen.due(12.4) == []
    assert screen.due(12.0 + PAUSE_SECONDS) == ["c"]
    assert screen.next_due() is None
    assert screen.receive(question_closed_event("c"), 13.0) == ["-c"]
    assert screen.receive(question_event("d"), 13.1) == []
    assert screen.due(13.5) == ["d"]


def test_new_stream_begins_with_open_requests() -> None:
    dialogs = CrushDialogs([ask("a"), ask("b")], [batch("x"), batch("y")], now=5.0, pause=0.2)
    screen = Screen(dialogs)
    assert dialogs.next_due == 5.0
    assert screen.due(5.0) == ["a"]
    assert screen.due(5.2) == ["x"]
    assert screen.receive(request_event("a"), 5.3) == [], "what is shown is not shown again"
    assert screen.receive(resolved_event("a", granted=True), 5.4) == ["-a", "b"]


def test_requests_of_killed_server_are_withdrawn_first() -> None:
    """Every permission request; of the forms one, because any notification closes the one on screen, and none before
    another.
    """
    withdrawn = [
        question_closed_event("x"),
        resolved_event("a", denied=True),
        question_closed_event("y"),
        request_event("b"),
        resolved_event("c", denied=True),
    ]
    dialogs = CrushDialogs([ask("d")], now=5.0, withdrawn=withdrawn)
    screen = Screen(dialogs)
    assert dialogs.next_due == 0.0
    assert screen.due(5.0) == ["-a", "-c", "-x", "d"]
    assert screen.due(5.0) == []
    assert screen.next_due() is None
    screen = Screen(CrushDialogs([], [batch("z")], now=5.0, withdrawn=withdrawn))
    assert screen.due(5.0) == ["-a", "-c", "z"]


def test_next_due_is_earlier_of_two_timers() -> None:
    dialogs = CrushDialogs([ask("a")], [batch("x")], now=5.0, pause=0.2)
    assert dialogs.next_due == 5.0
    assert Screen(dialogs).due(5.0) == ["a"]
    assert dialogs.next_due == 5.2
    screen = Screen(CrushDialogs())
    assert screen.receive(request_event("a")) == ["a"]
    assert screen.receive(request_event("b")) == []
    assert screen.next_due() is None, "what waits for another has no time"
    assert screen.receive(resolved_event("b")) == ["-b"], "a notice that it was asked closes nothing"
    assert screen.receive(resolved_event("a", granted=True)) == ["-a", "b"]


def _kinds(stream: RawStream) -> list[tuple[str, str]]:
    found = []
    for event in stream.events:
        output = json.loads(event.data)
        if output["type"].startswith(("permission", "question")):
            payload = output["payload"]["payload"]
            found.append((output["type"], str(payload.get("id") or payload.get("batch_id"))))
    return found


async def test_c47_stock_stream_sends_open_requests_one_at_a_time() -> None:
    """C-47 for stock clients: a new stream begins with the first open request, then sends the next after each close."""
    async with approval_client() as one:
        sessions = [await one.session() for _ in range(2)]
        runs = []
        for session in sessions:
            runs.append(await one.bash(session, "make"))
            await one.pending_permissions(len(runs))
        first, second = await one.pending_permissions(2)
        path = f"/v1/workspaces/{one.workspace}/events?client_id={one.client.client_id}"
        stream = await RawStream.open(one.server.address, path)
        await stream.until(lambda event: b"permission_request" in event.data)
        assert _kinds(stream) == [("permission_request", first.id)]
        assert await one.grant(first)
        await stream.until(lambda event: b"permission_request" in event.data and second.id.encode() in event.data)
        expected = [("permission_request", first.id), ("permission_notification", first.id)]
        assert _kinds(stream) == [*expected, ("permission_request", second.id)]
        assert await one.grant(second, "deny")
        for run in runs:
            await one.events_until_end(run)
        asked_late = await one.call_tools(sessions[0], ("question", {"questions": [question("?")]}))
        (open_batch,) = await one.pending_questions()
        again = await RawStream.open(one.server.address, path)
        await again.until(lambda event: b"question_batch_request" in event.data)
        assert _kinds(again) == [("question_batch_request", open_batch.id)]
        assert b"\nid:" not in again.raw
        await one.client.cancel_question(one.workspace)
        await again.until(lambda event: b"question_batch_notification" in event.data)
        await one.events_until_end(asked_late)
        stream.close()
        again.close()
