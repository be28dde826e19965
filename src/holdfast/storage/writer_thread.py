"""The writer thread, the only one that writes to the database. All waiting jobs are committed together.

Theory of operation. SQLite admits one writer at a time, and a synced commit costs one sync of the disk, some
milliseconds, whatever it contains. One thread that owns the writing connection therefore loses nothing, and it needs no
locks between transactions. Callers submit jobs from event loops; the thread takes all jobs that wait as one group and
runs them in one transaction, so that many callers share one sync (group commit). The longer a sync takes, the more jobs
wait for the next group, so the throughput adapts itself to the disk. The group is synced if any of its jobs requires
it. If a job of several fails, all are rolled back and run again, each in a savepoint: only that job fails, unless the
error concerns the file, which fails the whole group. A job must therefore have no other effect than its writes. Results
are delivered only after the commit.

A job ends in one of three ways: done; failed without a trace, if the error occurred before the commit; or unknown
(`StorageUnknown`), if it is not certain that the commit is on disk. After unknown, callers read the state.

The files are compared with their paths before and after each commit (`OpenFiles`), because SQLite would keep writing to
a database that was moved or replaced, and those commits would be lost.

A deletion is reported only after its content has been removed from the write-ahead log (WAL) too. If a reader holds the
WAL for longer than a limit, the result is delivered without waiting and the erasure is repeated when the writer is
idle; a row in `upkeep` repeats it after a restart.

Maintenance must not delay callers: pruning and checkpoints run after the results are delivered, the incremental vacuum
only after a pause without jobs and in steps of about a millisecond.

Rejected: a transaction per caller (a sync each), a timer that collects jobs (it delays the first caller for nothing;
waiting for the previous sync collects them as well), and writing from the event loop (a slow disk would stop all
clients).
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from holdfast.domain.errors import StorageDetached, StorageError, StorageUnknown
from holdfast.storage.data_directory import WAL_PAGES, OpenFiles
from holdfast.storage.thread_replies import (
    FILE_ERRORS,
    Reply,
    closed_error,
    commit_error,
    deliver,
    log_error,
    translate_error,
)
from holdfast.storage.vacuum import IncrementalVacuum, overwrite_unused

__all__ = ["Probe", "Work", "WriteJob", "Writer"]

_IDLE_SECONDS = 0.25
"""Seconds without a job after which the writer is idle."""
_ERASE_TIMEOUT_MS = 2_000
"""Maximum time that a deletion waits for readers of the WAL; its result is then delivered before the erasure."""
_ERASE_TASK = "erase"
"""The row of `upkeep` that a deletion writes with its own commit. A server that is killed before the WAL was erased
finds it at its next start.
"""

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
"""A function that a storage thread calls with its connection, within a transaction."""
Probe = Callable[[str], None]
"""A function that tests inject to observe or suspend the writer at a named point."""


class WriteJob(Generic[T]):
    """Work within a transaction, and the reply for its result.

    With `sync`, the result is delivered after the commit is on disk. With `erases`, it is delivered after the deleted
    content has been erased from all files.
    """

    def __init__(self, work: Work[T], *, sync: bool, erases: bool = False) -> None:
        self.work = work
        self.sync = sync
        self.erases = erases
        self.reply: Reply[T] = Reply()


class Writer:
    """The writer thread. It owns the writing connection.

    The thread calls `preallocate` before the first job and after each truncation of the WAL, and `maintenance` between
    groups, outside of their transaction. It calls `probe` for each group at "before", "executed" (not yet committed)
    and "committed" (results not yet delivered).
    """

    def __init__(
        self,
        connection: apsw.Connection,
        files: OpenFiles,
        preallocate: Callable[[], None],
        maintenance: Work[None],
        probe: Probe | None,
    ) -> None:
        self._connection = connection
        self._files = files
        self._preallocate = preallocate
        self._maintenance = maintenance
        self._probe = probe or (lambda _point: None)
        self._jobs: queue.SimpleQueue[WriteJob[Any] | None] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._is_closed = False
        self._is_full_sync: bool | None = None
        self._wal_pages = 0
        self._must_erase = False
        """True while the WAL may still contain deleted content, because a reader held it."""
        self._vacuum = IncrementalVacuum()
        connection.set_wal_hook(self._on_commit)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, sync: bool, erases: bool = False) -> Reply[T]:
        """Queue work for the writer thread. Must be called in a running loop. Jobs are executed in order of
        submission.
        """
        job = WriteJob(work, sync=sync, erases=erases)
        with self._submit_lock:
            if self._is_closed:
                raise closed_error()
            self._jobs.put(job)
        return job.reply

    def close(self, timeout: float | None = None) -> bool:
        """Finish the submitted jobs, then stop. Blocks; a second call only waits. Returns True if the thread
        has stopped.
        """
        with self._submit_lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._preallocate()
        self._must_erase = self._has_erase_task()
        while True:
            group, is_last = self._next_group()
            if group:
                results = list(zip(group, self._write(group), strict=True))
                deliver((job.reply, result) for job, result in results if not job.erases)
                if any(job.erases for job in group):
                    self._erase_wal(_ERASE_TIMEOUT_MS)
                    deliver((job.reply, result) for job, result in results if job.erases)
                del results
                self._run_maintenance()
            if is_last:
                return
            # Release the group before waiting for the next one: it may be large.
            del group

    def _next_group(self) -> tuple[list[WriteJob[Any]], bool]:
        """Return all waiting jobs, at least one, and True if the writer has to stop after them."""
        job = self._next_job()
        group: list[WriteJob[Any]] = []
        while job is not None:
            group.append(job)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _next_job(self) -> WriteJob[Any] | None:
        """Return the next job, None to stop. Run maintenance only after 250 ms without jobs, so it does not
        compete with the callers that have just received their results.
        """
        while True:
            try:
                return self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                self._run_idle_maintenance()
                if not self._must_erase:
                    return self._jobs.get()

    def _write(self, group: Sequence[WriteJob[Any]]) -> list[object]:
        """Return a result or a `StorageError` for each job. Never raises, because the thread has to continue."""
        try:
            self._probe("before")
            self._require_files()
            self._set_sync(full=any(job.sync for job in group))
            results = self._run_jobs(group)
            if any(job.erases for job in group):
                self._connection.execute("INSERT OR IGNORE INTO upkeep (task) VALUES (?)", (_ERASE_TASK,))
            self._probe("executed")
        except Exception as error:
            self._roll_back()
            return _fail_all(group, translate_error(error))
        try:
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            return _fail_all(group, commit_error(error))
        try:
            self._probe("committed")
        except Exception:
            return _fail_all(group, StorageUnknown())
        try:
            if problem := self._files.problem():
                # The commit may be in files that no path shows, and no later check could distinguish it.
                self._files.fail(problem)
                self._rescue_wal()
                return _fail_all(group, StorageDetached(problem))
            self._files.confirm()
        except OSError as error:
            log_error(error)
            return _fail_all(group, StorageUnknown())
        return results

    def _run_jobs(self, group: Sequence[WriteJob[Any]]) -> list[object]:
        """Begin a transaction and run the jobs in it. Raises the error of a job that is alone, and errors of the file.

        Jobs rarely fail, and a savepoint makes SQLite copy each page that is changed after it: with savepoints, 24
        accepts in as many workspaces take 6 % longer.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            return [job.work(self._connection) for job in group]
        except Exception as error:
            if len(group) == 1 or isinstance(error, FILE_ERRORS):
                raise
        self._roll_back()
        self._connection.execute("BEGIN IMMEDIATE")
        return [self._attempt(job) for job in group]

    def _require_files(self) -> None:
        """Raise `StorageDetached` before anything is written to files that the path no longer shows."""
        if not (problem := self._files.problem()):
            return
        if self._files.is_only_wal_lost:
            self._files.fail(problem)
        self._rescue_wal()
        raise StorageDetached(problem)

    def _rescue_wal(self) -> None:
        """Copy the open WAL into the database, if only the path of the WAL was lost: all commits are still in it."""
        if not self._files.is_only_wal_lost:
            return
        try:
            if self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE):
                self._files.set_wal_aside()
        except (apsw.Error, OSError) as error:
            log_error(error)

    def _checkpoint(self, mode: int) -> bool:
        """Run a checkpoint. Return True if the database now contains all commits of the WAL."""
        frames = moved = -1
        try:
            frames, moved = self._connection.wal_checkpoint(mode=mode)
        finally:
            # A failed checkpoint may have written some pages, and may have truncated the WAL.
            self._files.note_checkpoint(is_complete=frames == moved)
        return frames == moved

    def _attempt(self, job: WriteJob[Any]) -> object:
        """Return the job's result, or the error with which it alone failed; raise errors of the file for the
        whole group.
        """
        self._connection.execute("SAVEPOINT job")
        try:
            result = job.work(self._connection)
        except Exception as error:
            if isinstance(error, FILE_ERRORS) or not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO job; RELEASE job")
            return translate_error(error)
        self._connection.execute("RELEASE job")
        return result

    def _set_sync(self, *, full: bool) -> None:
        """Choose the sync mode. FULL syncs the WAL at each commit; NORMAL only before a checkpoint, so that a power cut
        may undo the last commits, but the database stays consistent.
        """
        if full is not self._is_full_sync:
            self._connection.pragma("synchronous", "FULL" if full else "NORMAL")
            self._is_full_sync = full

    def _roll_back(self) -> None:
        """Return to a state in which the next group can be tried. SQLite may have rolled back by itself."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            log_error(error)

    def _erase_wal(self, timeout_ms: int) -> None:
        """Copy the WAL into the database, where deleted content is overwritten (`secure_delete`), and truncate it.

        A reader with an old snapshot, possibly of another program, prevents this: it is repeated when the writer is
        idle.
        """
        self._must_erase = True
        self._connection.set_busy_timeout(timeout_ms)
        try:
            if self._files.problem():
                return
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._wal_pages = 0
            # No other connection may write while the pages are overwritten beneath SQLite.
            self._connection.execute("BEGIN IMMEDIATE")
            if self._files.is_wal_empty:
                overwrite_unused(self._connection, self._files.database_descriptor)
                self._files.note_checkpoint(is_complete=True)
                self._must_erase = False
        except (apsw.Error, OSError) as error:
            if not isinstance(error, apsw.BusyError):
                log_error(error)
        finally:
            self._connection.set_busy_timeout(0)
            self._roll_back()
        self._preallocate()
        if not self._must_erase:
            self._clear_erase_task()

    def _has_erase_task(self) -> bool:
        """Return True if a server that was killed has left an erasure to be done."""
        try:
            return bool(self._connection.execute("SELECT 1 FROM upkeep WHERE task = ?", (_ERASE_TASK,)).fetchall())
        except apsw.Error as error:
            log_error(error)
            return False

    def _clear_erase_task(self) -> None:
        """Remove the row of `upkeep`. If this fails, the next start erases once more."""
        try:
            # Cached pages still contain the content that was overwritten in the file.
            self._connection.pragma("shrink_memory")
            self._set_sync(full=False)
            self._connection.execute("DELETE FROM upkeep WHERE task = ?", (_ERASE_TASK,))
        except apsw.Error as error:
            self._roll_back()
            log_error(error)

    def _run_maintenance(self) -> None:
        """Run `maintenance`, and a checkpoint if due. A failure is only logged: a later group repeats the work."""
        try:
            self._maintenance(self._connection)
            self._checkpoint_if_due()
        except (apsw.Error, OSError, StorageError) as error:
            self._roll_back()
            log_error(error)

    def _run_idle_maintenance(self) -> None:
        """Run maintenance in short steps. A job that is submitted meanwhile waits for one step at most."""
        if self._must_erase:
            self._erase_wal(0)
        try:
            while self._jobs.empty() and self._vacuum.has_work(self._connection):
                self._set_sync(full=False)
                self._vacuum.step(self._connection)
                self._checkpoint_if_due()
        except (apsw.Error, OSError) as error:
            self._roll_back()
            log_error(error)

    def _checkpoint_if_due(self) -> None:
        """Copy a long WAL into the database. Called after the results are delivered, so that no caller waits for it."""
        if self._wal_pages >= WAL_PAGES and not self._files.problem():
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite calls this after each commit to the WAL."""
        self._wal_pages = pages
        self._files.note_commit(pages)
        return apsw.SQLITE_OK


def _fail_all(group: Sequence[WriteJob[Any]], error: StorageError) -> list[object]:
    """Return a separate exception for each job, because each of them is raised to another caller."""
    return [type(error)(str(error)) for _ in group]
