"""Inputs of a workspace: prompts, cancels and queue changes.

Each input is validated, written to the numbered log, and then dispatched to its lane by the recorder, in number order;
the response follows. A caller that disconnects has no influence on this.

Inputs that stop runs are dispatched at once, while they are being written: every run in the lane has a smaller number.
Their response and events are published after the commit, like all others.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import Literal

import msgspec

from holdfast.domain.errors import (
    BadRequest,
    EmptyPrompt,
    HoldfastError,
    InvalidRunId,
    NotWaiting,
    RunFolded,
    RunIdTaken,
    SessionBusy,
    StorageError,
    StorageUnavailable,
    SubagentSession,
    UnknownRun,
    UnknownSession,
    WorkspaceClosing,
)
from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId, is_subagent_session, is_valid_run_id
from holdfast.domain.messages import replace_surrogates
from holdfast.domain.runs import AttachmentInfo, Prompt, Run
from holdfast.domain.store_operations import (
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
from holdfast.engine import run_lifecycle
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Clock, NewId
from holdfast.engine.run_lifecycle import LaneEvent, Refuse, transition

__all__ = ["Inputs", "body_hash", "new_run", "validate_prompt"]


# Msgpack stores the length of every value before it, so two different requests never have the same encoding.
_encoder = msgspec.msgpack.Encoder()


def body_hash(prompt: Prompt) -> bytes:
    """Return the hash of a request. Requests with the same run id are equal if their hashes are."""
    files = [(item.file_path, item.mime_type, item.content) for item in prompt.attachments]
    body = (prompt.session_id, prompt.prompt, prompt.effective_delivery, prompt.kind, files)
    return blake2b(_encoder.encode(body), digest_size=32).digest()


_RETRY_SECONDS = 1.0
"""How long a prompt waits for a retry while the storage fails."""
_NOT_STORED = (
    "The run is being stopped, but the cancel could not be stored: after a crash the run might be resumed. "
    "Free some disk space or check the log."
)


class Inputs:
    """Accepts prompts, cancels and queue changes for one workspace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def submit(self, prompt: Prompt) -> Run:
        """Accept a prompt: it is stored and in its lane when this returns. A repeated request gets the same
        response.
        """
        validate_prompt(prompt)
        if prompt.session_id in self._engine.deleting:
            raise UnknownSession("The session is being deleted.")
        run = new_run(prompt, self._engine.clock, self._engine.new_id)
        refusal = self._would_refuse(run)
        if refusal is not None:
            return await self._repeat_response(prompt, refusal)
        if self._engine.storage_fails and not await self._engine.retries.retry(_RETRY_SECONDS):
            raise self._engine.retries.refusal()
        placement = _Placement(self._engine, run)
        admit = Admit(run, body_hash(prompt), prompt.attachments, prompt.brief)
        answer = await self._engine.recorder.put(admit, on_answer=placement.stored)
        if isinstance(answer, Refusal):
            errors = {"unknown_session": UnknownSession(), "busy": SessionBusy()}
            return await self._repeat_response(prompt, errors.get(answer.reason, RunIdTaken()))
        if placement.refusal is not None:
            await placement.wait_for_removal()
            raise _error_of(placement.refusal)
        return answer.runs[0]

    @contextmanager
    def refuse_prompts(self, session: SessionId) -> Iterator[None]:
        """Refuse prompts for a session that is being deleted: the deletion would wait for them."""
        self._engine.deleting.add(session)
        try:
            yield
        finally:
            self._engine.deleting.discard(session)

    async def summarize(self, session: SessionId, client_id: str = "") -> Run:
        """Start a manual summary: a run that is refused while the session is busy."""
        return await self.submit(Prompt(session, "", delivery="reject", client_id=client_id, kind="summary"))

    async def cancel(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Cancel every run of the session. Return the runs covered; none if the session is idle."""
        engine = self._engine
        covered = dict.fromkeys(engine.covered_by_cancel(session))

        def add_late_runs(runs: Sequence[RunId]) -> None:
            covered.update(dict.fromkeys(run for run in runs if engine.is_covered(session, run)))

        await self._stop(CancelSession(session, by), session, run_lifecycle.Cancel(), add_late_runs)
        return tuple(covered)

    async def clear(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Cancel the waiting runs of the session; the head continues. Return the cancelled runs."""
        engine = self._engine
        lane = engine.lane(session)
        covered = dict.fromkeys(waiting.run for waiting in lane.queue)
        folded: set[RunId] = set()

        def add_late_runs(runs: Sequence[RunId]) -> None:
            covered.update(dict.fromkeys(run for run in runs if engine.is_covered(session, run)))
            folded.update(engine.lane(session).folded)

        operation = ClearQueue(session, () if lane.head is None else (lane.head.run,), by)
        await self._stop(operation, session, run_lifecycle.ClearQueue(), add_late_runs)
        # A run that was folded while the clear was being written shares its host's end.
        return tuple(run for run in covered if run not in folded)

    async def cancel_run(self, run_id: RunId, by: str = "") -> Run:
        """Cancel one run, active or waiting. Returns a finished run unchanged."""
        record = await self._engine.run_context.ledger.run(self._engine.record.id, run_id)
        if record is None:
            raise UnknownRun
        refused = await self._stop(CancelRun(run_id, by), record.run.session_id, run_lifecycle.CancelRun(run_id))
        if refused:
            raise _error_of(refused[0])
        # The run may have finished just before: wait until its end is stored, then return it.
        await self._engine.wait_for_end(run_id)
        after = await self._engine.run_context.ledger.run(self._engine.record.id, run_id)
        return record.run if after is None else after.run

    async def move(self, run_id: RunId, position: int) -> None:
        """Move a waiting run to a position in the queue, counted from 0."""
        session = await self._session_of(run_id)
        lane, effects = transition(self._engine.lane(session), run_lifecycle.Move(run_id, position))
        if effects:
            raise NotWaiting
        order = tuple(waiting.run for waiting in lane.queue)
        await self._rearrange(Reorder(order, run_id), partial(self._arrange, session, run_id, order))

    def _arrange(self, session: SessionId, run_id: RunId, order: Sequence[RunId]) -> bool:
        """Reorder the lane as stored, without the runs that have left it. Return False if `run_id` has left."""
        waiting = {item.run for item in self._engine.lane(session).queue}
        for place, run in enumerate(run for run in order if run in waiting):
            self._engine.dispatch(session, run_lifecycle.Move(run, place))
        return run_id in waiting

    async def redeliver(self, run_id: RunId, delivery: Literal["steer", "queue"]) -> None:
        """Change the delivery of a waiting run."""
        session = await self._session_of(run_id)
        event = run_lifecycle.Redeliver(run_id, delivery)
        await self._rearrange(Redeliver(run_id, delivery), lambda: self._engine.dispatch(session, event) is None)

    def _would_refuse(self, run: Run) -> HoldfastError | None:
        """Return the error if the lane would refuse the run now, so that nothing is written for it."""
        event = run_lifecycle.Accept(run.run_id, run.delivery)
        _, effects = transition(self._engine.lane(run.session_id), event)
        for effect in effects:
            if isinstance(effect, Refuse):
                return _error_of(effect)
        return None

    async def _repeat_response(self, prompt: Prompt, error: HoldfastError) -> Run:
        """Return the stored run of a request that was accepted before, whatever the state of its lane; else raise."""
        record = None
        if prompt.run_id:
            record = await self._engine.run_context.ledger.run(self._engine.record.id, prompt.run_id)
        if record is None:
            raise error
        if record.body_hash != body_hash(prompt):
            raise RunIdTaken
        return record.run

    async def _session_of(self, run_id: RunId) -> SessionId:
        record = await self._engine.run_context.ledger.run(self._engine.record.id, run_id)
        if record is None:
            raise UnknownRun
        return record.run.session_id

    async def _stop(
        self,
        operation: CancelSession | CancelRun | ClearQueue,
        session: SessionId,
        event: LaneEvent,
        add_late_runs: Callable[[Sequence[RunId]], None] = lambda _: None,
    ) -> list[Refuse]:
        """Dispatch the event and put the operation, in one synchronous step: a slow or full disk never prevents a stop.

        Prompts that were being written before it are covered too. The receipt names them; `add_late_runs` is called
        with them before they are cancelled. An end that follows at once is stored with the same sync.
        """
        engine = self._engine
        # While the workspace closes, runs are parked instead of ended, so the cancel is also noted for them.
        if engine.closing:
            engine.stop_requests.add(operation.run_id if isinstance(operation, CancelRun) else session)
        if (refusal := engine.dispatch(session, event)) is not None:
            return [refusal]
        refused: list[Refuse] = []

        def stored(answer: Answer) -> None:
            if isinstance(answer, Receipt):
                runs = [run.run_id for run in answer.runs]
                add_late_runs(runs)
                refusals = (engine.dispatch(session, run_lifecycle.CancelRun(run)) for run in runs)
                refused.extend(refusal for refusal in refusals if refusal is not None)

        future = engine.recorder.put(
            operation,
            on_answer=stored,
            # If the write failed there is no log to consult; cancel everything currently in the lane.
            on_failure=lambda: engine.dispatch(session, event),
            hold=engine.hold_for_ends(session),
        )
        try:
            async with asyncio.timeout(engine.run_context.settings.cancel_write):
                answer = await future
        except (TimeoutError, StorageError) as error:
            raise StorageUnavailable(_NOT_STORED) from error
        if isinstance(answer, Refusal):
            raise UnknownRun
        return refused

    async def _rearrange(self, operation: Operation, apply_change: Callable[[], bool]) -> None:
        """Store a change of the queue, then apply it. Raises `NotWaiting` if the run was started meanwhile."""
        is_done = False

        def stored(answer: Answer) -> None:
            nonlocal is_done
            is_done = isinstance(answer, Receipt) and apply_change()

        await self._engine.recorder.put(operation, on_answer=stored)
        if not is_done:
            raise NotWaiting


class _Placement:
    """Places a stored run into its lane, or removes it if the lane refuses it, whether or not its caller still
    waits.
    """

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine = engine
        self._run = run
        self.refusal: Refuse | None = None
        self._removal: asyncio.Future[Answer] | None = None

    def stored(self, answer: Answer) -> None:
        """Dispatch the run once it is stored."""
        if isinstance(answer, Refusal):
            return
        run = self._run
        self.refusal = self._engine.dispatch(run.session_id, run_lifecycle.Accept(run.run_id, run.delivery))
        if self.refusal is not None:
            events = (entry.event for entry in answer.entries)
            marked = [event.change.object.run_id for event in events if isinstance(event, RunEvent)]
            # A run that was cancelled meanwhile keeps its mark: the mark belongs to that cancel as well.
            others = (other for other in marked if other != run.run_id)
            spared = tuple(other for other in others if not self._is_cancelled(other))
            self._removal = self._engine.recorder.put(RemoveRun(run.run_id, spared))

    def _is_cancelled(self, other: RunId) -> bool:
        session = self._run.session_id
        return not self._engine.stop_requests.isdisjoint((session, other)) or self._engine.is_cancelled(session, other)

    async def wait_for_removal(self) -> None:
        """Wait until the row of a refused run is removed: the caller gets its 409 after that."""
        if self._removal is not None:
            await self._removal


def new_run(prompt: Prompt, clock: Clock, new_id: NewId) -> Run:
    """Return the run of a prompt, to be admitted."""
    files = prompt.attachments
    notes = tuple([AttachmentInfo(item.file_name, item.mime_type, len(item.content)) for item in files])
    return Run(
        run_id=prompt.run_id or RunId(new_id()),
        session_id=prompt.session_id,
        state="accepted",
        delivery=prompt.effective_delivery,
        accepted_at=clock.now_ms(),
        prompt=prompt.prompt,
        kind=prompt.kind,
        attachments=notes,
        client_id=prompt.client_id,
        interactive=not prompt.run_id if prompt.interactive is None else prompt.interactive,
        yolo=prompt.yolo,
        require_model=prompt.require_model,
        parent_run_id=prompt.parent_run_id,
    )


def validate_prompt(prompt: Prompt) -> None:
    """Raise the error for a prompt that is refused whatever the state of its session."""
    if prompt.run_id and not is_valid_run_id(prompt.run_id):
        raise InvalidRunId
    if replace_surrogates(prompt.prompt) != prompt.prompt:
        raise BadRequest("The prompt is not valid Unicode text: it contains unpaired surrogates. Send it as UTF-8.")
    is_empty = prompt.kind == "prompt" and not prompt.prompt.strip()
    if is_empty and not any(item.mime_type.startswith("text/") for item in prompt.attachments):
        raise EmptyPrompt
    if is_subagent_session(prompt.session_id) and not prompt.parent_run_id:
        raise SubagentSession


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
