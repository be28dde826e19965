"""What the outside may ask of a workspace: prompts, cancels, changes of the queue.

Each is checked, written to the numbered log, and only then told to its lane, in the order of the numbers,
by the recorder; the answer comes last. A caller that goes away changes nothing about it.

What stops runs does not wait: all that is in the lane came before it, so the lane is told at once, while it is
being written. Its answer, and everything that is said of it, comes from the log like all others.
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
from holdfast.engine import lifecycle
from holdfast.engine.engine import Engine
from holdfast.engine.lifecycle import LaneEvent, Refuse, transition

__all__ = ["Inputs", "body_hash"]


# Identity of requests. Separate from `runs.py`, because hashing takes long to load and few modules need it.

# Msgpack stores the length of every value before it, so two different requests never have the same encoding.
_encoder = msgspec.msgpack.Encoder()


def body_hash(prompt: Prompt) -> bytes:
    """Return the hash of a request. Requests with the same run id are equal if their hashes are."""
    files = [(item.file_path, item.mime_type, item.content) for item in prompt.attachments]
    body = (prompt.session_id, prompt.prompt, prompt.effective_delivery, prompt.kind, files)
    return blake2b(_encoder.encode(body), digest_size=32).digest()


# What the outside may ask of a workspace: prompts, cancels, changes of the queue.

_RETRY_SECONDS = 1.0
"""How long a prompt waits to learn whether the storage works again."""
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
        if prompt.session_id in self._engine.deleting:
            raise UnknownSession("The session is being deleted.")
        run = self._new_run(prompt)
        refusal = self._would_refuse(run)
        if refusal is not None:
            return await self._answer_again(prompt, refusal)
        if self._engine.storage_fails and not await self._engine.retries.retry(_RETRY_SECONDS):
            raise self._engine.retries.refusal()
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

    @contextmanager
    def refusing(self, session: SessionId) -> Iterator[None]:
        """Accept no prompts for a session that is being deleted: its deletion would wait for them."""
        self._engine.deleting.add(session)
        try:
            yield
        finally:
            self._engine.deleting.discard(session)

    async def summarize(self, session: SessionId, client_id: str = "") -> Run:
        """Summarise by hand: a run like any other, refused while the session is busy."""
        return await self.submit(Prompt(session, "", delivery="reject", client_id=client_id, kind="summary"))

    async def cancel(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """Stop all that is in the session now. The runs it covers; none when idle."""
        engine = self._engine
        covered = dict.fromkeys(engine.covered_by_cancel(session))

        def late(runs: Sequence[RunId]) -> None:
            covered.update(dict.fromkeys(run for run in runs if engine.is_covered(session, run)))

        await self._stop(CancelSession(session, by), session, lifecycle.Cancel(), late)
        return tuple(covered)

    async def clear(self, session: SessionId, by: str = "") -> tuple[RunId, ...]:
        """End all that waits in the session; the head goes on."""
        engine = self._engine
        lane = engine.lane(session)
        covered = dict.fromkeys(waiting.run for waiting in lane.queue)
        folded: set[RunId] = set()

        def late(runs: Sequence[RunId]) -> None:
            covered.update(dict.fromkeys(run for run in runs if engine.is_covered(session, run)))
            folded.update(engine.lane(session).folded)

        operation = ClearQueue(session, () if lane.head is None else (lane.head.run,), by)
        await self._stop(operation, session, lifecycle.ClearQueue(), late)
        # A run that joined a turn while the clear was being written shares that turn's end.
        return tuple(run for run in covered if run not in folded)

    async def cancel_run(self, run_id: RunId, by: str = "") -> Run:
        """Stop one run, active or waiting. A finished one is answered as it is."""
        record = await self._engine.run_context.ledger.run(self._engine.record.id, run_id)
        if record is None:
            raise UnknownRun
        refused = await self._stop(CancelRun(run_id, by), record.run.session_id, lifecycle.CancelRun(run_id))
        if refused:
            raise _error_of(refused[0])
        # It may have finished a moment before: then this answers its end, once that is stored.
        await self._engine.wait_for_end(run_id)
        after = await self._engine.run_context.ledger.run(self._engine.record.id, run_id)
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
            self._engine.dispatch(session, lifecycle.Move(run, place))
        return run_id in waiting

    async def redeliver(self, run_id: RunId, delivery: Literal["steer", "queue"]) -> None:
        """Let a waiting run steer, or have a turn of its own."""
        session = await self._session_of(run_id)
        event = lifecycle.Redeliver(run_id, delivery)
        await self._rearrange(Redeliver(run_id, delivery), lambda: self._engine.dispatch(session, event) is None)

    def _new_run(self, prompt: Prompt) -> Run:
        files = prompt.attachments
        notes = tuple([AttachmentNote(item.file_name, item.mime_type, len(item.content)) for item in files])
        return Run(
            run_id=prompt.run_id or RunId(self._engine.new_id()),
            session_id=prompt.session_id,
            state="accepted",
            delivery=prompt.effective_delivery,
            accepted_at=self._engine.clock.now_ms(),
            prompt=prompt.prompt,
            kind=prompt.kind,
            attachments=notes,
            client_id=prompt.client_id,
            interactive=not prompt.run_id if prompt.interactive is None else prompt.interactive,
            yolo=prompt.yolo,
            require_model=prompt.require_model,
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
        late: Callable[[Sequence[RunId]], None] = lambda _: None,
    ) -> list[Refuse]:
        """Tell the lane and store it, in one breath. A disk that is slow or full keeps nobody from stopping.

        Prompts that were put before it and are told to the lane only now are covered too: the log says which, and
        `late` hears of them before the lane does. An end that follows at once is stored in the same write.
        """
        engine = self._engine
        if engine.closing:
            engine.stop_requests.add(operation.run_id if isinstance(operation, CancelRun) else session)
        if (refusal := engine.dispatch(session, event)) is not None:
            return [refusal]
        refused: list[Refuse] = []

        def stored(answer: Answer) -> None:
            if isinstance(answer, Receipt):
                runs = [run.run_id for run in answer.runs]
                late(runs)
                told = (engine.dispatch(session, lifecycle.CancelRun(run)) for run in runs)
                refused.extend(refusal for refusal in told if refusal is not None)

        future = engine.recorder.put(
            operation,
            then=stored,
            # What was put before it is in the lane by now, what was put after it is not, and no log names either.
            otherwise=lambda: engine.dispatch(session, event),
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
        self.refusal = self._engine.dispatch(run.session_id, lifecycle.Accept(run.run_id, run.delivery))
        if self.refusal is not None:
            said = (entry.event for entry in answer.entries)
            marked = [event.change.object.run_id for event in said if isinstance(event, RunEvent)]
            # A run that somebody has cancelled meanwhile keeps the mark: it is that cancel's as well.
            others = (other for other in marked if other != run.run_id)
            spared = tuple(other for other in others if not self._is_cancelled(other))
            self._removal = self._engine.recorder.put(RemoveRun(run.run_id, spared))

    def _is_cancelled(self, other: RunId) -> bool:
        session = self._run.session_id
        return not self._engine.stop_requests.isdisjoint((session, other)) or self._engine.is_cancelled(session, other)

    async def removed(self) -> None:
        """Refused after all: its row is gone before the caller hears of it."""
        if self._removal is not None:
            await self._removal


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
