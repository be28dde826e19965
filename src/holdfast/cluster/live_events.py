"""Live events between nodes: those that are not stored, such as the text of a response while it is streamed.

The owner sends its live events to the other nodes as notifications (`LiveForwarder`), but only while they have clients
in the workspace. A notification may be lost, and a node may begin to listen in the middle of a response. Therefore a
receiver (`OpenMessages`) keeps each response that has no end yet. Text that does not continue what it has is set aside
while it reads the message from the store, where the owner appends the same text a moment later; its clients then
receive the whole parts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec

from holdfast.cluster.notifications import Delta, NotificationSender
from holdfast.domain.errors import StorageError
from holdfast.domain.events import (
    AttachedEvent,
    DurableEvent,
    LiveEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RunCompleteEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import FinishPart, Message
from holdfast.domain.store_operations import Entry
from holdfast.engine.ports import Outlet
from holdfast.tasks import TaskOwner

__all__ = ["LiveForwarder", "OpenMessages", "decode_live", "workspace_of"]

_READ_SECONDS = 0.06
"""Pause before a message is read: the owner stores text at about this interval."""
_MAX_SET_ASIDE = 1_000
"""Number of deltas of one message that are kept while it is read; later ones are read from the store as well."""
_SEPARATOR = "\t"


class LiveForwarder:
    """An outlet that also notifies the other nodes. `has_listeners` returns whether they have clients in the workspace.

    Events that each node derives itself are not sent: the number of viewers.
    """

    def __init__(
        self, workspace: WorkspaceId, outlet: Outlet, sender: NotificationSender, has_listeners: Callable[[], bool]
    ) -> None:
        self._workspace = workspace
        self._outlet = outlet
        self._sender = sender
        self._has_listeners = has_listeners

    def publish(self, entries: Iterable[Entry]) -> None:
        """Publish stored events, and notify nodes with clients that the log has grown."""
        self._outlet.publish(entries)
        if self._has_listeners():
            self._sender.wake(self._workspace)

    def publish_live(self, event: LiveEvent) -> None:
        """Publish an event that is not stored here and on the other nodes."""
        self._outlet.publish_live(event)
        if isinstance(event, AttachedEvent) or not self._has_listeners():
            return
        if isinstance(event, MessageDeltaEvent):
            delta = event.payload
            key = _SEPARATOR.join((self._workspace, delta.session_id, delta.message_id, str(delta.part)))
            self._sender.add_delta(key, delta.offset, delta.text)
        else:
            self._sender.add_event(self._workspace, encode_event(event).decode())


def workspace_of(delta: Delta) -> WorkspaceId:
    """Return the workspace of a received delta."""
    return WorkspaceId(delta.key.split(_SEPARATOR, 1)[0])


def decode_live(delta: Delta) -> LiveEvent | None:
    """Return the event of a received delta; None for one that a newer version sends."""
    if delta.offset < 0:
        try:
            event = decode_event(delta.text.encode())
        except msgspec.MsgspecError:
            return None
        return None if isinstance(event, DurableEvent) else event
    # Only the id of a session may contain the separator.
    session, message, part = delta.key.split(_SEPARATOR, 1)[1].rsplit(_SEPARATOR, 2)
    growth = MessageDelta(SessionId(session), MessageId(message), int(part), delta.offset, delta.text)
    return MessageDeltaEvent(growth)


class _OpenMessage:
    def __init__(self, message: Message) -> None:
        self.message = message
        self.set_aside: list[MessageDelta | MessagePart] = []
        self.is_reading = False

    def continues(self, growth: MessageDelta | MessagePart) -> bool:
        """Return whether the growth leaves no gap."""
        if isinstance(growth, MessagePart):
            return growth.part <= len(self.message.parts)
        if growth.part >= len(self.message.parts):
            return False
        length = text_length(self.message.parts[growth.part])
        return length is not None and growth.offset <= length

    def parts(self) -> list[MessagePart]:
        """Return the parts, each in full."""
        message = self.message
        return [MessagePart(message.session_id, message.id, index, part) for index, part in enumerate(message.parts)]


class OpenMessages:
    """The responses of one workspace that have no end yet, on a node that does not own it.

    `publish` sends live events to the clients of this node; `read` returns the messages of a run from the store.
    """

    def __init__(
        self, publish: Callable[[LiveEvent], None], read: Callable[[RunId], Awaitable[Iterable[Message]]]
    ) -> None:
        self._publish = publish
        self._read = read
        self._open: dict[MessageId, _OpenMessage] = {}
        self._tasks = TaskOwner()

    def add(self, messages: Iterable[Message]) -> None:
        """Add stored messages; those with an end are ignored."""
        for message in messages:
            if _is_growing(message):
                self._open[message.id] = _OpenMessage(message)

    def apply(self, event: DurableEvent) -> None:
        """Apply a stored event."""
        match event:
            case MessageEvent(change=change):
                self._apply_message(change.object, is_deleted=change.type == "deleted")
            case RunCompleteEvent(change=change):
                run = change.object.run_id
                self._open = {name: item for name, item in self._open.items() if item.message.run_id != run}
            case _:
                pass

    def _apply_message(self, message: Message, *, is_deleted: bool) -> None:
        known = self._open.get(message.id)
        if is_deleted or not _is_growing(message):
            self._open.pop(message.id, None)
        elif known is None:
            self._open[message.id] = _OpenMessage(message)
        else:
            known.message = message

    def receive(self, event: LiveEvent) -> None:
        """Apply an event that the owner has sent, and publish it here."""
        if not isinstance(event, MessageDeltaEvent | MessagePartEvent):
            self._publish(event)
            return
        known = self._open.get(event.payload.message_id)
        if known is None:
            # The log has not been read up to its beginning yet, or the message has ended.
            return
        if known.is_reading or not known.continues(event.payload):
            if len(known.set_aside) < _MAX_SET_ASIDE:
                known.set_aside.append(event.payload)
            if not known.is_reading:
                known.is_reading = True
                self._tasks.start(self._complete(known), name="read an open message")
            return
        known.message = grow(known.message, [event.payload])
        self._publish(event)

    async def _complete(self, known: _OpenMessage) -> None:
        """Read the message until the text that was set aside continues it, then publish its parts."""
        name = known.message.id
        while self._open.get(name) is known:
            await asyncio.sleep(_READ_SECONDS)
            with suppress(StorageError):
                stored = {message.id: message for message in await self._read(known.message.run_id)}
                if self._open.get(name) is not known or name not in stored or not _is_growing(stored[name]):
                    return
                known.message = stored[name]
                if all(map(known.continues, known.set_aside[:1])):
                    break
        known.message = grow(known.message, known.set_aside)
        known.set_aside.clear()
        known.is_reading = False
        for part in known.parts():
            self._publish(MessagePartEvent(part))

    def open_parts(self) -> list[MessagePart]:
        """Return every part of the open messages in full, for new subscribers."""
        return [part for item in self._open.values() for part in item.parts()]

    def open_messages(self, session: SessionId) -> list[Message]:
        """Return the messages of a session that are being streamed."""
        return [item.message for item in self._open.values() if item.message.session_id == session]

    def close(self) -> None:
        """Stop reading."""
        self._open.clear()
        self._tasks.cancel_all()


def _is_growing(message: Message) -> bool:
    return message.role == "assistant" and not any(isinstance(part, FinishPart) for part in message.parts)
