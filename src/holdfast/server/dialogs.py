"""Asks for clients that show one dialog at a time. Pure; time is handed in.

A second permission would replace the first on such a screen, a notice about any batch of questions closes the form
that is open, and an answer does not say which batch it means. So the oldest of each kind is sent, and the next only
when it is closed; for questions after a pause, so that a key meant for one form does not reach the next.
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
    """Asks of one kind, oldest first. At most one of them has been sent and is open."""

    def __init__(self, pause: float, ready_at: float) -> None:
        self._pause = pause
        self._ready_at = ready_at
        self._waiting: dict[str, bytes] = {}
        self._shown = ""

    def add(self, ask: str, body: bytes) -> None:
        if ask != self._shown:
            self._waiting[ask] = body

    def close(self, ask: str, now: float) -> bool:
        """Whether it was the one that is shown."""
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
    """The asks of one reader, beginning with those that were open when it came."""

    def __init__(
        self,
        permissions: Sequence[PermissionRequest] = (),
        questions: Sequence[QuestionRequest] = (),
        *,
        now: float = 0.0,
        pause: float = 0.0,
        withdrawn: Sequence[AskEvent] = (),
    ) -> None:
        """`pause`: how long it is until the next form may be shown. `withdrawn`: what a server that died left open; who
        was its client still shows it. Whatever form is shown goes with any notice, or when another takes its place.
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
        stale, self._stale = self._stale, []
        return [*stale, *self._permissions.due(now), *self._questions.due(now)]

    @property
    def next_due(self) -> float | None:
        if self._stale:
            return 0.0
        times = [due for due in (self._permissions.next_due, self._questions.next_due) if due is not None]
        return min(times, default=None)
