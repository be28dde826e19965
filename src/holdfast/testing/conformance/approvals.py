"""Approvals and questions: requested, answered and withdrawn, numbered like all other events."""

from holdfast.domain.approvals import (
    Choice,
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionNotification,
    QuestionRequest,
)
from holdfast.domain.events import (
    ApprovalEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.store_operations import Admit, Announce, CloseRequest, DeleteSession, Receipt, Write
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, run

__all__ = ["CHECKS"]

SESSION, CALL = SessionId("s"), ToolCallId("c")
QUESTIONS = (
    Question("q", "single_choice", "Which?", "Where", "**bold**", (Choice("a", "A", "first"), Choice("b", "B"))),
)
EVENTS: tuple[ApprovalEvent, ...] = (
    PermissionRequestEvent(
        Change("created", PermissionRequest("p", SESSION, CALL, "bash", "run", "execute", {"command": "é"}, "/w"))
    ),
    PermissionNotificationEvent(Change("created", PermissionNotification(CALL, granted=False, denied=False))),
    PermissionNotificationEvent(
        Change("created", PermissionNotification(CALL, granted=True, denied=False, id="p", by="c1", action="allow"))
    ),
    QuestionRequestEvent(Change("created", QuestionRequest("b", SESSION, CALL, QUESTIONS, "Ready?", "", RunId("r")))),
    QuestionNotificationEvent(Change("created", QuestionNotification("b", SESSION, "c1", withdrawn=True))),
)


async def an_announced_event_is_numbered_and_read_back_unchanged(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    start = (await subject.ledger.bounds(owner.id))[1]
    receipt = await owner.do(*(Announce(event) for event in EVENTS))
    assert [entry.number for entry in receipt.entries] == list(range(start + 1, start + 1 + len(EVENTS)))
    assert receipt.runs == ()
    assert [event for _, event in await owner.events(start)] == list(EVENTS)


async def an_announced_event_survives_a_crash(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(*(Announce(event) for event in EVENTS))
    await subject.crash()
    owner = await WorkspaceOwner.open(subject.ledger)
    assert [event for _, event in await owner.events()][-len(EVENTS) :] == list(EVENTS)


async def an_announcement_changes_no_row(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(Admit(run("r"), b"h"))
    before = await subject.ledger.snapshot(owner.id, SESSION)
    await owner.do(Announce(EVENTS[0]))
    after = await subject.ledger.snapshot(owner.id, SESSION)
    assert (after.sessions, after.messages, after.runs) == (before.sessions, before.messages, before.runs)
    assert after.cursor == before.cursor + 1


async def the_first_stored_answer_closes_a_request(subject: Subject) -> None:
    """Later answers are refused, also after a crash and after a withdrawal, and so are answers to unknown requests."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    asked, granted = EVENTS[0], EVENTS[2]
    assert isinstance(granted, PermissionNotificationEvent)
    assert await owner.refused(CloseRequest(granted)) == "already_closed"
    await owner.do(Announce(asked), Announce(EVENTS[1]))
    answers = await owner.batch(Write((CloseRequest(granted),)), Write((CloseRequest(_denial_event()),)))
    assert [isinstance(answer, Receipt) for answer in answers] == [True, False]
    assert [event for _, event in await owner.events()][-1] == granted
    await subject.crash()
    owner = await WorkspaceOwner.open(subject.ledger)
    assert await owner.refused(CloseRequest(granted)) == "already_closed"
    await owner.do(Announce(EVENTS[3]), Announce(EVENTS[4]))
    closed = EVENTS[4]
    assert isinstance(closed, QuestionNotificationEvent)
    assert await owner.refused(CloseRequest(closed)) == "already_closed"


async def an_open_request_can_be_answered_after_a_crash(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(Announce(EVENTS[0]))
    await subject.crash()
    owner = await WorkspaceOwner.open(subject.ledger)
    await owner.do(CloseRequest(_denial_event()))
    await owner.do(Announce(EVENTS[0]), DeleteSession(SESSION))
    assert await owner.refused(CloseRequest(_denial_event())) == "already_closed"


def _denial_event() -> PermissionNotificationEvent:
    return PermissionNotificationEvent(
        Change("created", PermissionNotification(CALL, granted=False, denied=True, id="p", session_id=SESSION))
    )


CHECKS = tuple(
    Check(check)
    for check in (
        an_announced_event_is_numbered_and_read_back_unchanged,
        an_announced_event_survives_a_crash,
        an_announcement_changes_no_row,
        the_first_stored_answer_closes_a_request,
        an_open_request_can_be_answered_after_a_crash,
    )
)
