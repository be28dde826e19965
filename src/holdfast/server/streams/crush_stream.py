"""The stream in the Crush form: complete messages instead of deltas. Pure; time is an argument.

A growing message is sent in full soon after it began to grow, and then only when it has grown by a tenth, so that the
bytes sent stay within a small multiple of its length. Structural changes and the end of a message are sent at once.

Crush clients show one dialog at a time: a permission request or a batch of questions is sent only when the previous
one is closed.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.events import (
    AgentEvent,
    ApprovalEvent,
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
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message

__all__ = ["FIRST_SECONDS", "PAUSE_SECONDS", "CrushDialogs", "CrushStream"]

PAUSE_SECONDS = 0.5
FIRST_SECONDS = 0.033
_MIN_GROWTH_SHARE = 10
_UNSUPPORTED_NOTICES = ("retrying", "fallback", "re_authenticate")


class _DialogQueue:
    """Requests of one kind, oldest first. At most one of them has been sent and is open."""

    def __init__(self, pause: float, ready_at: float) -> None:
        self._pause = pause
        self._ready_at = ready_at
        self._waiting: dict[str, bytes] = {}
        self._shown = ""

    def add(self, ask: str, body: bytes) -> None:
        if ask != self._shown:
            self._waiting[ask] = body

    def close(self, ask: str, now: float) -> bool:
        """Close a request. Returns True if it was the one that is shown."""
        self._waiting.pop(ask, None)
        if ask != self._shown:
            return False
        self._shown = ""
        self._ready_at = now + self._pause
        return True

    def due(self, now: float) -> list[bytes]:
        if self._shown or not self._waiting or now < self._ready_at:
            return []
        self._shown = next(iter(self._waiting))
        return [self._waiting.pop(self._shown)]

    @property
    def next_due(self) -> float | None:
        return self._ready_at if self._waiting and not self._shown else None


class CrushDialogs:
    """The requests for one subscriber, beginning with those that were open when it connected."""

    def __init__(
        self,
        permissions: Sequence[PermissionRequest] = (),
        questions: Sequence[QuestionRequest] = (),
        *,
        now: float = 0.0,
        pause: float = 0.0,
        withdrawn: Sequence[ApprovalEvent] = (),
    ) -> None:
        """Create the queues.

        `pause` is the time until the next form may be shown. `withdrawn` contains requests that a previous server left
        open; its clients still show them. Any notice, or the next form, closes a form that is shown.
        """
        self._stale = [encode_event(event) for event in withdrawn if isinstance(event, PermissionNotificationEvent)]
        forms = [encode_event(event) for event in withdrawn if isinstance(event, QuestionNotificationEvent)]
        # Crush shows one form at a time, so one notice closes it; the next form replaces it without a notice.
        self._stale += [] if questions else forms[:1]
        self._permissions = _DialogQueue(0.0, now)
        self._questions = _DialogQueue(PAUSE_SECONDS, now + pause)
        for ask in permissions:
            self._permissions.add(ask.id, encode_event(PermissionRequestEvent(Change("created", ask))))
        for batch in questions:
            self._questions.add(batch.id, encode_event(QuestionRequestEvent(Change("created", batch))))

    def feed(self, event: ApprovalEvent, body: bytes, now: float) -> list[bytes]:
        """Return the bodies to send for an event, which may be none."""
        match event:
            case PermissionRequestEvent(change=ask):
                self._permissions.add(ask.object.id, body)
                return self._permissions.due(now)
            case QuestionRequestEvent(change=batch):
                self._questions.add(batch.object.id, body)
                return self._questions.due(now)
            case PermissionNotificationEvent(change=notice):
                if notice.object.granted or notice.object.denied:
                    self._permissions.close(notice.object.id, now)
                return [_without_answer(event, body), *self._permissions.due(now)]
            case QuestionNotificationEvent(change=closed):
                return [_without_answer(event, body)] if self._questions.close(closed.object.batch_id, now) else []

    def due(self, now: float) -> list[bytes]:
        """Return the bodies whose time has come."""
        stale, self._stale = self._stale, []
        return [*stale, *self._permissions.due(now), *self._questions.due(now)]

    @property
    def next_due(self) -> float | None:
        """The time at which `due` returns something, or None."""
        if self._stale:
            return 0.0
        times = [due for due in (self._permissions.next_due, self._questions.next_due) if due is not None]
        return min(times, default=None)


def _without_answer(event: PermissionNotificationEvent | QuestionNotificationEvent, body: bytes) -> bytes:
    """Return the event as Crush clients know it: without the content of an answer that another node accepted."""
    if isinstance(event, PermissionNotificationEvent):
        notice = event.change.object
        if not notice.reason:
            return body
        return encode_event(PermissionNotificationEvent(Change("created", replace(notice, reason=""))))
    closed = event.change.object
    if not closed.answers:
        return body
    return encode_event(QuestionNotificationEvent(Change("created", replace(closed, answers=()))))


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
        if self.due_at is None and self.size >= self.sent_size + self.sent_size // _MIN_GROWTH_SHARE:
            self.due_at = now + FIRST_SECONDS

    def take(self) -> bytes:
        self.message = grow(self.message, self.growth)
        self.growth = []
        self.sent_size = self.size
        self.due_at = None
        return encode_event(MessageEvent(Change("updated", self.message)))


class CrushStream:
    """Unfinished messages for one subscriber. Feed it every event and send the bodies that it returns.

    `find_message` returns a message that was already being streamed when the subscriber connected.
    """

    def __init__(
        self,
        find_message: Callable[[SessionId, MessageId], Message | None] = lambda _session, _message: None,
        dialogs: CrushDialogs | None = None,
    ) -> None:
        self._growing: dict[MessageId, _Growing] = {}
        self._find_message = find_message
        self._dialogs = dialogs or CrushDialogs()

    def feed(self, event: object, body: bytes, now: float) -> list[bytes]:
        """Return the bodies to send for an event, which may be none."""
        match event:
            case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
                if (growing := self._growing.get(growth.message_id)) is not None:
                    growing.add(growth, now)
                elif (found := self._find_message(growth.session_id, growth.message_id)) is not None:
                    joined = self._growing[found.id] = _Growing(found)
                    # The found message already contains this growth.
                    joined.due_at = now + FIRST_SECONDS
                return []
            case MessageEvent(change=Change(type=kind, object=message)):
                # The stored message is complete up to this event and replaces the growth that is not sent yet.
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
            case AgentEvent(change=Change(object=notice)) if notice.type in _UNSUPPORTED_NOTICES:
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
