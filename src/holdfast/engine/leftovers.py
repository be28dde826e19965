"""What runs had asked of people, and nobody had answered, when their server died. Pure."""

from collections.abc import Collection

from holdfast.domain.asks import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.events import (
    AskEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    decode_event,
)
from holdfast.domain.ids import RunId, ToolCallId

__all__ = ["Leftovers"]

_ASKS = (b'{"type":"permission_', b'{"type":"question_')
"""How events about asks begin. Others need not be decoded: most are others."""


class Leftovers:
    """Replays stored events, in order, to find the unanswered requests of these runs, and which of their calls had no
    effects for certain: those that asked before they did anything and were not allowed to.
    """

    def __init__(self, runs: Collection[RunId]) -> None:
        self._runs = runs
        self._open: dict[str, PermissionRequest | QuestionRequest] = {}
        self._calls: dict[str, ToolCallId] = {}
        self.not_run: set[ToolCallId] = set()

    def feed(self, body: bytes) -> None:
        if not body.startswith(_ASKS):
            return
        match decode_event(body):
            case (PermissionRequestEvent() | QuestionRequestEvent()) as asked:
                request = asked.payload.payload
                if request.run_id in self._runs:
                    self._open[request.id] = request
                    self._calls[request.id] = request.tool_call_id
                    if isinstance(request, QuestionRequest) or not request.continues:
                        self.not_run.add(request.tool_call_id)
            case PermissionNotificationEvent(payload=notice) if notice.payload.granted or notice.payload.denied:
                self._open.pop(notice.payload.id, None)
                if notice.payload.granted:
                    self._answered(notice.payload.id)
            case QuestionNotificationEvent(payload=closed):
                self._open.pop(closed.payload.batch_id, None)
                self._answered(closed.payload.batch_id)
            case _:
                pass

    def _answered(self, request: str) -> None:
        if request in self._calls:
            self.not_run.discard(self._calls[request])

    def withdrawn(self) -> list[AskEvent]:
        """What their own server would have said with the ends of these runs. Nobody answered: it names nobody."""
        return [_withdrawn(request) for request in self._open.values()]


def _withdrawn(request: PermissionRequest | QuestionRequest) -> AskEvent:
    if isinstance(request, QuestionRequest):
        closed = QuestionNotification(request.id, request.session_id, withdrawn=True)
        return QuestionNotificationEvent(Change("created", closed))
    denied = PermissionNotification(
        request.tool_call_id,
        granted=False,
        denied=True,
        id=request.id,
        session_id=request.session_id,
        withdrawn=True,
    )
    return PermissionNotificationEvent(Change("created", denied))
