"""Things to look at: what was done in a workspace, and the document of the routes as a page."""

from datetime import UTC, datetime

from holdfast.domain.runs import Run
from holdfast.protocol.bodies import Stats
from holdfast.protocol.page import page
from holdfast.server.calls import Call

__all__ = ["docs", "stats"]

_AT_ONCE = 1_000


async def docs(_: Call) -> str:
    return page()


async def stats(call: Call) -> Stats:
    ledger, workspace = call.desk.workspace.engine.kit.ledger, call.desk.id
    sessions = await ledger.sessions(workspace)
    runs: list[Run] = []
    while part := await ledger.runs(workspace, None, _AT_ONCE, runs[-1].number if runs else 0):
        runs += part
    outcomes: dict[str, int] = {}
    days: dict[str, int] = {}
    for run in runs:
        outcome, day = run.outcome or "open", _day(run.accepted_at)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        days[day] = days.get(day, 0) + 1
    done = [run for run in runs if run.outcome == "completed" and run.started_at]
    return Stats(
        sessions=sum(not session.parent_session_id for session in sessions),
        messages=sum(session.message_count for session in sessions),
        prompt_tokens=sum(session.prompt_tokens for session in sessions),
        completion_tokens=sum(session.completion_tokens for session in sessions),
        cost=sum(session.cost for session in sessions),
        runs=outcomes,
        days=days,
        seconds=sum(run.ended_at - run.started_at for run in done) / 1000 / len(done) if done else 0.0,
    )


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).date().isoformat()
