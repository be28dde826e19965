"""Messages: order, growth and removal."""

import msgspec

from holdfast.domain.events import MessageDelta, MessageEvent, MessagePart
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Part,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.store_operations import DeleteMessage, GrowMessage, PutMessage, Receipt
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message

__all__ = ["CHECKS"]

SESSION = SessionId("s")
PARTS: tuple[Part, ...] = (
    ReasoningPart(Reasoning("Hm — é 😀", "sig", 1, 2, ("enc",))),
    TextPart(Text("Zwölf\n\u0000")),
    BinaryPart(Binary("/p", "image/png", b"\x00\xfe")),
    ToolCallPart(ToolCall(ToolCallId("c"), "bash", "{}", finished=True)),
    ToolResultPart(ToolResult(ToolCallId("c"), "bash", "out", "{}", is_error=True)),
    FinishPart(Finish("end_turn", 9, "m", "d")),
)


def _delta(name: str, offset: int, text: str, *, part: int = 0) -> MessageDelta:
    return MessageDelta(SESSION, MessageId(name), part, offset, text)


async def _texts(owner: WorkspaceOwner) -> list[str]:
    found = await owner.ledger.messages(owner.id, SESSION)
    return [part.data.text for item in found for part in item.parts if isinstance(part, TextPart)]


async def a_message_is_created_then_updated(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    first = (await owner.put(message("m", "one"))).entries[0].event
    second = (await owner.put(message("m", "two"))).entries[0].event
    assert isinstance(first, MessageEvent)
    assert isinstance(second, MessageEvent)
    assert (first.change.type, first.change.object) == ("created", message("m", "one"))
    assert (second.change.type, second.change.object) == ("updated", message("m", "two"))
    assert await subject.ledger.messages(owner.id, SESSION) == [message("m", "two")]


async def a_message_is_read_back_unchanged(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    whole = msgspec.structs.replace(message("m", run="r"), parts=PARTS, is_summary_message=True)
    await owner.put(whole)
    assert list(await subject.ledger.messages(owner.id, SESSION)) == [whole]


async def messages_keep_the_order_in_which_they_were_created(subject: Subject) -> None:
    """Times and ids cannot determine the order: here all times are equal, and the ids descend."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    names = [f"m{9 - index}" for index in range(9)]
    for name in names[:5]:
        await owner.put(message(name))
    await owner.put(*(message(name) for name in names[5:]))
    await owner.put(message("m9", "changed", updated_at=999))
    await owner.do(GrowMessage((_delta("m8", 0, "grown"),)))
    await owner.do(DeleteMessage(MessageId("m1")))
    await owner.put(message("m0"))
    found = [item.id for item in await subject.ledger.messages(owner.id, SESSION)]
    assert found == [*names[:8], "m0"]


async def a_new_message_counts_in_its_session(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    receipt = await owner.put(message("m1", updated_at=150), message("m2", updated_at=120), message("m1"))
    assert all(isinstance(entry.event, MessageEvent) for entry in receipt.entries)
    session = await subject.ledger.session(owner.id, SESSION)
    assert session is not None
    assert (session.message_count, session.updated_at) == (2, 150)


async def a_message_needs_a_session(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    assert await owner.refused(PutMessage(message("m", session="nowhere"))) == "unknown_session"


async def growth_is_read_with_the_message_and_makes_no_event(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m1", "a"), message("m2", "x"))
    grown = await owner.do(GrowMessage((_delta("m1", 1, "b"), _delta("m2", 1, "y"), _delta("m1", 2, "c"))))
    await owner.do(GrowMessage((_delta("m1", 2, "cd"),)))
    assert grown == Receipt()
    assert await _texts(owner) == ["abcd", "xy"]
    snapshot = await subject.ledger.snapshot(owner.id, SESSION)
    assert list(snapshot.messages) == list(await subject.ledger.messages(owner.id, SESSION))


async def whole_parts_grow_a_message_too(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m", "a"))
    part = MessagePart(SESSION, MessageId("m"), 1, TextPart(Text("new")))
    await owner.do(GrowMessage((part, _delta("m", 3, "er", part=1))))
    assert await _texts(owner) == ["a", "newer"]


async def putting_a_message_replaces_its_growth(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m", "a"))
    await owner.do(GrowMessage((_delta("m", 1, "b"),)))
    await owner.put(message("m", "z"))
    assert await _texts(owner) == ["z"]
    await owner.do(GrowMessage((_delta("m", 1, "y"),)))
    assert await _texts(owner) == ["zy"]


async def growth_of_unknown_messages_is_skipped(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m", "a"))
    await owner.do(GrowMessage((_delta("none", 0, "x"), _delta("m", 1, "b"))))
    assert await _texts(owner) == ["ab"]


async def a_deleted_message_is_not_read_back(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m1", "a"), message("m2", "b"))
    await owner.do(GrowMessage((_delta("m1", 1, "x"),)))
    (entry,) = (await owner.do(DeleteMessage(MessageId("m1")))).entries
    assert isinstance(entry.event, MessageEvent)
    assert entry.event.change.type == "deleted"
    assert (entry.event.change.object.id, entry.event.change.object.parts) == ("m1", ())
    assert await _texts(owner) == ["b"]
    session = await subject.ledger.session(owner.id, SESSION)
    assert session is not None
    assert session.message_count == 1
    assert await owner.do(DeleteMessage(MessageId("m1"))) == Receipt()


async def the_messages_of_a_run_are_found(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.put(message("m1", run="r1"), message("m2"), message("m3", "a", run="r1"), message("m4", run="r2"))
    await owner.do(GrowMessage((_delta("m3", 1, "b"),)))
    found = await subject.ledger.messages_of_run(owner.id, RunId("r1"))
    assert list(found) == [message("m1", run="r1"), message("m3", "ab", run="r1")]
    assert list(await subject.ledger.messages_of_run(owner.id, RunId(""))) == []


CHECKS = tuple(
    Check(check)
    for check in (
        a_message_is_created_then_updated,
        a_message_is_read_back_unchanged,
        messages_keep_the_order_in_which_they_were_created,
        a_new_message_counts_in_its_session,
        a_message_needs_a_session,
        growth_is_read_with_the_message_and_makes_no_event,
        whole_parts_grow_a_message_too,
        putting_a_message_replaces_its_growth,
        growth_of_unknown_messages_is_skipped,
        a_deleted_message_is_not_read_back,
        the_messages_of_a_run_are_found,
    )
)
