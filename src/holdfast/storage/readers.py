"""The threads that read, each with a connection of its own. Readers and the writer never wait for each other."""

import queue
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import apsw

from holdfast.storage.thread_replies import closed, deliver, translated
from holdfast.storage.writer import Job, Work

__all__ = ["Readers"]

T = TypeVar("T")


class Readers:
    """Each read is one read transaction: it sees all that was answered before it started, and one state of it."""

    def __init__(self, connections: Sequence[apsw.Connection]) -> None:
        self._connections = connections
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(connection,), name=f"holdfast-reader-{index}", daemon=True)
            for index, connection in enumerate(connections)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.close()
            raise

    async def read(self, work: Work[T]) -> T:
        job = Job(work, sync=False)
        with self._door:
            if self._is_closed:
                raise closed()
            self._jobs.put(job)
        return await job.reply.future

    def close(self, patience_seconds: float | None = None) -> bool:
        """Finish what was asked, then stop. Blocks, for each thread. Returns whether all have stopped."""
        with self._door:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(patience_seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, connection: apsw.Connection) -> None:
        while (job := self._jobs.get()) is not None:
            deliver([(job.reply, _read(connection, job))])
            # The next may be long in coming, and what was read may be large.
            del job


def _read(connection: apsw.Connection, job: Job[T]) -> object:
    try:
        connection.execute("BEGIN")
        try:
            return job.work(connection)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")
    except Exception as error:
        return translated(error)
