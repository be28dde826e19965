"""The runs of a workspace that have a task or whose end is not stored yet."""

import asyncio

from holdfast.domain.events import MessagePart
from holdfast.domain.ids import RunId, SessionId
from holdfast.engine.turn import Turn

__all__ = ["ActiveRuns", "RunState"]


class RunState:
    """The head of a lane: its task, its turn and the result of the task."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.turn: Turn | None = None
        self.is_over = False
        self.error: BaseException | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def finish(self, error: BaseException | None) -> None:
        """Record the result of the task."""
        self.is_over = True
        self.error = error
        if self.deadline is not None:
            self.deadline.cancel()


class ActiveRuns(dict[RunId, RunState]):
    """The runs that have a task or whose end is not stored yet.

    Shared by the engine, which maintains it, and the bus, which sends open parts to new subscribers.
    """

    def open_parts(self) -> list[MessagePart]:
        """Return every part that is growing, in full, for subscribers that missed its deltas."""
        return [part for state in self.values() if state.turn for part in state.turn.open_parts()]

    def turn_of(self, session: SessionId) -> Turn | None:
        """Return the active turn of a session."""
        turns = (state.turn for state in self.values() if state.turn and state.turn.run.session_id == session)
        return next(turns, None)
