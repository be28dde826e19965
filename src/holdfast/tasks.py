"""Task ownership: the only module that calls `asyncio.create_task`. Each task has an owner, which keeps a reference to
it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["TaskOwner", "is_cancelled", "run_to_completion"]

T = TypeVar("T")


class TaskOwner:
    """Keeps tasks until they are done. The failure of a task without a `done` callback is reported to the loop's
    exception handler.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str,
        done: Callable[[asyncio.Task[T]], object] | None = None,
    ) -> asyncio.Task[T]:
        """Start `work`. `done` is called with the task when it has ended for any reason, and has to handle its
        exception.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done if done is None else self._tasks.discard)
        if done is not None:
            task.add_done_callback(done)
        return task

    def cancel_all(self) -> None:
        """Cancel every task."""
        for task in tuple(self._tasks):
            task.cancel()

    async def drain(self) -> None:
        """Wait until every task has ended, including tasks that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
            )


async def run_to_completion(work: Coroutine[Any, Any, T], *, name: str) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For a change whose outcome decides what has to be undone. `work` must not wait for anything that may never happen.
    """
    task = TaskOwner().start(work, name=name, done=lambda _: None)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Mark an error of the work as retrieved: the caller sees the cancellation.
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


def is_cancelled() -> bool:
    """Return whether the current task itself was cancelled, not only something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
