"""Handlers for permission requests and questions: the open ones, and the answers to them."""

from typing import get_args

from holdfast.domain.approvals import PermissionRequest, QuestionRequest, Via
from holdfast.domain.events import Change, ConfigChanged, ConfigChangedEvent
from holdfast.protocol.bodies import AnswerResult, SkipPermissions
from holdfast.server.http.request import Request

__all__ = [
    "answer_question",
    "cancel_question",
    "get_skip",
    "grant",
    "pending_permissions",
    "pending_questions",
    "set_skip",
]


async def get_skip(request: Request) -> SkipPermissions:
    """Return whether permission requests are skipped."""
    return SkipPermissions(request.handle.yolo)


async def set_skip(request: Request) -> None:
    """Set skipping for the whole workspace. All clients are notified, so that it is visible everywhere."""
    handle = request.handle
    if handle.yolo is not request.body.skip:
        handle.yolo = request.body.skip
        handle.workspace.publish_live(ConfigChangedEvent(Change("updated", ConfigChanged(handle.id))))


async def grant(request: Request) -> AnswerResult:
    """Answer a permission request. The first answer wins; a later one, or one to an unknown request, resolves
    nothing.
    """
    body = request.body
    approvals = request.workspace.approvals
    by = request.query.get("client_id", "")
    return AnswerResult(
        await approvals.grant(
            body.permission.id, body.action, reason=body.reason, by=by, via=_answering_client(request)
        )
    )


async def pending_permissions(request: Request) -> tuple[PermissionRequest, ...]:
    """Return the open permission requests."""
    return request.workspace.approvals.permissions


async def answer_question(request: Request) -> AnswerResult:
    """Answer a batch of questions."""
    body = request.body
    by = request.query.get("client_id", "")
    approvals = request.workspace.approvals
    return AnswerResult(
        await approvals.answer(body.batch_request_id, body.responses, by=by, via=_answering_client(request))
    )


async def cancel_question(request: Request) -> AnswerResult:
    """Dismiss a batch of questions."""
    query = request.query
    approvals = request.workspace.approvals
    return AnswerResult(
        await approvals.dismiss(
            query.get("batch_id", ""), by=query.get("client_id", ""), via=_answering_client(request)
        )
    )


async def pending_questions(request: Request) -> tuple[QuestionRequest, ...]:
    """Return the open batches of questions."""
    return request.workspace.approvals.questions


def _answering_client(request: Request) -> Via:
    """Return the kind of client that answers, as the client reports it; empty if it is unknown."""
    reported = request.query.get("via", "")
    return next((known for known in get_args(Via) if known == reported), "")
