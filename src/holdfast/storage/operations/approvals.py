"""Permission requests and batches of questions: opened, and closed by the first answer that is stored."""

from typing import assert_never

from holdfast.domain.events import (
    ApprovalEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.store_operations import Announce, CloseRequest
from holdfast.storage.operations.write_context import Context, Refused

__all__ = ["closed_by", "perform"]


def perform(operation: Announce | CloseRequest, context: Context) -> None:
    """Apply the operation. Closing a request that is not open is refused."""
    match operation:
        case Announce(event=event):
            _record_request(event, context)
        case CloseRequest(event=event):
            if not context.tables.requests.remove(closed_by(event)):
                raise Refused("already_closed")
        case _:
            assert_never(operation)
    context.add_event(operation.event)


def _record_request(event: ApprovalEvent, context: Context) -> None:
    match event:
        case PermissionRequestEvent(change=change) | QuestionRequestEvent(change=change):
            context.tables.requests.add(change.object.id, change.object.session_id)
        case PermissionNotificationEvent() | QuestionNotificationEvent():
            context.tables.requests.remove(closed_by(event))
        case _:
            assert_never(event)


def closed_by(event: PermissionNotificationEvent | QuestionNotificationEvent) -> str:
    """Return the id of the request that the event closes. The first notification of a permission closes none."""
    if isinstance(event, QuestionNotificationEvent):
        return event.change.object.batch_id
    notice = event.change.object
    return notice.id if notice.granted or notice.denied else ""
