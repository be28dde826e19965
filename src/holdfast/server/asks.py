"""Permissions and questions: what is open, and the answers to it."""

from typing import get_args

from holdfast.domain.asks import PermissionRequest, QuestionRequest, Via
from holdfast.domain.events import Change, ConfigChanged, ConfigChangedEvent
from holdfast.protocol.bodies import Resolved, Skip
from holdfast.server.calls import Call

__all__ = [
    "answer_question",
    "cancel_question",
    "get_skip",
    "grant",
    "pending_permissions",
    "pending_questions",
    "set_skip",
]


async def get_skip(call: Call) -> Skip:
    return Skip(call.desk.yolo)


async def set_skip(call: Call) -> None:
    """For the whole workspace, and every screen is told to look again: nobody skips unseen."""
    desk = call.desk
    if desk.yolo is not call.body.skip:
        desk.yolo = call.body.skip
        desk.workspace.engine.outside.outlet.publish_live(ConfigChangedEvent(Change("updated", ConfigChanged(desk.id))))


async def grant(call: Call) -> Resolved:
    """The first answer wins; whoever comes later, or means an ask that never was, hears that nothing was resolved."""
    body = call.body
    asks = call.desk.workspace.asks
    by = call.query.get("client_id", "")
    return Resolved(await asks.grant(body.permission.id, body.action, reason=body.reason, by=by, via=_via(call)))


async def pending_permissions(call: Call) -> tuple[PermissionRequest, ...]:
    return call.desk.workspace.asks.permissions


async def answer_question(call: Call) -> Resolved:
    body = call.body
    by = call.query.get("client_id", "")
    asks = call.desk.workspace.asks
    return Resolved(await asks.answer(body.batch_request_id, body.responses, by=by, via=_via(call)))


async def cancel_question(call: Call) -> Resolved:
    query = call.query
    asks = call.desk.workspace.asks
    return Resolved(await asks.dismiss(query.get("batch_id", ""), by=query.get("client_id", ""), via=_via(call)))


async def pending_questions(call: Call) -> tuple[QuestionRequest, ...]:
    return call.desk.workspace.asks.questions


def _via(call: Call) -> Via:
    """What it says of itself. A word that nobody knows says nothing."""
    said = call.query.get("via", "")
    return next((known for known in get_args(Via) if known == said), "")
