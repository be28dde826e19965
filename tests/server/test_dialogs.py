"""Asks for stock clients: one dialog at a time, open ones first on a new stream."""

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


def asked(name: str) -> ApprovalEvent:
    return PermissionRequestEvent(Change("created", ask(name)))


def told(name: str, *, granted: bool = False, denied: bool = False) -> ApprovalEvent:
    return PermissionNotificationEvent(
        Change("created", PermissionNotification(ToolCallId("c"), granted, denied, name))
    )


def inquired(name: str) -> ApprovalEvent:
    return QuestionRequestEvent(Change("created", batch(name)))


def closed(name: str) -> ApprovalEvent:
    return QuestionNotificationEvent(Change("created", QuestionNotification(name)))


class Screen:
    """A reader that notes the ids of what it is sent."""

    def __init__(self, dialogs: CrushDialogs) -> None:
        self._dialogs = dialogs

    def hear(self, event: ApprovalEvent, now: float = 0.0) -> list[str]:
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
    assert screen.hear(asked("a")) == ["a"]
    assert screen.hear(told("a")) == ["-a"]
    assert screen.hear(asked("b")) == []
    assert screen.hear(asked("c")) == []
    assert screen.hear(told("b", denied=True)) == ["-b"]
    assert screen.hear(asked("d")) == []
    assert screen.hear(told("a", granted=True)) == ["-a", "c"]
    assert screen.hear(told("c", denied=True)) == ["-c", "d"]
    assert screen.hear(told("d", denied=True)) == ["-d"]
    assert screen.hear(asked("e")) == ["e"]


def test_one_form_at_a_time_and_a_pause_between_two() -> None:
    screen = Screen(CrushDialogs())
    assert screen.hear(inquired("a"), 10.0) == ["a"]
    assert screen.hear(inquired("b"), 10.0) == []
    assert screen.hear(inquired("c"), 10.0) == []
    assert screen.hear(closed("b"), 11.0) == [], "a notice about what is not shown would close what is"
    assert screen.next_due() is None
    assert screen.hear(closed("a"), 12.0) == ["-a"]
    assert screen.next_due() == 12.0 + PAUSE_SECONDS
    assert screen.due(12.4) == []
    assert screen.due(12.0 + PAUSE_SECONDS) == ["c"]
    assert screen.next_due() is None
    assert screen.hear(closed("c"), 13.0) == ["-c"]
    assert screen.hear(inquired("d"), 13.1) == []
    assert screen.due(13.5) == ["d"]


def test_what_is_open_comes_first_to_who_comes_late() -> None:
    dialogs = CrushDialogs([ask("a"), ask("b")], [batch("x"), batch("y")], now=5.0, pause=0.2)
    screen = Screen(dialogs)
    assert dialogs.next_due == 5.0
    assert screen.due(5.0) == ["a"]
    assert screen.due(5.2) == ["x"]
    assert screen.hear(asked("a"), 5.3) == [], "what is shown is not shown again"
    assert screen.hear(told("a", granted=True), 5.4) == ["-a", "b"]


def test_what_a_server_that_died_had_asked_is_taken_back_first() -> None:
    """Every permission; of the forms one, because any notice closes the one that is shown, and none before another."""
    withdrawn = [closed("x"), told("a", denied=True), closed("y"), asked("b"), told("c", denied=True)]
    dialogs = CrushDialogs([ask("d")], now=5.0, withdrawn=withdrawn)
    screen = Screen(dialogs)
    assert dialogs.next_due == 0.0
    assert screen.due(5.0) == ["-a", "-c", "-x", "d"]
    assert screen.due(5.0) == []
    assert screen.next_due() is None
    screen = Screen(CrushDialogs([], [batch("z")], now=5.0, withdrawn=withdrawn))
    assert screen.due(5.0) == ["-a", "-c", "z"]


def test_what_is_due_next_is_the_earlier_of_the_two() -> None:
    dialogs = CrushDialogs([ask("a")], [batch("x")], now=5.0, pause=0.2)
    assert dialogs.next_due == 5.0
    assert Screen(dialogs).due(5.0) == ["a"]
    assert dialogs.next_due == 5.2
    screen = Screen(CrushDialogs())
    assert screen.hear(asked("a")) == ["a"]
    assert screen.hear(asked("b")) == []
    assert screen.next_due() is None, "what waits for another has no time"
    assert screen.hear(told("b")) == ["-b"], "a notice that it was asked closes nothing"
    assert screen.hear(told("a", granted=True)) == ["-a", "b"]


def _kinds(stream: RawStream) -> list[tuple[str, str]]:
    found = []
    for event in stream.events:
        said = json.loads(event.data)
        if said["type"].startswith(("permission", "question")):
            payload = said["payload"]["payload"]
            found.append((said["type"], str(payload.get("id") or payload.get("batch_id"))))
    return found


async def test_a_stock_stream_begins_with_what_is_open_and_goes_on_one_by_one() -> None:
    """C-47 for stock clients: a stream opened while asks are open brings the first, then the next as each is closed."""
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
