"""Messages: put, extended, deleted."""

from itertools import groupby
from typing import assert_never

import msgspec

from holdfast.domain.events import Change, MessageEvent
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import Message
from holdfast.domain.store_operations import DeleteMessage, GrowMessage, PutMessage
from holdfast.storage.operations.write_context import Context, Refused

__all__ = ["perform"]


def perform(operation: PutMessage | GrowMessage | DeleteMessage, context: Context) -> None:
    """Apply the operation. Growth has no durable event: subscribers received it as live deltas."""
    match operation:
        case PutMessage(message=message):
            _put(message, context)
        case GrowMessage():
            _grow(operation, context)
        case DeleteMessage(message_id=message_id):
            _delete(message_id, context)
        case _:
            assert_never(operation)


def _put(message: Message, context: Context) -> None:
    rows = context.tables.messages
    if rows.exists(message.id):
        rows.put(message)
        context.add_event(MessageEvent(Change("updated", message)))
        return
    session = context.tables.sessions.get(message.session_id)
    if session is None:
        raise Refused("unknown_session")
    rows.add(message)
    context.tables.sessions.put(
        msgspec.structs.replace(
            session,
            message_count=session.message_count + 1,
            updated_at=max(session.updated_at, message.updated_at),
        )
    )
    context.add_event(MessageEvent(Change("created", message)))


def _grow(operation: GrowMessage, context: Context) -> None:
    rows = context.tables.messages
    for message_id, items in groupby(operation.growth, key=lambda item: item.message_id):
        if rows.exists(message_id):
            rows.add_growth(message_id, tuple(items))


def _delete(message_id: MessageId, context: Context) -> None:
    message = context.tables.messages.get(message_id)
    if message is None:
        return
    context.tables.messages.delete(message_id)
    session = context.tables.sessions.get(message.session_id)
    if session is not None:
        context.tables.sessions.put(msgspec.structs.replace(session, message_count=session.message_count - 1))
    context.add_event(MessageEvent(Change("deleted", msgspec.structs.replace(message, parts=()))))
