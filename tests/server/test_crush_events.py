"""Events for stock clients, by event type, and both forms of the stream during a gap."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from holdfast.domain import events
from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.events import AgentNotice, Change, ChangeKind, Event, StreamedEvent
from holdfast.domain.extensions import LspNotice, LspState, McpNotice, SkillStates
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import Finish, FinishPart, Message, Text, TextPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.http11.sse import SseEvent
from holdfast.server.streams.crush_stream import CrushStream
from server.approval_client import ApprovalClient, approval_client
from server.helpers import RawStream

S, M, C, R = SessionId("s"), MessageId("m"), ToolCallId("c"), RunId("r")
KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)


def message(role: str = "assistant", *, finished: bool = False) -> Message:
    finish = (FinishPart(Finish("end_turn", 1)),) if finished else ()
    return Message((TextPart(Text("text")), *finish), M, role, S, "", "", 1, 1)  # type: ignore[arg-type]


def default(kind: type[Any], **given: Any) -> Any:  # noqa: ANN401
    """Create a struct with its required fields only."""
    plain: dict[Any, Any] = {str: "x", int: 0, bool: False, float: 0.0}
    needed = {
        field.name: given.get(field.name, plain.get(field.type, "x"))
        for field in msgspec.structs.fields(kind)
        if field.required or field.name in given
    }
    return kind(**needed)


SAMPLES: dict[type[Any], list[Any]] = {
    events.MessageEvent: [message(), message("user"), message(finished=True)],
    events.SessionEvent: [default(Session, id=S, title="t")],
    events.FileEvent: [FileVersion("f", S, "/a", "", 0, 1, 1)],
    events.RunEvent: [Run(R, S, "active", "queue", 1)],
    events.RunCompleteEvent: [events.RunComplete(S, M, R, "completed")],
    events.RemovedEvent: [events.Removed(S)],
    events.PermissionRequestEvent: [PermissionRequest("p", S, C, "bash", "", "", {}, "/")],
    events.PermissionNotificationEvent: [PermissionNotification(C, granted=False, denied=False, id="p")],
    events.QuestionRequestEvent: [QuestionRequest("q", S, C, ())],
    events.QuestionNotificationEvent: [QuestionNotification("q")],
    events.AgentEvent: [AgentNotice(kind) for kind in get_args(get_type_hints(AgentNotice)["type"])],
    events.AttachedEvent: [events.Attached(S, 1)],
    events.ConfigChangedEvent: [events.ConfigChanged(WorkspaceId("w"))],
    events.LspEvent: [default(LspNotice, type="state_changed", state=LspState.READY)],
    events.McpEvent: [default(McpNotice, type="state_changed", state="connected")],
    events.MessageDeltaEvent: [events.MessageDelta(S, M, 0, 0, "x")],
    events.MessagePartEvent: [events.MessagePart(S, M, 0, TextPart(Text("x")))],
    events.SkillsEvent: [SkillStates(())],
    events.ToolOutputEvent: [events.ToolOutput(S, M, C, 0, "x")],
    events.HelloEvent: [events.Hello(0, 0, 0)],
    events.GapEvent: [events.Gap(0, 0, 0)],
}
STREAM_ONLY = (events.HelloEvent, events.GapEvent)
"""The stream omits them before it builds whole messages."""
UNKNOWN = (events.RunEvent, events.ToolOutputEvent, events.AttachedEvent, events.RemovedEvent)
GROWTH = (events.MessageDeltaEvent, events.MessagePartEvent)
SILENT_NOTICES = {"retrying", "fallback", "re_authenticate"}


def event_of(kind: type[Any], change: ChangeKind, payload: Any) -> Any:  # noqa: ANN401
    has_change = "change" in kind.__struct_fields__
    return kind(Change(change, payload)) if has_change else kind(payload)


def test_every_event_type_has_samples() -> None:
    assert set(SAMPLES) == set(get_args(StreamedEvent))


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if kind not in STREAM_ONLY], ids=lambda kind: kind.__name__)
def test_stock_client_receives_event_or_nothing(kind: type[Any]) -> None:
    """The event itself, byte for byte, or nothing; a notification about questions only while their form is shown."""
    for change, payload in product(KINDS, SAMPLES[kind]):
        event = event_of(kind, change, payload)
        body = b"the very bytes"
        sent = CrushStream().feed(event, body, 0.0)
        is_silent = kind in (*UNKNOWN, *GROWTH) or getattr(payload, "type", "") in SILENT_NOTICES
        is_silent = is_silent or kind is events.QuestionNotificationEvent
        assert sent == ([] if is_silent else [body]), (kind, change, payload)


@pytest.mark.parametrize("growth", GROWTH, ids=lambda kind: kind.__name__)
def test_message_deltas_apply_only_between_start_and_finish(growth: type[Any]) -> None:
    for change, begun in product(KINDS, SAMPLES[events.MessageEvent]):
        form = CrushStream()
        form.feed(event_of(events.MessageEvent, change, begun), b"", 0.0)
        form.feed(growth(SAMPLES[growth][0]), b"", 0.0)
        is_growing = change != "deleted" and begun.role == "assistant" and begun.finish is None
        assert (form.next_due is not None) is is_growing, (change, begun.role)
        assert len(form.due(1.0)) == is_growing
        assert form.next_due is None


def test_whole_message_is_sent_after_ten_percent_growth() -> None:
    form = CrushStream()
    form.feed(events.MessageEvent(Change("created", message())), b"", 0.0)

    def grows(count: int, now: float) -> float | None:
        for _ in range(count):
            form.feed(events.MessageDeltaEvent(events.MessageDelta(S, M, 0, 4, "x")), b"", now)
        return form.next_due

    assert grows(1, 0.0) == 0.033
    assert len(form.due(0.033)) == 1
    assert grows(1, 1.0) == pytest.approx(1.033), "a short one at every word"
    form.due(2.0)
    assert grows(98, 3.0) == pytest.approx(3.033)
    form.due(4.0)
    assert grows(9, 5.0) is None, "100 so far: a tenth is 10"
    assert grows(1, 6.0) == pytest.approx(6.033)
    assert grows(5, 6.01) == pytest.approx(6.033), "it is not put off"


# Over the wire


Action = Callable[[ApprovalClient, SessionId], Awaitable[None]]


async def rename(here: ApprovalClient, session: SessionId) -> None:
    await here.client.put_session(here.workspace, session, "renamed")


async def delete(here: ApprovalClient, session: SessionId) -> None:
    await here.client.delete_session(here.workspace, session)


async def ask(here: ApprovalClient, session: SessionId) -> None:
    await here.bash(session, "asked")
    await here.pending_permissions()


async def ask_and_answer(here: ApprovalClient, session: SessionId) -> None:
    run = await here.bash(session, "answered")
    await here.grant((await here.pending_permissions())[0])
    await here.events_until_end(run)


async def ask_and_cancel(here: ApprovalClient, session: SessionId) -> None:
    run = await here.bash(session, "cancelled")
    await here.pending_permissions()
    await here.client.cancel_session(here.workspace, session)
    await here.events_until_end(run)


ACTIONS: list[tuple[Action, list[str], int]] = [
    # The action, the events that a resuming reader receives, and the number of requests open afterwards.
    (rename, ["session"], 0),
    (delete, ["session"], 0),
    (ask, ["permission_request", "permission_notification"], 1),
    (ask_and_answer, ["permission_request", "permission_notification", "permission_notification", "run_complete"], 0),
    (ask_and_cancel, ["permission_request", "permission_notification", "permission_notification", "run_complete"], 0),
]


def kinds_of(found: list[SseEvent], wanted: set[str]) -> list[str]:
    types = [json.loads(item.data)["type"] for item in found]
    return [name for name in types if name in wanted]


async def read_to(stream: RawStream, here: ApprovalClient) -> list[SseEvent]:
    """Read the events before a session that is created now: all earlier events have arrived by then."""
    mark = (await here.client.create_session(here.workspace, "the mark")).id
    await stream.until(lambda item: mark.encode() in item.data)
    return [item for item in stream.events if mark.encode() not in item.data]


@pytest.mark.parametrize("resume", ["resumed", "gap", "stock"])
@pytest.mark.parametrize(
    ("action", "expected_events", "open_requests"), ACTIONS, ids=lambda item: getattr(item, "__name__", "")
)
async def test_action_while_reader_is_disconnected(
    resume: str, action: Action, expected_events: list[str], open_requests: int
) -> None:
    async with approval_client() as here:
        session = await here.session()
        cursor = (await here.client.snapshot(here.workspace)).cursor
        path = f"/v1/workspaces/{here.workspace}/events"
        await action(here, session)
        query = {"resumed": f"?since={cursor}", "gap": f"?since={cursor + 1_000}"}.get(resume, "")
        stream = await RawStream.open(here.server.address, path + query)
        found = await read_to(stream, here)
        wanted = set(expected_events)
        if resume == "resumed":
            assert kinds_of(found, wanted) == expected_events
            numbers = [item.number for item in found if item.number is not None]
            assert numbers == list(range(cursor + 1, cursor + 1 + len(numbers))), "each number once, in order"
        elif resume == "gap":
            assert kinds_of(found, wanted) == []
            assert kinds_of(found, {"gap"}) == ["gap"]
            snapshot = await here.client.snapshot(here.workspace)
            assert len(snapshot.permissions) == open_requests
            titles = [item.title for item in snapshot.sessions if item.id == session]
            assert titles == (["renamed"] if action is rename else [] if action is delete else ["s"])
        else:
            assert kinds_of(found, {"permission_request"}) == ["permission_request"] * open_requests
            assert kinds_of(found, wanted - {"permission_request"}) == []
            assert all(item.number is None for item in found)
        stream.close()


@pytest.mark.parametrize("form", ["?since=0", ""], ids=["resumable", "stock"])
@pytest.mark.parametrize(
    ("action", "expected_events", "open_requests"), ACTIONS, ids=lambda item: getattr(item, "__name__", "")
)
async def test_action_while_reader_does_not_read(
    form: str, action: Action, expected_events: list[str], open_requests: int
) -> None:
    """It later receives the same as a reader without delay; a stock client receives one request at a time."""
    async with approval_client() as here:
        session = await here.session()
        stream = await RawStream.open(here.server.address, f"/v1/workspaces/{here.workspace}/events{form}")
        await stream.until(lambda _: True) if form else None
        stream.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            # More than the connection can buffer: the reader is behind from here on.
            await here.client.create_session(here.workspace, "x" * 300_000)
        await action(here, session)
        stream.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            found = await read_to(stream, here)
        of_session = [item for item in found if session.encode() in item.data]
        names = kinds_of(of_session, set(expected_events))
        assert [name for name in names if name != "session"] == [name for name in expected_events if name != "session"]
        if "session" in expected_events:
            assert names[-1] == "session"
            assert (b"renamed" if action is rename else b'"deleted"') in of_session[-1].data
        numbers = [item.number for item in found if item.number is not None]
        assert numbers == sorted(set(numbers))
        assert len((await here.client.snapshot(here.workspace)).permissions) == open_requests
        stream.close()


def test_samples_round_trip() -> None:
    """They encode and decode to themselves."""
    for kind, payloads in SAMPLES.items():
        for change, payload in product(KINDS, payloads):
            event: Event = event_of(kind, change, payload)
            assert type(events.decode_streamed_event(msgspec.json.encode(event))) is kind
