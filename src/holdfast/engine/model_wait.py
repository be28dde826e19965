"""Runs of a cluster that are held back before they start, because this node has no usable model.

Keys belong to a node, so a run must not fail only because a node without a key owns its workspace. It stays accepted
and unchanged in the store, so a takeover is possible at any time, and it starts when a model can be used on this node
or on the next owner. A run that is cancelled meanwhile is started, because only a started run can end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.domain.errors import NoUsableModel
from holdfast.domain.ids import RunId, SessionId, is_subagent_session
from holdfast.domain.store_operations import RunRecord
from holdfast.engine.run_context import RunContext
from holdfast.engine.run_lifecycle import Lane
from holdfast.tasks import TaskOwner

__all__ = ["ModelWait"]


class ModelWait:
    """The runs that are held back. `load` returns the record of a run, `start` starts a run that was held back."""

    def __init__(
        self, load: Callable[[RunId], Awaitable[RunRecord]], start: Callable[[SessionId, RunId], None]
    ) -> None:
        self._load = load
        self._start = start
        self._tasks = TaskOwner()
        self._held_back: dict[SessionId, tuple[RunId, asyncio.Task[None]]] = {}
        self._ready: set[RunId] = set()

    def holds_back(self, run_context: RunContext, session: SessionId, run: RunId, lane: Lane) -> bool:
        """Hold back a run that is about to start until a model can be used, unless it is a sub-agent's or is cancelled
        already.
        """
        is_accepted = lane.head is not None and lane.head.phase == "accepted"
        if run_context.await_model is None or is_subagent_session(session) or not is_accepted:
            return False
        if run in self._ready:
            self._ready.discard(run)
            return False
        task = self._tasks.start(self._wait(run_context, session, run), name=f"model of {run}")
        self._held_back[session] = run, task
        return True

    def release(self, session: SessionId, lane: Lane) -> RunId | None:
        """After a change of the lane, return the run that was held back and is cancelled now: it must start in order to
        end. A run that was parked is forgotten.
        """
        if session not in self._held_back or (lane.head is not None and lane.head.phase == "accepted"):
            return None
        run, task = self._held_back.pop(session)
        task.cancel()
        return run if lane.head is not None and lane.head.run == run else None

    def cancel_all(self) -> None:
        """Stop waiting."""
        self._held_back.clear()
        self._tasks.cancel_all()

    async def _wait(self, run_context: RunContext, session: SessionId, run: RunId) -> None:
        # The run itself meets the same error and ends with it.
        with suppress(Exception):
            if not await _has_model(run_context):
                record = await self._load(run)
                name = record.brief.model if record.brief is not None else ""
                await run_context.model(name, allows_fallback=not record.run.require_model)
        if self._held_back.get(session, (None,))[0] == run:
            del self._held_back[session]
            self._ready.add(run)
            self._start(session, run)


async def _has_model(run_context: RunContext) -> bool:
    try:
        return not (await run_context.models.large()).info.fallback_reason
    except NoUsableModel:
        return False
