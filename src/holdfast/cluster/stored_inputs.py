"""Inputs on a node that does not own the workspace: prompts, cancels, queue changes, sessions.

Each input is one write that is accepted or refused by the rows at that moment. The response follows from the answer of
the store alone, so it does not depend on the owner. After an unknown result the input is stored again: that repeats no
effect, and a refusal then means that the first attempt was stored.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.cluster.log_reader import LogReader
from holdfast.cluster.stored_state import queue_of
from holdfast.domain.errors import (
    HoldfastError,
    NotWaiting,
    RunFolded,
    RunIdTaken,
    SessionBusy,
    StorageUnavailable,
    StorageUnknown,
    UnknownRun,
    UnknownSession,
)
from holdfast.domain.events import DurableEvent, SessionEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.runs import Prompt, Run
from holdfast.domain.sessions import Session, SessionPatch
from holdfast.domain.store_operations import (
    Admit,
    Answer,
    CancelRun,
    CancelSession,
    ClearQueue,
    CreateSession,
    DeleteSession,
    Input,
    PatchSession,
    PutMessage,
    Receipt,
    Redeliver,
    Refusal,
    Reorder,
    Write,
)
from holdfast.engine.inputs import body_hash, new_run, validate_prompt
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.ports import Clock, NewId, SharedLedger
from holdfast.engine.recorder import decode_entries
from holdfast.engine.sessions import new_session

__all__ = ["InputStore", "Stored", "StoredInputs", "StoredSessions"]

_REPEAT_SECONDS = 0.05
_UNKNOWN_TIMEOUT = 5.0
"""Seconds for which an input with an unknown result is repeated."""
_DELETE_TIMEOUT = 10.0
"""Seconds for which a deletion waits for the ends of cancelled runs: a takeover takes less."""
_MAX_MOVES = 5


class Stored(msgspec.Struct, frozen=True):
    """The answer to an input. `is_repeated`: an earlier attempt may have been stored."""

    answer: Answer
    is_repeated: bool


class InputStore:
    """Stores inputs of one workspace and notifies the owner."""

    def __init__(
        self, ledger: SharedLedger, workspace: WorkspaceId, reader: LogReader, notify_owner: Callable[[], None]
    ) -> None:
        self.ledger = ledger
        self.workspace = workspace
        self.reader = reader
        self._notify_owner = notify_owner

    async def put(self, operation: Input) -> Stored:
        """Store an input. Raises `StorageUnavailable` if it was not stored, `StorageUnknown` if that is unknown."""
        is_repeated = False
        end = asyncio.get_running_loop().time() + _UNKNOWN_TIMEOUT
        while True:
            try:
                (answer,) = await self.ledger.accept(self.workspace, (Write((operation,)),))
            except StorageUnknown:
                is_repeated = True
            except StorageUnavailable:
                if not is_repeated:
                    raise
            else:
                self._notify_owner()
                self.reader.wake()
                return Stored(answer, is_repeated)
            if asyncio.get_running_loop().time() >= end:
                raise StorageUnknown
            await asyncio.sleep(_REPEAT_SECONDS)

    async def run(self, run: RunId) -> Run:
        """Return a stored run. Raises `UnknownRun`."""
        record = await self.ledger.run(self.workspace, run)
        if record is None:
            raise UnknownRun
        return record.run

    async def is_in_log(self, event: DurableEvent, cursor: int) -> bool:
        """Return whether an equal event is stored after the cursor."""
        while page := await self.ledger.events_after(self.workspace, cursor, 500):
            if any(entry.event == event for entry in decode_entries(page)):
                return True
            cursor = page[-1][0]
        return False


class StoredInputs:
    """Accepts prompts, cancels and queue changes. See `engine.inputs.Inputs` for the owner's."""

    def __init__(self, store: InputStore, clock: Clock, new_id: NewId) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id

    async def submit(self, prompt: Prompt) -> Run:
        """Accept a prompt: it is stored when this returns. A repeated request gets the same response."""
        validate_prompt(prompt)
        run = new_run(prompt, self._clock, self._new_id)
        digest = body_hash(prompt)
        stored = await self._store.put(Admit(run, digest, prompt.attachments, prompt.brief))
        if isinstance(stored.answer, Receipt):
            return stored.answer.runs[0]
        errors: dict[str, HoldfastError] = {"unknown_session": UnknownSession(), "busy": SessionBusy()}
        record = await self._store.ledger.run(self._store.workspace, run.run_id)
        if record is None:
            raise errors.get(stored.answer.reason, RunIdTaken())
        if record.body_hash != digest:
            raise RunIdTaken
        return record.run

    async def summarize(self, session: SessionId, client_id: str = "") -> Run:
        """Start a manual summary: a run that is refused while the session is busy."""
        return await self.submit(Prompt(session, "", delivery="reject", client_id=client_id, kind="summary"))

    async def cancel(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Cancel every run of the session. Return the runs covered; none if the session is idle."""
        return _covered(await self._store.put(CancelSession(session, by)))

    async def clear(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Cancel the waiting runs of the session; the active or next one continues. Return the cancelled runs."""
        return _covered(await self._store.put(ClearQueue(session, by=by, keeps_next=True)))

    async def cancel_run(self, run_id: RunId, by: str = "") -> Run:
        """Cancel one run, active or waiting. Returns a finished run unchanged."""
        stored = await self._store.put(CancelRun(run_id, by))
        if isinstance(stored.answer, Receipt):
            return stored.answer.runs[0]
        run = await self._store.run(run_id)
        raise RunFolded(run.folded_into)

    async def move(self, run_id: RunId, position: int) -> None:
        """Move a waiting run to a position in the queue, counted from 0."""
        session = (await self._store.run(run_id)).session_id
        for _ in range(_MAX_MOVES):
            open_runs = await self._store.ledger.open_runs(self._store.workspace)
            queue = [run.run_id for run in queue_of([run for run in open_runs if run.session_id == session])]
            if run_id not in queue:
                raise NotWaiting
            queue.remove(run_id)
            queue.insert(min(max(0, position), len(queue)), run_id)
            stored = await self._store.put(Reorder(tuple(queue), run_id))
            if isinstance(stored.answer, Receipt):
                return
            # Another run of the queue has started since it was read.
        raise NotWaiting

    async def redeliver(self, run_id: RunId, delivery: Literal["steer", "queue"]) -> None:
        """Change the delivery of a waiting run."""
        await self._store.run(run_id)
        stored = await self._store.put(Redeliver(run_id, delivery))
        if isinstance(stored.answer, Refusal):
            raise NotWaiting


def _covered(stored: Stored) -> tuple[RunId, ...]:
    return tuple(run.run_id for run in stored.answer.runs) if isinstance(stored.answer, Receipt) else ()


class StoredSessions:
    """Creates, renames and deletes sessions. See `engine.sessions.Sessions` for the owner's."""

    def __init__(self, store: InputStore, clock: Clock, new_id: NewId) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id

    async def create(
        self, title: str = "New session", parent: SessionId | None = None, id: SessionId | None = None
    ) -> Session:
        """Create a session, with a new id unless one is given."""
        session = new_session(id or SessionId(self._new_id()), title, parent, self._now())
        await self._store.put(CreateSession(session))
        return session

    async def note_shell(self, session: SessionId, command: ShellCommand) -> None:
        """Store a command that the user ran. An active turn sees it after its current step.

        No effect if the session does not exist.
        """
        factory = MessageFactory(session, RunId(""), self._now(), self._new_id)
        await self._store.put(PutMessage(factory.shell(command)))

    async def rename(self, session: SessionId, title: str) -> Session:
        """Change the title. Raises `UnknownSession`."""
        stored = await self._store.put(PatchSession(SessionPatch(session, self._now(), title=title)))
        if isinstance(stored.answer, Refusal):
            raise UnknownSession
        events = (entry.event for entry in stored.answer.entries)
        return next(event.change.object for event in events if isinstance(event, SessionEvent))

    async def delete(self, session: SessionId) -> None:
        """Delete a session with its children. A busy one is cancelled first, and the deletion waits until the owner, or
        its successor, has ended the runs. Raises `StorageUnavailable` if that takes too long; the cancel is kept.
        """
        end = asyncio.get_running_loop().time() + _DELETE_TIMEOUT
        while True:
            await self._store.put(CancelSession(session))
            stored = await self._store.put(DeleteSession(session))
            if isinstance(stored.answer, Receipt):
                return
            if stored.answer.reason == "unknown_session":
                if stored.is_repeated:
                    return
                raise UnknownSession
            if asyncio.get_running_loop().time() >= end:
                raise StorageUnavailable(
                    "The runs of the session are cancelled, but no server has ended them yet. Try again later."
                )
            await asyncio.sleep(_REPEAT_SECONDS)

    def _now(self) -> int:
        return self._clock.now_ms() // 1000
