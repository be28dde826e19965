"""Handlers for permission requests and questions: the open ones, and the answers to them."""

from typing import get_args

from holdfast.domain.approvals import PermissionRequest, QuestionRequest, Via
from holdfast.domain.events import Change, ConfigChanged, ConfigChangedEvent
from holdfast.protocol.bodies import Resolved, Skip
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


async def get_skip(call: Request) -> Skip:
    """Return whether permission requests are skipped."""
    return Skip(call.desk.yolo)


async def set_skip(call: Request) -> None:
    """Set skipping for the whole workspace. All clients are notified, so that it is visible everywhere."""
    desk = call.desk
    if desk.yolo is not call.body.skip:
        desk.yolo = call.body.skip
        desk.workspace.engine.outside.outlet.publish_live(ConfigChangedEvent(Change("updated", ConfigChanged(desk.id))))


async def grant(call: Request) -> Resolved:
    """Answer a permission request. The first answer wins; a later one, or one to an unknown request, resolves
    nothing.
    """
    body = call.body
    asks = call.desk.workspace.asks
    by = call.query.get("client_id", "")
    return Resolved(await asks.grant(body.permission.id, body.action, reason=body.reason, by=by, via=_via(call)))


async def pending_permissions(call: Request) -> tuple[PermissionRequest, ...]:
    """Return the open permission requests."""
    return call.desk.workspace.asks.permissions


async def answer_question(call: Request) -> Resolved:
    """Answer a batch of questions."""
    body = call.body
    by = call.query.get("client_id", "")
    asks = call.desk.workspace.asks
    return Resolved(await asks.answer(body.batch_request_id, body.responses, by=by, via=_via(call)))


async def cancel_question(call: Request) -> Resolved:
    """Dismiss a batch of questions."""
    query = call.query
    asks = call.desk.workspace.asks
    return Resolved(await asks.dismiss(query.get("batch_id", ""), by=query.get("client_id", ""), via=_via(call)))


async def pending_questions(call: Request) -> tuple[QuestionRequest, ...]:
    """Return the open batches of questions."""
    return call.desk.workspace.asks.questions


def _via(call: Request) -> Via:
    """Return the kind of client that answers, as the client reports it; empty if it is unknown."""
    said = call.query.get("via", "")
    return next((known for known in get_args(Via) if known == said), "")
