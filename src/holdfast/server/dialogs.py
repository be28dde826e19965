"""Permission requests and questions for clients that show one dialog at a time. Pure; time is an argument.

On such a client a second permission request would replace the first, a notice about any batch of questions closes the
open form, and an answer does not name its batch. Therefore only the oldest of each kind is sent, and the next one when
it is closed; for questions after a pause, so that a key meant for one form does not reach the next.
"""

from collections.abc import Sequence

from holdfast.domain.asks import PermissionRequest, QuestionRequest
from holdfast.domain.events import (
    AskEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    encode_event,
)

__all__ = ["PAUSE_SECONDS", "Dialogs"]

PAUSE_SECONDS = 0.5


class _Line:
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


class Dialogs:
    """The requests for one subscriber, beginning with those that were open when it connected."""

    def __init__(
        self,
        permissions: Sequence[PermissionRequest] = (),
        questions: Sequence[QuestionRequest] = (),
        *,
        now: float = 0.0,
        pause: float = 0.0,
        withdrawn: Sequence[AskEvent] = (),
    ) -> None:
        """Create the queues.

        `pause` is the time until the next form may be shown. `withdrawn` contains requests that a previous server left
        open; its clients still show them. Any notice, or the next form, closes a form that is shown.
        """
        self._stale = [encode_event(event) for event in withdrawn if isinstance(event, PermissionNotificationEvent)]
        forms = [encode_event(event) for event in withdrawn if isinstance(event, QuestionNotificationEvent)]
        self._stale += [] if questions else forms[:1]
        self._permissions = _Line(0.0, now)
        self._questions = _Line(PAUSE_SECONDS, now + pause)
        for ask in permissions:
            self._permissions.add(ask.id, encode_event(PermissionRequestEvent(Change("created", ask))))
        for batch in questions:
            self._questions.add(batch.id, encode_event(QuestionRequestEvent(Change("created", batch))))

    def feed(self, event: AskEvent, body: bytes, now: float) -> list[bytes]:
        """Return the bodies to send for an event, which may be none."""
        match event:
            case PermissionRequestEvent(payload=ask):
                self._permissions.add(ask.payload.id, body)
                return self._permissions.due(now)
            case QuestionRequestEvent(payload=batch):
                self._questions.add(batch.payload.id, body)
                return self._questions.due(now)
            case PermissionNotificationEvent(payload=notice):
                if notice.payload.granted or notice.payload.denied:
                    self._permissions.close(notice.payload.id, now)
                return [body, *self._permissions.due(now)]
            case QuestionNotificationEvent(payload=closed):
                return [body] if self._questions.close(closed.payload.batch_id, now) else []

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
