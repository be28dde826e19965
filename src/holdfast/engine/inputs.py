"""What the outside may ask of a workspace: prompts, cancels, changes of the queue.

Each is checked, written to the numbered log, and only then told to its lane, in the order of the numbers,
by the recorder; the answer comes last. A caller that goes away changes nothing about it.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from holdfast.domain.errors import (
    BadRequest,
    EmptyPrompt,
    HelpersSession,
    HoldfastError,
    InvalidRunId,
    NotWaiting,
    RunFolded,
    RunIdTaken,
    SessionBusy,
    StorageError,
    StorageUnavailable,
    UnknownRun,
    UnknownSession,
    WorkspaceClosing,
)
from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId, is_helper_session, is_valid_run_id
from holdfast.domain.ledger import (
    Admit,
    Answer,
    CancelRun,
    CancelSession,
    ClearQueue,
    Operation,
    Receipt,
    Redeliver,
    Refusal,
    RemoveRun,
    Reorder,
)
from holdfast.domain.messages import encodable
from holdfast.domain.runs import AttachmentNote, Prompt, Run
from holdfast.domain.sameness import body_hash
from holdfast.engine import lifecycle
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle import Refuse, transition

__all__ = ["Inputs"]

_NOT_STORED = (
    "The run is being stopped, but the storage could not record it: after a crash it might be taken up again. "
    "Free some disk space or look at the log."
)


class Inputs:
    """The desk of one workspace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def submit(self, prompt: Prompt) -> Run:
        """Accept a prompt: on disk and in its lane when this returns. The same request again answers the same."""
        _check(prompt)
        if is_helper_session(prompt.session_id) and not prompt.parent_run_id:
            raise HelpersSession
        run = self._new_run(prompt)
        refusal = self._would_refuse(run)
        if refusal is not None:
            return await self._answer_again(prompt, refusal)
        if self._engine.storage_fails:
            raise StorageUnavailable
        placing = _Placing(self._engine, run)
        admit = Admit(run, body_hash(prompt), prompt.attachments, prompt.brief)
        answer = await self._engine.recorder.put(admit, then=placing.stored)
        if isinstance(answer, Refusal):
            errors = {"unknown_session": UnknownSession(), "busy": SessionBusy()}
            return await self._answer_again(prompt, errors.get(answer.reason, RunIdTaken()))
        if placing.refusal is not None:
            await placing.removed()
            raise _error_of(placing.refusal)
        return answer.runs[0]

    async def summarize(self, session: SessionId, client_id: str = "") -> Run:
        """Summarise by hand: a run like any other, refused while the session is busy."""
        return await self.submit(Prompt(session, "", delivery="reject", client_id=client_id, kind="summary"))

    async def cancel(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Stop all that is in the session now. The runs it covers; none when idle."""
        covered: list[RunId] = []

        def tell() -> None:
            covered.extend(self._engine.covered_by_cancel(session))
            self._engine.tell(session, lifecycle.Cancel())

        await self._stop(CancelSession(session, by), session, tell)
        return tuple(covered)

    async def clear(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """End all that waits in the session; the head goes on."""
        head = self._engine.lane(session).head
        covered: list[RunId] = []
        folded: set[RunId] = set()

        def tell() -> None:
            lane = self._engine.lane(session)
            covered.extend(waiting.run for waiting in lane.queue)
            folded.update(lane.folded)
            self._engine.tell(session, lifecycle.ClearQueue())

        receipt = await self._stop(ClearQueue(session, () if head is None else (head,), by), session, tell)
        named = dict.fromkeys((*covered, *(run.run_id for run in receipt.runs)))
        # A run that joined a turn while the clear was being written shares that turn's end.
        return tuple(run for run in named if run not in folded)

    async def cancel_run(self, run_id: RunId, by: str = "") -> Run:
        """Stop one run, active or waiting. A finished one is answered as it is."""
        record = await self._engine.kit.ledger.run(self._engine.record.id, run_id)
        if record is None:
            raise UnknownRun
        session = record.run.session_id
        if run_id in self._engine.lane(session).folded:
            raise RunFolded(self._engine.lane(session).head or RunId(""))
        refused: list[Refuse] = []

        def tell() -> None:
            if (refusal := self._engine.tell(session, lifecycle.CancelRun(run_id))) is not None:
                refused.append(refusal)

        await self._stop(CancelRun(run_id, by), session, tell)
        if refused:
            raise _error_of(refused[0])
        # It may have finished a moment before: then this answers its end, once that is stored.
        await self._engine.until_told(run_id)
        after = await self._engine.kit.ledger.run(self._engine.record.id, run_id)
        return record.run if after is None else after.run

    async def move(self, run_id: RunId, position: int) -> None:
        """Give a waiting run another place in the queue, counted from 0."""
        session = await self._session_of(run_id)
        lane, effects = transition(self._engine.lane(session), lifecycle.Move(run_id, position))
        if effects:
            raise NotWaiting
        order = tuple(waiting.run for waiting in lane.queue)
        await self._rearrange(Reorder(order, run_id), partial(self._arrange, session, run_id, order))

    def _arrange(self, session: SessionId, run_id: RunId, order: Sequence[RunId]) -> bool:
        """The lane waits in the order that is stored, but for those who have left it. False if `run_id` has."""
        waiting = {item.run for item in self._engine.lane(session).queue}
        for place, run in enumerate(run for run in order if run in waiting):
            self._engine.tell(session, lifecycle.Move(run, place))
        return run_id in waiting

    async def redeliver(self, run_id: RunId, delivery: Literal["steer", "queue"]) -> None:
        """Let a waiting run steer, or have a turn of its own."""
        session = await self._session_of(run_id)
        event = lifecycle.Redeliver(run_id, delivery)
        await self._rearrange(Redeliver(run_id, delivery), lambda: self._engine.tell(session, event) is None)

    def _new_run(self, prompt: Prompt) -> Run:
        files = prompt.attachments
        notes = tuple([AttachmentNote(item.file_name, item.mime_type, len(item.content)) for item in files])
        return Run(
            run_id=prompt.run_id or RunId(self._engine.outside.new_id()),
            session_id=prompt.session_id,
            state="accepted",
            delivery=prompt.effective_delivery,
            accepted_at=self._engine.outside.clock.now_ms(),
            prompt=prompt.prompt,
            kind=prompt.kind,
            attachments=notes,
            client_id=prompt.client_id,
            interactive=not prompt.run_id if prompt.interactive is None else prompt.interactive,
            yolo=prompt.yolo,
            parent_run_id=prompt.parent_run_id,
        )

    def _would_refuse(self, run: Run) -> HoldfastError | None:
        """What can be seen now that would refuse the run, so that nothing is written for it."""
        event = lifecycle.Accept(run.run_id, run.delivery)
        _, effects = transition(self._engine.lane(run.session_id), event)
        for effect in effects:
            if isinstance(effect, Refuse):
                return _error_of(effect)
        return None

    async def _answer_again(self, prompt: Prompt, error: HoldfastError) -> Run:
        """A request that was accepted before gets the answer it got then, whatever the lane is like now."""
        record = None
        if prompt.run_id:
            record = await self._engine.kit.ledger.run(self._engine.record.id, prompt.run_id)
        if record is None:
            raise error
        if record.body_hash != body_hash(prompt):
            raise RunIdTaken
        return record.run

    async def _session_of(self, run_id: RunId) -> SessionId:
        record = await self._engine.kit.ledger.run(self._engine.record.id, run_id)
        if record is None:
            raise UnknownRun
        return record.run.session_id

    async def _stop(self, operation: Operation, session: SessionId, tell: Callable[[], None]) -> Receipt:
        """Store a cancel, then tell the lane. A disk that is slow or full keeps nobody from stopping a run."""
        stopping = _Stopping(self._engine, session, tell)
        future = self._engine.recorder.put(operation, then=stopping.stored)
        future.add_done_callback(stopping.answered)
        try:
            async with asyncio.timeout(self._engine.kit.settings.cancel_write):
                answer = await asyncio.shield(future)
        except (TimeoutError, StorageError) as error:
            stopping.tell_once()
            raise StorageUnavailable(_NOT_STORED) from error
        if isinstance(answer, Refusal):
            raise UnknownRun
        return answer

    async def _rearrange(self, operation: Operation, tell: Callable[[], bool]) -> None:
        """Store it, then tell the lane, which may say that the run began while it was being written."""
        is_done = False

        def stored(answer: Answer) -> None:
            nonlocal is_done
            is_done = isinstance(answer, Receipt) and tell()

        await self._engine.recorder.put(operation, then=stored)
        if not is_done:
            raise NotWaiting


class _Placing:
    """A run on its way into its lane. It gets there, or is removed, whether or not its caller still waits."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self.refusal: Refuse | None = None
        self._removal: asyncio.Future[Answer] | None = None

    def stored(self, answer: Answer) -> None:
        if isinstance(answer, Refusal):
            return
        run = self._run
        self.refusal = self._engine.tell(run.session_id, lifecycle.Accept(run.run_id, run.delivery))
        if self.refusal is not None:
            said = (entry.event for entry in answer.entries)
            marked = [event.payload.payload.run_id for event in said if isinstance(event, RunEvent)]
            spared = tuple(other for other in marked if other != run.run_id)
            self._removal = self._engine.recorder.put(RemoveRun(run.run_id, spared))

    async def removed(self) -> None:
        """Refused after all: its row is gone before the caller hears of it."""
        if self._removal is not None:
            await self._removal


class _Stopping:
    """A cancel on its way. The lane is told once, by the write's answer or by the impatient caller."""

    def __init__(self, engine: Engine, session: SessionId, tell: Callable[[], None]) -> None:
        self._engine = engine
        self._session = session
        self._tell = tell
        self._is_told = False

    def tell_once(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell()

    def stored(self, answer: Answer) -> None:
        if isinstance(answer, Refusal):
            self._is_told = True
            return
        self.tell_once()
        # The log says which runs it covers. The lane may have moved on since it was told, or was told too early.
        for run in answer.runs:
            self._engine.tell(self._session, lifecycle.CancelRun(run.run_id))

    def answered(self, future: asyncio.Future[Answer]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self.tell_once()


def _check(prompt: Prompt) -> None:
    if prompt.run_id and not is_valid_run_id(prompt.run_id):
        raise InvalidRunId
    if encodable(prompt.prompt) != prompt.prompt:
        raise BadRequest("The prompt is not valid Unicode text: it holds half characters. Send it as UTF-8.")
    is_empty = prompt.kind == "prompt" and not prompt.prompt.strip()
    if is_empty and not any(item.mime_type.startswith("text/") for item in prompt.attachments):
        raise EmptyPrompt


def _error_of(refusal: Refuse) -> HoldfastError:
    match refusal.reason:
        case "busy":
            return SessionBusy()
        case "closing":
            return WorkspaceClosing()
        case "folded":
            return RunFolded(refusal.host or RunId(""))
        case "not waiting":
            return NotWaiting()
