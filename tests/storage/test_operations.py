"""Every operation in every state of its subject: refused, or executed with the given effect. For both stores.

The tables are complete: an operation, a state of a run or a reason of refusal without a row fails.
"""

import typing
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.events import (
    ApprovalEvent,
    Change,
    DurableEvent,
    MessageDelta,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
    RunEvent,
)
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.runs import Delivery, Run, RunState
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    Announce,
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    CreateSession,
    DeleteMessage,
    DeleteSession,
    EndRun,
    FoldRun,
    GrowMessage,
    MarkRead,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    Redeliver,
    Refusal,
    RefusalReason,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.engine.ports import Ledger
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.memory_ledger import MemoryLedger

NAME = "r"
STATES: dict[str, tuple[Operation, ...]] = {
    "unknown": (),
    "accepted": (Admit(run(NAME), b""),),
    "waiting": (Admit(run("before"), b""), Admit(run(NAME), b"")),
    "marked": (Admit(run(NAME), b""), CancelRun(RunId(NAME), "first")),
    "active": (Admit(run(NAME), b""), StartRun(RunId(NAME), 1)),
    "cancelling": (Admit(run(NAME), b""), StartRun(RunId(NAME), 1), CancelRun(RunId(NAME), "first")),
    "folded": (
        Admit(run("before"), b""),
        StartRun(RunId("before"), 1),
        Admit(run(NAME), b""),
        FoldRun(RunId(NAME), RunId("before"), 1),
    ),
    "ended": (Admit(run(NAME), b""), EndRun(RunId(NAME), "completed", 1)),
}
"""How a run reaches each state."""

WAITING = ("accepted", "waiting", "marked")
UNTOUCHED: typing.Literal["untouched"] = "untouched"
Result = RefusalReason | typing.Literal["untouched"] | dict[str, object]
"""Refused; no effect and no event; or the changed fields."""


def every(states: Iterable[str], result: Result) -> dict[str, Result]:
    return {state: result for state in states}


REFUSED_TO_START: dict[str, Result] = {
    "unknown": "unknown_run",
    "active": "already_started",
    "cancelling": "already_started",
    "folded": "already_started",
    "ended": "already_ended",
}
NOT_WAITING = every(("unknown", "active", "cancelling", "folded", "ended"), "not_waiting")
GONE: dict[str, Result] = {"unknown": "unknown_run", "ended": "already_ended"}
OPEN = ("accepted", "waiting", "marked", "active", "cancelling", "folded")
ID = RunId(NAME)
MARK: dict[str, object] = {"cancel_requested": True, "cancelled_by": "me"}
MARKED: dict[str, Result] = {
    "accepted": MARK,
    "waiting": MARK,
    "marked": UNTOUCHED,
    "active": {**MARK, "state": "cancelling"},
    "cancelling": UNTOUCHED,
    "folded": MARK,
    "ended": UNTOUCHED,
}
END = EndRun(ID, "failed", 9, "why", MessageId("m"), "text", RunId(""), model_unreachable=True)
ENDED: dict[str, object] = {
    "state": "ended", "outcome": "failed", "ended_at": 9, "error": "why", "message_id": "m", "model_unreachable": True,
}  # fmt: skip

OUTCOMES: dict[Operation, dict[str, Result]] = {
    StartRun(ID, 7): {
        **REFUSED_TO_START,
        "accepted": {"state": "active", "started_at": 7},
        "waiting": {"state": "active", "started_at": 7},
        "marked": {"state": "cancelling", "started_at": 7},
    },
    FoldRun(ID, RunId("host"), 7): {
        **REFUSED_TO_START,
        **every(WAITING, {"state": "folded", "folded_into": "host", "started_at": 7}),
    },
    StepRun(ID, 3): {**GONE, **every(OPEN, {"step": 3})},
    END: {**GONE, **every(OPEN, ENDED)},
    EndRun(ID, "cancelled", 9, folded_into=RunId("late")): {
        **GONE,
        **every(OPEN, {"state": "ended", "outcome": "cancelled", "ended_at": 9, "folded_into": "late"}),
    },
    CancelRun(ID, "me"): {"unknown": "unknown_run", **MARKED},
    CancelSession(SessionId("s"), "me"): {"unknown": UNTOUCHED, **MARKED},
    ClearQueue(SessionId("s"), (), "me"): {
        "unknown": UNTOUCHED, **MARKED, "active": UNTOUCHED, "folded": UNTOUCHED,
    },
    ClearQueue(SessionId("s"), (ID,), "me"): every(STATES, UNTOUCHED),
    Redeliver(ID, "steer"): {**NOT_WAITING, **every(WAITING, {"delivery": "steer"})},
    Reorder((ID,), ID): {**NOT_WAITING, **every(WAITING, {})},
    RemoveRun(RunId("nobody"), (ID,)): every(STATES, UNTOUCHED),
}  # fmt: skip

ELSEWHERE = {
    Admit, RemoveRun, PutMessage, GrowMessage, DeleteMessage, CreateSession, PatchSession, DeleteSession, AddFile,
    MarkRead, Announce, CloseRequest,
}  # fmt: skip
"""These have tables of their own below."""


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """One store for all tests of this module: each test has a workspace of its own."""
    if request.param == "memory":
        yield MemoryLedger()
        return
    ledger = SqliteLedger(tmp_path_factory.mktemp("operations"))
    yield ledger
    ledger.database.close()


@pytest.fixture
async def owner(request: pytest.FixtureRequest, ledger: Ledger) -> WorkspaceOwner:
    return await WorkspaceOwner.open(ledger, f"/{request.node.name}")


def test_every_operation_and_state_has_a_row() -> None:
    assert {type(operation) for operation in OUTCOMES} | ELSEWHERE == set(typing.get_args(Operation))
    assert all(set(outcomes) == set(STATES) for outcomes in OUTCOMES.values())
    assert set(typing.get_args(RunState)) <= set(STATES)


async def fresh_session(owner: WorkspaceOwner, *operations: Operation) -> None:
    """Create session "s" in this state: runs of an earlier one are ended and deleted."""
    for item in await owner.ledger.open_runs(owner.id):
        await owner.do(EndRun(item.run_id, "failed", 1), sync=False)
    for item in await owner.ledger.runs(owner.id, None, 99, 0):
        await owner.do(RemoveRun(item.run_id), sync=False)
    if await owner.ledger.session(owner.id, SessionId("s")) is not None:
        await owner.do(DeleteSession(SessionId("s")), sync=False)
    await owner.do(CreateSession(session("s")), *operations, sync=False)


def renamed(operation: Operation, number: int) -> Operation:
    """Return the same operation on runs with other names: an id is used once."""
    changes: dict[str, object] = {}
    for field in operation.__struct_fields__:
        value = getattr(operation, field)
        if isinstance(value, Run):
            changes[field] = msgspec.structs.replace(value, run_id=RunId(f"{value.run_id}{number}"))
        elif field in ("order", "spared", "keep"):
            changes[field] = tuple(RunId(f"{item}{number}") for item in value)
        elif field in ("run_id", "moved"):
            changes[field] = RunId(f"{value}{number}")
    return msgspec.structs.replace(operation, **changes)


@pytest.mark.parametrize("operation", OUTCOMES, ids=lambda operation: type(operation).__name__)
async def test_a_run_in_every_state(operation: Operation, owner: WorkspaceOwner) -> None:
    for number, (state, result) in enumerate(OUTCOMES[operation].items()):
        await fresh_session(owner, *(renamed(step, number) for step in STATES[state]))
        record = await owner.ledger.run(owner.id, RunId(f"{NAME}{number}"))
        newest = (await owner.ledger.bounds(owner.id))[1]
        (answer,) = await owner.batch(Write((renamed(operation, number),), sync=False))
        after = await owner.ledger.run(owner.id, RunId(f"{NAME}{number}"))
        output = [event for _, event in await owner.events(newest)]
        if isinstance(result, str):
            assert after == record, state
            assert f'"{NAME}{number}"' not in str([msgspec.json.encode(event) for event in output]), state
            assert isinstance(answer, Receipt) if result == UNTOUCHED else answer == Refusal(result), state
            continue
        assert record is not None
        assert after == msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, **result)), state
        assert isinstance(answer, Receipt), state
        assert [entry.event for entry in answer.entries] == output
        assert about(output, after.run) == [after.run.run_id], state


def about(published: list[DurableEvent], stored: Run) -> list[str]:
    """Return the runs that are published as they are stored now, or as ended."""
    found: list[str] = []
    for event in published:
        if isinstance(event, RunEvent):
            payload = event.change.object
            if payload.run_id == stored.run_id:
                assert payload == msgspec.structs.replace(stored, prompt="")
                found.append(payload.run_id)
        elif isinstance(event, RunCompleteEvent):
            end = event.change.object
            assert (end.outcome, end.cancelled) == (stored.outcome, stored.outcome == "cancelled")
            assert (end.error, end.message_id, end.folded_into) == (
                stored.error,
                stored.message_id,
                stored.folded_into,
            )
            assert end.model_unreachable == stored.model_unreachable
            found.append(end.run_id)
    return found


DELIVERIES: dict[Delivery, bool] = {"queue": True, "steer": True, "interrupt": True, "reject": False}
"""The state, and whether the prompt is admitted while the session has a run without an end."""


async def test_admission_by_delivery_and_queue_state(owner: WorkspaceOwner) -> None:
    assert set(DELIVERIES) == set(typing.get_args(Delivery))
    number = 0
    for state, steps in STATES.items():
        ahead = {"unknown": 0, "ended": 0, "waiting": 2, "folded": 1}.get(state, 1)
        for delivery, is_admitted in DELIVERIES.items():
            number += 1
            await fresh_session(owner, *(renamed(step, number) for step in steps))
            asked = msgspec.structs.replace(run(f"new{number}"), delivery=delivery)
            (answer,) = await owner.batch(Write((Admit(asked, b"hash"),), sync=False))
            case = (state, delivery)
            if ahead and not is_admitted:
                assert answer == Refusal("busy"), case
                continue
            assert isinstance(answer, Receipt), case
            found = await owner.get(asked.run_id)
            assert (found.position, found.state) == (ahead, "waiting" if ahead else "accepted"), case
            others = [item for item in await owner.ledger.open_runs(owner.id) if item.run_id != asked.run_id]
            if delivery == "interrupt":
                assert all(item.cancel_requested for item in others), case
                assert {item.cancelled_by for item in others} <= {"c1", "first"}, case
            elif state not in ("marked", "cancelling"):
                assert not any(item.cancel_requested for item in others), case


async def test_refusal_precedence_is_used_id_then_unknown_session_then_busy(owner: WorkspaceOwner) -> None:
    await owner.do(CreateSession(session("s")), Admit(run("r"), b""), sync=False)
    rejecting = msgspec.structs.replace(run("other", session="nowhere"), delivery="reject")
    assert await owner.refused(Admit(run("r", session="nowhere"), b"")) == "run_exists"
    assert await owner.refused(Admit(rejecting, b"")) == "unknown_session"
    assert await owner.refused(Admit(msgspec.structs.replace(rejecting, session_id=SessionId("s")), b"")) == "busy"


@pytest.mark.parametrize("state", STATES)
async def test_removed_interrupt_clears_its_cancel_marks(state: str, owner: WorkspaceOwner) -> None:
    """Whatever happened to the other runs meanwhile; an ended run is unchanged."""
    await fresh_session(owner, *STATES[state])
    before = await owner.ledger.run(owner.id, ID)
    await owner.do(Admit(msgspec.structs.replace(run("new"), delivery="interrupt"), b""), sync=False)
    receipt = await owner.do(RemoveRun(RunId("new"), (ID,)), sync=False)
    assert isinstance(receipt.entries[0].event, RunEvent)
    assert receipt.entries[0].event.change.type == "deleted"
    after = await owner.ledger.run(owner.id, ID)
    assert await owner.ledger.run(owner.id, RunId("new")) is None
    if before is None or after is None or state == "ended":
        assert after == before
        return
    unmarked = {"cancel_requested": False, "cancelled_by": "", "state": "active"}
    if state not in ("active", "cancelling"):
        unmarked["state"] = before.run.state
    assert after.run == msgspec.structs.replace(before.run, **unmarked)


SESSIONS: list[tuple[Callable[[SessionId], Operation], RefusalReason | None]] = [
    (lambda name: CreateSession(session(name)), None),
    (lambda name: Admit(run("x", session=name), b""), "unknown_session"),
    (lambda name: PatchSession(SessionPatch(name, 1)), "unknown_session"),
    (DeleteSession, "unknown_session"),
    (lambda name: AddFile(FileVersion("f", name, "/a", "text", 0, 1, 1)), "unknown_session"),
    (lambda name: PutMessage(message("m", session=name)), "unknown_session"),
    (lambda name: MarkRead(ReadMark(name, "/a", 1)), None),
    (lambda name: GrowMessage((MessageDelta(name, MessageId("nobody"), 0, 0, "x"),)), None),
    (lambda _: DeleteMessage(MessageId("nobody")), None),
    (CancelSession, None),
    (ClearQueue, None),
]


@pytest.mark.parametrize("place", range(len(SESSIONS)))
async def test_operations_on_a_missing_session(place: int, owner: WorkspaceOwner) -> None:
    make, reason = SESSIONS[place]
    operation = make(SessionId("missing"))
    await owner.do(CreateSession(session("s")), sync=False)
    if reason is not None:
        assert await owner.refused(operation) == reason
        return
    receipt = await owner.do(operation, sync=False)
    assert len(receipt.entries) == isinstance(operation, CreateSession)
    if isinstance(operation, CreateSession):
        assert await owner.refused(operation) == "session_exists"
    assert await owner.ledger.read_mark(owner.id, SessionId("missing"), "/a") is None


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("place", ["s", "child", "grandchild"])
async def test_session_tree_with_an_open_run_is_not_deleted(state: str, place: str, owner: WorkspaceOwner) -> None:
    await owner.do(
        CreateSession(session("s")),
        CreateSession(session("child", parent="s")),
        CreateSession(session("grandchild", parent="child")),
        CreateSession(session("bystander")),
        *(_in_session(step, place) for step in STATES[state]),
        sync=False,
    )
    if state not in ("unknown", "ended"):
        assert await owner.refused(DeleteSession(SessionId("s"))) == "busy"
        return
    receipt = await owner.do(DeleteSession(SessionId("s")), sync=False)
    assert [entry.event.change.object.id for entry in receipt.entries] == ["grandchild", "child", "s"]  # type: ignore[union-attr]
    assert [item.id for item in await owner.ledger.sessions(owner.id)] == ["bystander"]
    if state == "ended":
        assert await owner.refused(Admit(run(NAME, session="bystander"), b"")) == "run_exists"


def _in_session(operation: Operation, name: str) -> Operation:
    if isinstance(operation, Admit):
        return msgspec.structs.replace(
            operation, run=msgspec.structs.replace(operation.run, session_id=SessionId(name))
        )
    return operation


ASKED: dict[str, ApprovalEvent] = {
    "permission": PermissionRequestEvent(
        Change("created", PermissionRequest("p", SessionId("s"), ToolCallId("c"), "bash", "run", "execute", {}, "/w"))
    ),
    "question": QuestionRequestEvent(
        Change("created", QuestionRequest("p", SessionId("s"), ToolCallId("c"), (), "", "", RunId("r")))
    ),
}


def permission_notification(*, granted: bool, denied: bool, name: str = "p") -> PermissionNotificationEvent:
    return PermissionNotificationEvent(
        Change("created", PermissionNotification(ToolCallId("c"), granted=granted, denied=denied, id=name))
    )


CLOSING: dict[str, tuple[PermissionNotificationEvent | QuestionNotificationEvent, bool]] = {
    "granted": (permission_notification(granted=True, denied=False), True),
    "denied": (permission_notification(granted=False, denied=True), True),
    "pending": (permission_notification(granted=False, denied=False), False),
    "another": (permission_notification(granted=True, denied=False, name="q"), False),
    "answered": (QuestionNotificationEvent(Change("created", QuestionNotification("p", SessionId("s"), "c1"))), True),
    "another batch": (
        QuestionNotificationEvent(Change("created", QuestionNotification("q", SessionId("s"), "c1"))),
        False,
    ),
}


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("answer", CLOSING)
@pytest.mark.parametrize("asked", ASKED)
async def test_a_request_is_closed_once(asked: str, answer: str, owner: WorkspaceOwner, *, announced: bool) -> None:
    """By the first answer that names it, published or queried; other answers leave it open."""
    event, closes = CLOSING[answer]
    await owner.do(CreateSession(session("s")), Announce(ASKED[asked]), sync=False)
    if announced or closes:
        receipt = await owner.do(Announce(event) if announced else CloseRequest(event), sync=False)
        assert [entry.event for entry in receipt.entries] == [event]
    else:
        assert await owner.refused(CloseRequest(event)) == "already_closed"
    last = CloseRequest(CLOSING["granted" if asked == "permission" else "answered"][0])
    if closes:
        assert await owner.refused(last) == "already_closed"
    else:
        await owner.do(last, sync=False)


def test_every_refusal_reason_is_covered() -> None:
    seen = {result for outcomes in OUTCOMES.values() for result in outcomes.values() if isinstance(result, str)} - {
        UNTOUCHED
    }
    elsewhere = {"run_exists", "session_exists", "unknown_session", "already_closed", "busy"}
    # Only cancels of nodes that do not own the workspace lead to these: `testing/conformance/inputs.py`.
    shared = {"folded", "must_cancel"}
    assert seen | elsewhere | shared == set(typing.get_args(RefusalReason))
