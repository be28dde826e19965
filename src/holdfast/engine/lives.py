"""What the shell remembers of a run while it has the lane, and while its end is being stored."""

import asyncio

from holdfast.domain.ids import SessionId
from holdfast.engine.lifecycle import End
from holdfast.engine.turn import Turn

__all__ = ["Ending", "Life", "answer_fold"]


class Life:
    """A run that has the lane: its task, its turn, and how the task went."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.turn: Turn | None = None
        self.is_over = False
        self.error: BaseException | None = None
        self.deadline: asyncio.TimerHandle | None = None


class Ending:
    """An end that was decided and is on its way to the store."""

    def __init__(self, session: SessionId, end: End) -> None:
        self.session = session
        self.end = end
        self.is_put = False
        """Whether the recorder has it."""
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def answer_fold(waiter: asyncio.Future[None], error: Exception | None) -> None:
    """A boundary whose run was cancelled meanwhile waits no more."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
