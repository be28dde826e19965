"""Runs: what was asked, and how it ended."""

import msgspec

from holdfast.domain.errors import BadRequest, UnknownRun
from holdfast.domain.ids import SessionId
from holdfast.domain.runs import Run
from holdfast.engine.lifecycle import state_of
from holdfast.server.calls import Call
from holdfast.server.desk import Desk

__all__ = ["cancel_run", "get_run", "list_runs", "patch_run"]

_MOST = 1_000


async def list_runs(call: Call) -> list[Run]:
    limit = min(call.number("limit", 50), _MOST)
    session = SessionId(call.query["session_id"]) if call.query.get("session_id") else None
    ledger = call.desk.workspace.engine.kit.ledger
    runs = await ledger.runs(call.desk.id, session, limit, call.number("before", 0))
    state = call.query.get("state")
    shown = [_now(call.desk, run) for run in runs]
    return [run for run in shown if state is None or run.state == state]


async def get_run(call: Call) -> Run:
    record = await call.desk.workspace.engine.kit.ledger.run(call.desk.id, call.run)
    if record is None:
        raise UnknownRun
    return _now(call.desk, record.run)


async def patch_run(call: Call) -> Run:
    inputs = call.desk.workspace.inputs
    patch = call.body
    if (patch.position is None) == (patch.delivery is None):
        raise BadRequest("Say either a position or a delivery.")
    if patch.position is not None:
        await inputs.move(call.run, patch.position)
    else:
        await inputs.redeliver(call.run, patch.delivery)
    return await get_run(call)


async def cancel_run(call: Call) -> Run:
    await call.desk.workspace.inputs.cancel_run(call.run, call.query.get("client_id", ""))
    return await get_run(call)


def _now(desk: Desk, run: Run) -> Run:
    """The lane knows better than the row what a run that has not ended is doing."""
    state = state_of(desk.workspace.engine.lane(run.session_id), run.run_id)
    return run if state is None or run.outcome else msgspec.structs.replace(run, state=state)
