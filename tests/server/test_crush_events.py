"""What a stock client gets of every event type, and both forms of the stream while something happens in a gap."""

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
    """A struct with what it needs, and nothing else."""
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
OF_THE_STREAM = (events.HelloEvent, events.GapEvent)
"""The stream itself leaves them out, before anything is made whole."""
UNKNOWN = (events.RunEvent, events.ToolOutputEvent, events.AttachedEvent, events.RemovedEvent)
GROWTH = (events.MessageDeltaEvent, events.MessagePartEvent)
SILENT_NOTICES = {"retrying", "fallback", "re_authenticate"}


def event_of(kind: type[Any], change: ChangeKind, payload: Any) -> Any:  # noqa: ANN401
    has_change = "change" in kind.__struct_fields__
    return kind(Change(change, payload)) if has_change else kind(payload)


def test_every_event_type_has_samples() -> None:
    assert set(SAMPLES) == set(get_args(StreamedEvent))


@pytest.mark.parametrize(
    "kind", [kind for kind in SAMPLES if kind not in OF_THE_STREAM], ids=lambda kind: kind.__name__
)
def test_what_a_stock_client_gets_at_once(kind: type[Any]) -> None:
    """The event itself, byte for byte, or nothing; a notice about questions only if their form is shown."""
    for change, payload in product(KINDS, SAMPLES[kind]):
        event = event_of(kind, change, payload)
        body = b"the very bytes"
        sent = CrushStream().feed(event, body, 0.0)
        is_silent = kind in (*UNKNOWN, *GROWTH) or getattr(payload, "type", "") in SILENT_NOTICES
        is_silent = is_silent or kind is events.QuestionNotificationEvent
        assert sent == ([] if is_silent else [body]), (kind, change, payload)


@pytest.mark.parametrize("growth", GROWTH, ids=lambda kind: kind.__name__)
def test_a_message_grows_only_between_its_beginning_and_its_end(growth: type[Any]) -> None:
    for change, begun in product(KINDS, SAMPLES[events.MessageEvent]):
        form = CrushStream()
        form.feed(event_of(events.MessageEvent, change, begun), b"", 0.0)
        form.feed(growth(SAMPLES[growth][0]), b"", 0.0)
        is_growing = change != "deleted" and begun.role == "assistant" and begun.finish is None
        assert (form.next_due is not None) is is_growing, (change, begun.role)
        assert len(form.due(1.0)) == is_growing
        assert form.next_due is None


def test_the_next_whole_message_comes_when_it_has_grown_by_a_tenth() -> None:
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


Happening = Callable[[ApprovalClient, SessionId], Awaitable[None]]


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


HAPPENINGS: list[tuple[Happening, list[str], int]] = [
    # What happens, the events of it that a reader who resumes gets, and the asks that are open afterwards.
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
    """All that comes before a session that is made now: what was to come has come by then."""
    mark = (await here.client.create_session(here.workspace, "the mark")).id
    await stream.until(lambda item: mark.encode() in item.data)
    return [item for item in stream.events if mark.encode() not in item.data]


@pytest.mark.parametrize("resume", ["resumed", "gap", "stock"])
@pytest.mark.parametrize(("happening", "told", "asked"), HAPPENINGS, ids=lambda item: getattr(item, "__name__", ""))
async def test_something_happens_while_a_reader_is_away(
    resume: str, happening: Happening, told: list[str], asked: int
) -> None:
    async with approval_client() as here:
        session = await here.session()
        cursor = (await here.client.snapshot(here.workspace)).cursor
        path = f"/v1/workspaces/{here.workspace}/events"
        await happening(here, session)
        query = {"resumed": f"?since={cursor}", "gap": f"?since={cursor + 1_000}"}.get(resume, "")
        stream = await RawStream.open(here.server.address, path + query)
        found = await read_to(stream, here)
        wanted = set(told)
        if resume == "resumed":
            assert kinds_of(found, wanted) == told
            numbers = [item.number for item in found if item.number is not None]
            assert numbers == list(range(cursor + 1, cursor + 1 + len(numbers))), "each number once, in order"
        elif resume == "gap":
            assert kinds_of(found, wanted) == []
            assert kinds_of(found, {"gap"}) == ["gap"]
            snapshot = await here.client.snapshot(here.workspace)
            assert len(snapshot.permissions) == asked
            titles = [item.title for item in snapshot.sessions if item.id == session]
            assert titles == (["renamed"] if happening is rename else [] if happening is delete else ["s"])
        else:
            assert kinds_of(found, {"permission_request"}) == ["permission_request"] * asked
            assert kinds_of(found, wanted - {"permission_request"}) == []
            assert all(item.number is None for item in found)
        stream.close()


@pytest.mark.parametrize("form", ["?since=0", ""], ids=["resumable", "stock"])
@pytest.mark.parametrize(("happening", "told", "asked"), HAPPENINGS, ids=lambda item: getattr(item, "__name__", ""))
async def test_something_happens_while_a_reader_does_not_read(
    form: str, happening: Happening, told: list[str], asked: int
) -> None:
    """What it gets later is the same as if it had read at once; of asks a stock client gets one at a time."""
    async with approval_client() as here:
        session = await here.session()
        stream = await RawStream.open(here.server.address, f"/v1/workspaces/{here.workspace}/events{form}")
        await stream.until(lambda _: True) if form else None
        stream.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            # More than fits into the connection: the reader is behind from here on.
            await here.client.create_session(here.workspace, "x" * 300_000)
        await happening(here, session)
        stream.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            found = await read_to(stream, here)
        of_session = [item for item in found if session.encode() in item.data]
        names = kinds_of(of_session, set(told))
        assert [name for name in names if name != "session"] == [name for name in told if name != "session"]
        if "session" in told:
            assert names[-1] == "session"
            assert (b"renamed" if happening is rename else b'"deleted"') in of_session[-1].data
        numbers = [item.number for item in found if item.number is not None]
        assert numbers == sorted(set(numbers))
        assert len((await here.client.snapshot(here.workspace)).permissions) == asked
        stream.close()


def test_samples_are_events() -> None:
    """They encode and decode as what they are."""
    for kind, payloads in SAMPLES.items():
        for change, payload in product(KINDS, payloads):
            event: Event = event_of(kind, change, payload)
            assert type(events.decode_streamed_event(msgspec.json.encode(event))) is kind
