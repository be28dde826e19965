"""The stream as stock clients know it: whole messages instead of deltas. Pure; time is handed in.

A growing message is sent whole soon after it began to grow, and then only when it has grown by a tenth, so that
its bytes stay within a small multiple of its length. What changed its structure, and its end, come at once.
"""

from collections.abc import Callable

from holdfast.domain.events import (
    AgentEvent,
    AttachedEvent,
    Change,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RemovedEvent,
    RunEvent,
    ToolOutputEvent,
    encode_event,
)
from holdfast.domain.growth import grow
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message
from holdfast.server.dialogs import Dialogs

__all__ = ["FIRST_SECONDS", "WholeMessages"]

FIRST_SECONDS = 0.033
_SHARE = 10
_NOT_FOR_THEM = ("retrying", "fallback", "re_authenticate")


class _Growing:
    """A message on its way, and how much of it was sent."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.growth: list[MessageDelta | MessagePart] = []
        self.size = 0
        self.sent_size = 0
        self.due_at: float | None = None

    def add(self, growth: MessageDelta | MessagePart, now: float) -> None:
        self.growth.append(growth)
        self.size += len(growth.text) if isinstance(growth, MessageDelta) else 64
        if self.due_at is None and self.size >= self.sent_size + self.sent_size // _SHARE:
            self.due_at = now + FIRST_SECONDS

    def take(self) -> bytes:
        self.message = grow(self.message, self.growth)
        self.growth = []
        self.sent_size = self.size
        self.due_at = None
        return encode_event(MessageEvent(Change("updated", self.message)))


class WholeMessages:
    """One reader's messages in the making. Feed it every event; send what it gives back.

    `look_up` tells of a message that was already growing when the reader came.
    """

    def __init__(
        self,
        look_up: Callable[[SessionId, MessageId], Message | None] = lambda _session, _message: None,
        dialogs: Dialogs | None = None,
    ) -> None:
        self._growing: dict[MessageId, _Growing] = {}
        self._look_up = look_up
        self._dialogs = dialogs or Dialogs()

    def feed(self, event: object, body: bytes, now: float) -> list[bytes]:
        match event:
            case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
                if (growing := self._growing.get(growth.message_id)) is not None:
                    growing.add(growth, now)
                elif (found := self._look_up(growth.session_id, growth.message_id)) is not None:
                    late = self._growing[found.id] = _Growing(found)
                    late.due_at = now + FIRST_SECONDS
                return []
            case MessageEvent(payload=Change(type=kind, payload=message)):
                self._growing.pop(message.id, None)
                if kind != "deleted" and message.role == "assistant" and message.finish is None:
                    self._growing[message.id] = _Growing(message)
                return [body]
            case (
                PermissionRequestEvent()
                | PermissionNotificationEvent()
                | QuestionRequestEvent()
                | QuestionNotificationEvent()
            ):
                return self._dialogs.feed(event, body, now)
            case RunEvent() | ToolOutputEvent() | AttachedEvent() | RemovedEvent():
                # They have no names for these.
                return []
            case AgentEvent(payload=Change(payload=notice)) if notice.type in _NOT_FOR_THEM:
                # They take any notice with an error for the end of the run. If it fails, that is told as well.
                return []
            case _:
                return [body]

    def due(self, now: float) -> list[bytes]:
        """The messages and dialogs whose time has come."""
        ready = [item for item in self._growing.values() if item.due_at is not None and item.due_at <= now]
        return [*self._dialogs.due(now), *(item.take() for item in ready)]

    @property
    def next_due(self) -> float | None:
        times = [item.due_at for item in self._growing.values()] + [self._dialogs.next_due]
        return min((time for time in times if time is not None), default=None)
