"""The one thread that writes. All that waits for it is committed together."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from holdfast.domain.errors import StorageDetached, StorageError, StorageUnknown
from holdfast.storage.erase import overwrite_unused
from holdfast.storage.faults import WHOLE_GROUP, at_commit, closed, translated
from holdfast.storage.identity import OpenFiles
from holdfast.storage.replies import Reply, deliver
from holdfast.storage.reserve import LOG_PAGES
from holdfast.storage.shrink import Shrinker

__all__ = ["Job", "Probe", "Work", "Writer"]

_QUIET_SECONDS = 0.25
_LONGEST_ERASE_MS = 2_000
"""How long a deletion waits for readers of the log before it is answered without them."""
_ERASE = "erase"
"""The row of `upkeep` that a deletion writes with its own commit: a server that is killed before it has erased the log
does so after its next start.
"""

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Probe = Callable[[str], None]


class Job(Generic[T]):
    """Some work within a transaction, and where its result goes. With `erases`, what it deleted is in no file when the
    result comes.
    """

    def __init__(self, work: Work[T], *, sync: bool, erases: bool = False) -> None:
        self.work = work
        self.sync = sync
        self.erases = erases
        self.reply: Reply[T] = Reply()


class Writer:
    """Owns the writing connection. `prepare` is called first of all, in this thread; `tidy` between groups, in a
    transaction of its own.

    `probe` is called in this thread at "before", "executed" (not yet committed) and "committed" (not yet answered).
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
        """Whether the log still holds what was deleted: somebody was reading it."""
        self._shrinker = Shrinker()
        connection.set_wal_hook(self._note_pages)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, sync: bool, erases: bool = False) -> Reply[T]:
        """Call in a running loop. What is submitted first is executed first."""
        job = Job(work, sync=sync, erases=erases)
        with self._door:
            if self._is_closed:
                raise closed()
            self._jobs.put(job)
        return job.reply

    def close(self) -> None:
        """Finish what was submitted, then stop. Blocks; a second call only waits."""
        with self._door:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

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
            # The next may be long in coming, and what was written may be large.
            del group

    def _take(self) -> tuple[list[Job[Any]], bool]:
        """Everything that waits, at least one; and whether it is the end."""
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
        """Who was written for is at work with the answer: only a quiet moment later is there time for other things."""
        while True:
            try:
                return self._jobs.get(timeout=_QUIET_SECONDS)
            except queue.Empty:
                self._while_idle()
                if not self._must_erase:
                    return self._jobs.get()

    def _write(self, group: Sequence[Job[Any]]) -> list[object]:
        """A result or a `StorageError` for each job. Never raises: this thread has to go on."""
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
                # What was committed may be in files that no path shows. No later commit can be told from it.
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
        """Return whether everything in the log is in the database now."""
        frames = moved = -1
        try:
            frames, moved = self._connection.wal_checkpoint(mode=mode)
        finally:
            # One that failed may have written a part, and may have cut the log.
            self._files.checkpointed(is_complete=frames == moved)
        return frames == moved

    def _attempt(self, job: Job[Any]) -> object:
        """The job's result, or why it alone failed; an error of the file is raised for the whole group."""
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
        """Back to a state in which the next group can be tried. SQLite may have rolled back by itself."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error as error:
            translated(error)

    def _erase_log(self, patience_ms: int) -> None:
        """Move the log into the database and cut it to nothing. What is deleted there is overwritten (`secure_delete`).

        A reader with an old snapshot, which may be another program, holds this up: it is tried again when it is quiet.
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
        """If this cannot be stored, the next start erases once more."""
        try:
            # Pages in memory still have what was overwritten in the file.
            self._connection.pragma("shrink_memory")
            self._set_sync(full=False)
            self._connection.execute("DELETE FROM upkeep WHERE task = ?", (_ERASE,))
        except apsw.Error as error:
            self._roll_back()
            translated(error)

    def _between_groups(self) -> None:
        """Housekeeping that fails is tried again after a later group."""
        try:
            self._tidy(self._connection)
            self._empty_log()
        except (apsw.Error, OSError, StorageError) as error:
            self._roll_back()
            translated(error)

    def _while_idle(self) -> None:
        """Whoever comes meanwhile waits for one step at most."""
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
        # After the answers: nobody waits for it.
        if self._wal_pages >= LOG_PAGES and not self._files.problem():
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _note_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self._files.committed(pages)
        return apsw.SQLITE_OK


def _for_each(group: Sequence[Job[Any]], fault: StorageError) -> list[object]:
    """One exception for each of those who wait: a raised one belongs to whoever it is raised to."""
    return [type(fault)(str(fault)) for _ in group]
