"""Handlers for runs."""

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
    """Return runs, newest first. `limit` counts the returned runs, after the filter by state."""
    limit = min(call.number("limit", 50), _MOST)
    session = SessionId(call.query["session_id"]) if call.query.get("session_id") else None
    before, state = call.number("before", 0), call.query.get("state")
    ledger = call.desk.workspace.engine.kit.ledger
    if state is None:
        runs = await ledger.runs(call.desk.id, session, limit, before)
        return [_now(call.desk, run) for run in runs]
    if state != "ended":
        # Few runs have not ended, and the oldest of them may be older than many that have.
        unended = [_now(call.desk, run) for run in await ledger.open_runs(call.desk.id)]
        found = [run for run in unended if run.state == state and session in (None, run.session_id)]
        found = [run for run in found if not before or run.number < before]
        return sorted(found, key=lambda run: run.number, reverse=True)[:limit]
    return await _ended(call, session, limit, before)


async def _ended(call: Call, session: SessionId | None, limit: int, before: int) -> list[Run]:
    found: list[Run] = []
    while len(found) < limit:
        page = await call.desk.workspace.engine.kit.ledger.runs(call.desk.id, session, limit, before)
        found += (run for run in page if run.state == "ended")
        if len(page) < limit:
            break
        before = page[-1].number
    return found[:limit]


async def get_run(call: Call) -> Run:
    """Return a run."""
    record = await call.desk.workspace.engine.kit.ledger.run(call.desk.id, call.run)
    if record is None:
        raise UnknownRun
    return _now(call.desk, record.run)


async def patch_run(call: Call) -> Run:
    """Change the position or the delivery of a queued run."""
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
    """Cancel a run."""
    await call.desk.workspace.inputs.cancel_run(call.run, call.query.get("client_id", ""))
    return await get_run(call)


def _now(desk: Desk, run: Run) -> Run:
    """Return the run with its current state, which the lane knows before the stored row does."""
    state = state_of(desk.workspace.engine.lane(run.session_id), run.run_id)
    return run if state is None or run.outcome else msgspec.structs.replace(run, state=state)
