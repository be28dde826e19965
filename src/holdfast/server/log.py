"""Handler for stored events with their times, for timelines and replays."""

import msgspec

from holdfast.domain.errors import BadRequest, UnknownRun
from holdfast.domain.ids import RunId
from holdfast.domain.removal import about
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import LoggedEvent, LogPage
from holdfast.server.calls import Call

__all__ = ["read_log"]

_MOST = 1_000
_MOST_LOOKED_AT = 5_000
_MOST_BYTES = 4 * 1024 * 1024
"""A response ends after this many bytes; the caller requests the next page."""


class _Plain(msgspec.Struct, frozen=True):
    type: str
    payload: msgspec.Raw


async def read_log(call: Call) -> LogPage:
    """Return stored events, oldest first; for a run, those of its session from its acceptance to its end."""
    limit, session, run = call.number("limit", 500), call.query.get("session_id", ""), call.query.get("run_id", "")
    if not 0 < limit <= _MOST:
        raise BadRequest(f"limit is from 1 to {_MOST}.")
    ledger, cursor = call.desk.workspace.engine.kit.ledger, call.number("after", 0)
    if run:
        asked = await _run(call, run)
        session, cursor = asked.session_id, max(cursor, asked.number - 1)
    rows = await ledger.dated_events(call.desk.id, cursor, _MOST_LOOKED_AT)
    found: list[LoggedEvent] = []
    size = 0
    for number, at, body in rows:
        event = about(body)
        if session and event.session != session:
            cursor = number
            continue
        if len(found) == limit or size > _MOST_BYTES:
            return LogPage(tuple(found), cursor, more=True)
        plain = msgspec.json.decode(body, type=_Plain)
        found.append(LoggedEvent(number, at, plain.type, plain.payload))
        cursor, size = number, size + len(body)
        if run and event.type == "run_complete" and event.run == run:
            return LogPage(tuple(found), cursor, more=False)
    return LogPage(tuple(found), cursor, more=len(rows) == _MOST_LOOKED_AT)


async def _run(call: Call, run: str) -> Run:
    record = await call.desk.workspace.engine.kit.ledger.run(call.desk.id, RunId(run))
    if record is None:
        raise UnknownRun
    return record.run
