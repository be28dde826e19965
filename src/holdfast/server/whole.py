"""The stream in the Crush form: complete messages instead of deltas. Pure; time is an argument.

A growing message is sent in full soon after it began to grow, and then only when it has grown by a tenth, so that the
bytes sent stay within a small multiple of its length. Structural changes and the end of a message are sent at once.
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
    """A message that is being streamed, and how much of it was sent."""

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
    """Unfinished messages for one subscriber. Feed it every event and send the bodies that it returns.

    `look_up` returns a message that was already being streamed when the subscriber connected.
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
        """Return the bodies to send for an event, which may be none."""
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
                # Crush clients do not know these event types.
                return []
            case AgentEvent(payload=Change(payload=notice)) if notice.type in _NOT_FOR_THEM:
                # Crush clients treat a notice with an error as the end of the run. A failed run is reported separately.
                return []
            case _:
                return [body]

    def due(self, now: float) -> list[bytes]:
        """Return the messages and dialogs whose time has come."""
        ready = [item for item in self._growing.values() if item.due_at is not None and item.due_at <= now]
        return [*self._dialogs.due(now), *(item.take() for item in ready)]

    @property
    def next_due(self) -> float | None:
        """The time at which `due` returns something, or None."""
        times = [item.due_at for item in self._growing.values()] + [self._dialogs.next_due]
        return min((time for time in times if time is not None), default=None)
