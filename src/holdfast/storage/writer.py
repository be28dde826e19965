"""The writer thread, the only one that writes to the database. All waiting jobs are committed together.

Theory of operation. Callers submit jobs from event loops; the thread takes all jobs that wait as one group and
runs
them in one transaction, so that many callers share one sync of the disk (group commit). The group is synced if
any of
its jobs requires it. In a group of several, each job runs in a savepoint: a job that fails is rolled back
alone,
unless the error concerns the file, which fails the whole group. Results are delivered only after the commit.

A job ends in one of three ways: done; failed without a trace, if the error occurred before the commit; or
unknown
(`StorageUnknown`), if it is not certain that the commit is on disk. After unknown, callers read the state.

The files are compared with their paths before and after each commit (`identity.py`), because SQLite would keep
writing
to a database that was moved or replaced, and those commits would be lost.

A deletion is reported only after its content has been removed from the write-ahead log too. If a reader holds
the log
for longer than a limit, the result is delivered without waiting and the erasure is repeated when the writer is
idle; a row in `upkeep` repeats it after a restart.

Maintenance must not delay callers: pruning and checkpoints run after the results are delivered, the incremental
vacuum only after a pause without jobs and in steps of about a millisecond.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from holdfast.domain.errors import StorageDetached, StorageError, StorageUnknown
from holdfast.storage.data_directory import LOG_PAGES, OpenFiles
from holdfast.storage.thread_replies import WHOLE_GROUP, Reply, at_commit, closed, deliver, translated
from holdfast.storage.vacuum import IncrementalVacuum, overwrite_unused

__all__ = ["Job", "Probe", "Work", "Writer"]

_QUIET_SECONDS = 0.25
_LONGEST_ERASE_MS = 2_000
"""Maximum time that a deletion waits for readers of the log; then its result is delivered without them."""
_ERASE = "erase"
"""The row of `upkeep` that a deletion writes with its own commit: a server that is killed before it has erased
the log does so after its next start.
"""

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Probe = Callable[[str], None]


class Job(Generic[T]):
    """Work within a transaction, and the reply for its result. With `erases`, the result is delivered after the
    deleted content has been erased from all files.
    """

    def __init__(self, work: Work[T], *, sync: bool, erases: bool = False) -> None:
        self.work = work
        self.sync = sync
        self.erases = erases
        self.reply: Reply[T] = Reply()


class Writer:
    """Owns the writing connection. `prepare` is called before everything else, in this thread; `tidy` between
    groups, in a transaction of its own.

    `probe` is called in this thread at "before", "executed" (not yet committed) and "committed" (not yet
    delivered).
    """

    def __init__(
        self,
        connection: apsw.Connection,
        files: OpenFiles,
        prepare: Callable[[], None],
        tidy: Work[None],
        probe: Probe | None,
    ) -> None:
        self._connection = connection
        self._files = files
        self._prepare = prepare
        self._tidy = tidy
        self._probe = probe or (lambda _point: None)
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._is_closed = False
        self._is_full_sync: bool | None = None
        self._wal_pages = 0
        self._must_erase = False
        """True while the log may still contain deleted content, because a reader held it."""
        self._shrinker = IncrementalVacuum()
        connection.set_wal_hook(self._note_pages)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, sync: bool, erases: bool = False) -> Reply[T]:
        """Queue work for the writer thread. Must be called in a running loop. Jobs are executed in order of
        submission.
        """
        job = Job(work, sync=sync, erases=erases)
        with self._door:
            if self._is_closed:
                raise closed()
            self._jobs.put(job)
        return job.reply

    def close(self, patience_seconds: float | None = None) -> bool:
        """Finish the submitted jobs, then stop. Blocks; a second call only waits. Returns True if the thread
        has stopped.
        """
        with self._door:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join(patience_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._prepare()
        self._must_erase = self._is_erasure_due()
        while True:
            group, is_last = self._take()
            if group:
                answers = list(zip(group, self._write(group), strict=True))
                deliver((job.reply, answer) for job, answer in answers if not job.erases)
                if any(job.erases for job in group):
                    self._erase_log(_LONGEST_ERASE_MS)
                    deliver((job.reply, answer) for job, answer in answers if job.erases)
                del answers
                self._between_groups()
            if is_last:
                return
            # Release the group before waiting for the next one: it may be large.
            del group

    def _take(self) -> tuple[list[Job[Any]], bool]:
        """Return all waiting jobs, at least one, and True if the writer has to stop after them."""
        job = self._next()
        group: list[Job[Any]] = []
        while job is not None:
            group.append(job)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _next(self) -> Job[Any] | None:
        """Return the next job, None to stop. Run maintenance only after 250 ms without jobs, so it does not
        compete with the callers that have just received their results.
        """
        while True:
            try:
                return self._jobs.get(timeout=_QUIET_SECONDS)
            except queue.Empty:
                self._while_idle()
                if not self._must_erase:
                    return self._jobs.get()

    def _write(self, group: Sequence[Job[Any]]) -> list[object]:
        """Return a result or a `StorageError` for each job. Never raises, because the thread has to continue."""
        try:
            self._probe("before")
            self._require_files()
            self._set_sync(full=any(job.sync for job in group))
            self._connection.execute("BEGIN IMMEDIATE")
            # A job that is alone needs no savepoint: if it fails, everything is rolled back.
            alone = len(group) == 1
            results = [group[0].work(self._connection)] if alone else [self._attempt(job) for job in group]
            if any(job.erases for job in group):
                self._connection.execute("INSERT OR IGNORE INTO upkeep (task) VALUES (?)", (_ERASE,))
            self._probe("executed")
        except Exception as error:
            self._roll_back()
            return _for_each(group, translated(error))
        try:
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            return _for_each(group, at_commit(error))
        try:
            self._probe("committed")
        except Exception:
            return _for_each(group, StorageUnknown())
        try:
            if problem := self._files.problem():
                # The commit may be in files that no path shows, and no later check could distinguish it.
                self._files.fail(problem)
                self._save_log()
                return _for_each(group, StorageDetached(problem))
            self._files.confirm()
        except OSError as error:
            translated(error)
            return _for_each(group, StorageUnknown())
        return results

    def _require_files(self) -> None:
        """Raise `StorageDetached` before anything is written to files that the path no longer shows."""
        if not (problem := self._files.problem()):
            return
        if self._files.is_only_wal_lost:
            self._files.fail(problem)
        self._save_log()
        raise StorageDetached(problem)

    def _save_log(self) -> None:
        """Complete the database if only the WAL was lost: everything that was committed is still in the open one."""
        if not self._files.is_only_wal_lost:
            return
        try:
            if self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE):
                self._files.set_wal_aside()
        except (apsw.Error, OSError) as error:
            translated(error)

    def _checkpoint(self, mode: int) -> bool:
        """Run a checkpoint. Return True if the database now contains everything in the log."""
        frames = moved = -1
        try:
            frames, moved = self._connection.wal_checkpoint(mode=mode)
        finally:
            # A failed checkpoint may have written some pages, and may have truncated the log.
            self._files.checkpointed(is_complete=frames == moved)
        return frames == moved

    def _attempt(self, job: Job[Any]) -> object:
        """Return the job's result, or the error with which it alone failed; raise errors of the file for the
        whole group.
        """
        self._connection.execute("SAVEPOINT job")
        try:
            result = job.work(self._connection)
        except Exception as error:
            if isinstance(error, WHOLE_GROUP) or not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO job; RELEASE job")
            return translated(error)
        self._connection.execute("RELEASE job")
        return result

    def _set_sync(self, *, full: bool) -> None:
        if full is not self._is_full_sync:
            self._connection.pragma("synchronous", "FULL" if full else "NORMAL")
            self._is_full_sync = full

    def _roll_back(self) -> None:
        """Return to a state in which the next group can be tried. SQLite may have rolled back by itself."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            translated(error)

    def _erase_log(self, patience_ms: int) -> None:
        """Checkpoint the log into the database and truncate it. Deleted content is overwritten there
        (`secure_delete`).

        A reader with an old snapshot, possibly of another program, blocks this: it is repeated when the writer
        is idle.
        """
        self._must_erase = True
        self._connection.set_busy_timeout(patience_ms)
        try:
            if self._files.problem():
                return
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._wal_pages = 0
            self._connection.execute("BEGIN IMMEDIATE")
            if self._files.is_log_empty:
                overwrite_unused(self._connection, self._files.database)
                self._files.checkpointed(is_complete=True)
                self._must_erase = False
        except (apsw.Error, OSError) as error:
            if not isinstance(error, apsw.BusyError):
                translated(error)
        finally:
            self._connection.set_busy_timeout(0)
            self._roll_back()
        self._prepare()
        if not self._must_erase:
            self._note_erased()

    def _is_erasure_due(self) -> bool:
        try:
            return bool(self._connection.execute("SELECT 1 FROM upkeep WHERE task = ?", (_ERASE,)).fetchall())
        except apsw.Error as error:
            translated(error)
            return False

    def _note_erased(self) -> None:
        """Remove the row of `upkeep`. If this fails, the next start erases once more."""
        try:
            # Cached pages still contain the content that was overwritten in the file.
            self._connection.pragma("shrink_memory")
            self._set_sync(full=False)
            self._connection.execute("DELETE FROM upkeep WHERE task = ?", (_ERASE,))
        except apsw.Error as error:
            self._roll_back()
            translated(error)

    def _between_groups(self) -> None:
        """Run `tidy` and a checkpoint if due. A failure is only reported; the work is repeated after a later group."""
        try:
            self._tidy(self._connection)
            self._empty_log()
        except (apsw.Error, OSError, StorageError) as error:
            self._roll_back()
            translated(error)

    def _while_idle(self) -> None:
        """Run maintenance in short steps. A job that is submitted meanwhile waits for one step at most."""
        if self._must_erase:
            self._erase_log(0)
        try:
            while self._jobs.empty() and self._shrinker.has_work(self._connection):
                self._set_sync(full=False)
                self._shrinker.step(self._connection)
                self._empty_log()
        except (apsw.Error, OSError) as error:
            self._roll_back()
            translated(error)

    def _empty_log(self) -> None:
        # Called after the results are delivered, so no caller waits for the checkpoint.
        if self._wal_pages >= LOG_PAGES and not self._files.problem():
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _note_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self._files.committed(pages)
        return apsw.SQLITE_OK


def _for_each(group: Sequence[Job[Any]], fault: StorageError) -> list[object]:
    """Return a separate exception for each job, because each of them is raised to another caller."""
    return [type(fault)(str(fault)) for _ in group]
