"""The reader threads, each with a connection of its own.

With a write-ahead log, readers and the writer do not block each other: each read transaction sees one snapshot.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import apsw

from holdfast.storage.thread_replies import closed_error, deliver, translate_error
from holdfast.storage.writer_thread import Work, WriteJob

__all__ = ["Readers"]

T = TypeVar("T")


class Readers:
    """Threads that execute reads. Each read is one transaction: it sees one snapshot, which includes every write whose
    result was delivered before the read was submitted.
    """

    def __init__(self, connections: Sequence[apsw.Connection]) -> None:
        self._connections = connections
        self._jobs: queue.SimpleQueue[WriteJob[Any] | None] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
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
        """Run `work` in the next free reader thread and return its result."""
        job = WriteJob(work, sync=False)
        with self._submit_lock:
            if self._is_closed:
                raise closed_error()
            self._jobs.put(job)
        return await job.reply.future

    def close(self, timeout: float | None = None) -> bool:
        """Finish the submitted reads, then stop. Blocks up to `timeout` seconds for each thread. Return True if all
        threads have stopped.
        """
        with self._submit_lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, connection: apsw.Connection) -> None:
        while (job := self._jobs.get()) is not None:
            deliver([(job.reply, _read(connection, job))])
            # Release the result before waiting for the next job: it may be large.
            del job


def _read(connection: apsw.Connection, job: WriteJob[T]) -> object:
    try:
        # One snapshot for all statements of the job, whatever the writer commits meanwhile.
        connection.execute("BEGIN")
        try:
            return job.work(connection)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")
    except Exception as error:
        return translate_error(error)
