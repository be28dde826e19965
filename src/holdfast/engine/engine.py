"""The shell around the lifecycle machine: it carries out what `lifecycle.py` decides and decides nothing.

One engine serves one workspace. Inputs (prompts, cancels, clears) are stored first; the lane hears of them
in the order of their numbers, from the recorder. Effects that take time go to the session's outbox, where
they are carried out one after the other, outside of any run's task, so that no cancellation reaches them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.domain.errors import Conflict, OwnerChanged, StorageError, StorageUnavailable, UnknownRun
from holdfast.domain.events import AgentEvent, AgentNotice, Change, MessagePart
from holdfast.domain.ids import RunId, SessionId, is_helper_session
from holdfast.domain.ledger import EndRun, FoldRun, Operation, PutMessage, Refusal, RunRecord
from holdfast.domain.messages import Message
from holdfast.domain.sessions import Session
from holdfast.engine.agent_loop import drive, drive_summary
from holdfast.engine.lifecycle import (
    Effect,
    End,
    Enter,
    Finish,
    Fold,
    Interrupt,
    Lane,
    LaneEvent,
    Park,
    Refuse,
    Shutdown,
    Spawn,
    StepBoundary,
    members,
    transition,
)
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.ports import Clock, NewId
from holdfast.engine.prompt_hooks import opening, prompt_message
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_context import RunContext, StartSubagent
from holdfast.engine.run_end import announce_ends, bare_end, describe, end_of_turn, end_of_waiting, leading_ends
from holdfast.engine.titles import Titler
from holdfast.engine.turn import Turn
from holdfast.tasks import TaskOwner

__all__ = ["ActiveRuns", "EndRetries", "Engine", "PendingEnd", "RunState", "answer_fold"]


# What the shell remembers of a run while it has the lane, and while its end is being stored.


class RunState:
    """A run that has the lane: its task, its turn, and how the task went."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.turn: Turn | None = None
        self.is_over = False
        self.error: BaseException | None = None
        self.deadline: asyncio.TimerHandle | None = None


class ActiveRuns(dict[RunId, RunState]):
    """The runs that have a task or whose end is not stored yet.

    Shared by the engine, which maintains it, and the bus, which sends open parts to new subscribers.
    """

    def open_parts(self) -> list[MessagePart]:
        """Return every part that is growing, in full, for subscribers that missed its deltas."""
        return [part for state in self.values() if state.turn for part in state.turn.open_parts()]

    def turn_of(self, session: SessionId) -> Turn | None:
        """Return the active turn of a session."""
        turns = (state.turn for state in self.values() if state.turn and state.turn.run.session_id == session)
        return next(turns, None)


_HOLD_SECONDS = 0.002
"""Maximum delay of a cancel's write. A second sync costs about as much."""


class EndHold:
    """Delays the write of a cancel until the ends that it causes are put, so that one sync stores them all.

    `head_finished` is done when the cancelled head has finished: the outbox then stores its end together with those of
    the waiting runs. `ends_put` is done when the recorder has all of these ends: the recorder then commits. Both are
    done after `_HOLD_SECONDS` at the latest, in this order: if the head is slow to stop, the ends of the waiting runs
    are put in the step that `head_finished` resumes, before the recorder resumes.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.head_finished: asyncio.Future[None] = loop.create_future()
        self.ends_put: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(_HOLD_SECONDS, self.release)

    def finish_head(self) -> None:
        """Let the outbox store the ends."""
        if not self.head_finished.done():
            self.head_finished.set_result(None)

    def release(self) -> None:
        """Let the recorder commit."""
        self._timer.cancel()
        self.finish_head()
        if not self.ends_put.done():
            self.ends_put.set_result(None)


class PendingEnd:
    """An end that was decided and is on its way to the store."""

    def __init__(self, session: SessionId, end: End) -> None:
        self.session = session
        self.end = end
        self.is_put = False
        """Whether the end was put to the recorder."""
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def answer_fold(waiter: asyncio.Future[None], error: Exception | None) -> None:
    """A boundary whose run was cancelled meanwhile waits no more."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


# Retries of ends that could not be stored: when the next attempt is made, and what came of it.


class EndRetries:
    """One for a workspace. While `has_failed`, no prompt is accepted: its end could not be stored either."""

    def __init__(self) -> None:
        self.error: StorageError | None = None
        """Why the last attempt failed; None after one that succeeded."""
        self._paused: list[asyncio.Future[None]] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_failed(self) -> bool:
        return self.error is not None

    def refusal(self) -> StorageUnavailable:
        """Return the error for a prompt that is not accepted: it names the reason, which need not be a full disk."""
        return type(self.error)(str(self.error)) if isinstance(self.error, StorageUnavailable) else StorageUnavailable()

    async def pause(self, seconds: float) -> None:
        """Wait after a failed attempt: so long, or until somebody wants it to be made now."""
        _wake(self._waiting)
        await _wait_in(self._paused, seconds)

    def succeed(self) -> None:
        """An end was stored."""
        self.error = None
        _wake(self._waiting)

    async def retry(self, seconds: float) -> bool:
        """Have an attempt made at once. Whether it succeeded, within so many seconds.

        One that fails now may have begun before the disk was freed: only a second one tells.
        """
        for _ in range(2):
            if self.has_failed:
                _wake(self._paused)
                await _wait_in(self._waiting, seconds)
        return not self.has_failed


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _wait_in(waiters: list[asyncio.Future[None]], seconds: float) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        if waiter in waiters:
            waiters.remove(waiter)


# The shell around the lifecycle machine: it carries out what `lifecycle.py` decides and decides nothing.


class Engine:
    """Lanes, tasks and outboxes of one workspace. `inputs.py` holds what the outside may ask of it."""

    def __init__(  # noqa: PLR0913 - each is a part of the workspace with its own lifetime
        self,
        run_context: RunContext,
        recorder: Recorder,
        clock: Clock,
        new_id: NewId,
        active_runs: ActiveRuns | None = None,
        *,
        subagents: Callable[["Engine"], StartSubagent] | None = None,
        on_busy: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`active_runs` is shared with the bus. `subagents` returns the function by which tools of this engine start
        sub-agents: their runs are runs of this engine, so that function needs the engine.
        `on_busy` is called when the first run enters a lane and when the last one has left.
        """
        self.record = recorder.record
        self.recorder = recorder
        self.outlet = recorder.outlet
        self.clock = clock
        self.new_id = new_id
        self.closing = False
        self.deleting: set[SessionId] = set()
        """Sessions that are being deleted and accept no prompts."""
        self.stop_requests: set[SessionId | RunId] = set()
        """Sessions and runs that were cancelled while the workspace closes. Parked runs are in no lane that could
        record it.
        """
        self.retries = EndRetries()
        self._on_busy = on_busy
        self._tasks = TaskOwner()
        self._writing = recorder.tasks
        self._titler = Titler(run_context, recorder, clock)
        self._lanes: dict[SessionId, Lane] = {}
        self._active = ActiveRuns() if active_runs is None else active_runs
        self._outboxes: dict[SessionId, deque[Effect]] = {}
        self._ends: dict[RunId, PendingEnd] = {}
        self._holds: dict[SessionId, EndHold] = {}
        self._folds: dict[RunId, asyncio.Future[None]] = {}
        self._quiet: dict[SessionId, list[asyncio.Future[None]]] = {}
        if subagents is not None:
            run_context = msgspec.structs.replace(run_context, start_subagent=subagents(self))
        self.run_context = run_context

    # What can be seen.

    def lane(self, session: SessionId) -> Lane:
        return self._lanes.get(session) or Lane(closing=self.closing)

    def is_busy(self, session: SessionId | None = None) -> bool:
        return bool(self._lanes) if session is None else self.lane(session).head is not None

    def covered_by_cancel(self, session: SessionId) -> tuple[RunId, ...]:
        """All that a cancel stops now, and what an earlier one has stopped whose end is not stored yet."""
        here = (ending for ending in self._ends.values() if ending.session == session)
        ending = (item.end.run for item in here if item.end.outcome == "cancelled")
        return (*ending, *members(self.lane(session)))

    def is_cancelled(self, session: SessionId, run: RunId) -> bool:
        """Whether a cancel is why this run stops, or has stopped while its end is being stored."""
        if (ending := self._ends.get(run)) is not None:
            return ending.end.outcome == "cancelled"
        lane = self.lane(session)
        head = lane.head
        return head is not None and head.cause == "cancel" and run in (head.run, *lane.folded)

    def is_covered(self, session: SessionId, run: RunId) -> bool:
        """Whether a cancel of the session stops this run now, or an earlier one has and its end is not stored yet."""
        if (ending := self._ends.get(run)) is not None:
            return ending.end.outcome == "cancelled"
        return run in members(self.lane(session))

    def hold_for_ends(self, session: SessionId) -> asyncio.Future[None] | None:
        """Return a future that is done when the ends that were decided in this session are put to the recorder, or
        after a moment if they take longer. None if there are none.
        """
        if not self._is_cancelling(session) and not self._has_unput_ends(session):
            return None
        hold = self._holds.get(session)
        if hold is None or hold.ends_put.done():
            hold = self._holds[session] = EndHold()
        return hold.ends_put

    def _has_unput_ends(self, session: SessionId) -> bool:
        return any(not ending.is_put for ending in self._ends.values() if ending.session == session)

    def _update_hold(self, session: SessionId) -> None:
        hold = self._holds.get(session)
        if hold is None or self._is_cancelling(session):
            return
        hold.finish_head()
        if not self._has_unput_ends(session):
            del self._holds[session]
            hold.release()

    def _is_cancelling(self, session: SessionId) -> bool:
        head = self.lane(session).head
        return head is not None and head.phase == "cancelling"

    async def wait_for_end(self, run: RunId) -> None:
        """A run that has come to its end by itself, but whose end is not stored yet: wait for it."""
        ending = self._ends.get(run)
        if ending is not None and ending.end.outcome != "cancelled":
            await asyncio.shield(ending.told)

    def open_parts(self) -> list[MessagePart]:
        """Return every part that is growing, in full."""
        return self._active.open_parts()

    def open_messages(self, session: SessionId) -> list[Message]:
        message = turn.open_message() if (turn := self.turn_of(session)) else None
        return [] if message is None else [message]

    def turn_of(self, session: SessionId) -> Turn | None:
        """Return the active turn of a session."""
        return self._active.turn_of(session)

    # The one way in.

    def dispatch(self, session: SessionId, event: LaneEvent) -> Refuse | None:
        """Synchronous: decide, remember, stop at once what must stop; everything else goes to the outbox."""
        was_busy = bool(self._lanes)
        lane, effects = transition(self.lane(session), event)
        if lane.head is not None:
            self._lanes[session] = lane
        else:
            self._lanes.pop(session, None)
        refusal: Refuse | None = None
        for effect in effects:
            if isinstance(effect, Interrupt):
                self._interrupt(session, effect.run)
            elif isinstance(effect, Park):
                self._park(session, effect.run)
            elif isinstance(effect, Refuse):
                refusal = effect
            else:
                self._post(session, effect)
        self._update_hold(session)
        self._wake_if_quiet(session)
        if was_busy is not bool(self._lanes):
            self._on_busy(not was_busy)
        return refusal

    def boundary(self, session: SessionId, run: RunId) -> asyncio.Future[None] | None:
        """The run is about to ask its model. It waits for what this answers: the folds being stored."""
        self.dispatch(session, StepBoundary(run))
        return self._folds.get(run)

    async def wait_until_idle(self, session: SessionId) -> None:
        """Wait until nothing of the session runs, waits or is being written."""
        while members(self.lane(session)) or session in self._outboxes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet.setdefault(session, []).append(waiter)
            await waiter

    async def close(self) -> bool:
        """Refuse, tell every lane, end what is active, write it all down. True if nothing was left over."""
        self.closing = True
        for session in tuple(self._lanes):
            self.dispatch(session, Shutdown())
        self._titler.stop()
        settings = self.run_context.settings
        quiet = [self.wait_until_idle(session) for session in {*self._lanes, *self._outboxes}]
        try:
            async with asyncio.timeout(settings.grace + settings.margin + settings.closing):
                await asyncio.gather(*quiet)
                await self._titler.drain()
                await self._writing.drain()
        except TimeoutError:
            return False
        finally:
            self._tasks.cancel_all()
        return True

    # Tasks.

    def _spawn(self, session: SessionId, run: RunId) -> None:
        task = self._tasks.start(self._live(session, run), name=f"run {run}", done=partial(self._over, session, run))
        self._active[run] = RunState(task)

    async def _live(self, session: SessionId, run: RunId) -> None:
        self.dispatch(session, Enter(run))
        # A cancellation that came before this first step is delivered here, before anything is done.
        await asyncio.sleep(0)
        briefing = await self.run_context.ledger.briefing(self.record.id, run)
        if briefing is None:
            raise UnknownRun
        turn = self._active[run].turn = self._turn_for(briefing.record)
        if turn.run.parent_run_id:
            await self._share_cost(turn, briefing.session)
        if turn.run.kind == "summary":
            await drive_summary(turn, self.run_context, briefing)
            return
        self._titler.consider(turn, await opening(turn, self.run_context, briefing))
        await drive(turn, self.run_context, briefing, partial(self.boundary, session, run))

    async def _share_cost(self, turn: Turn, session: Session) -> None:
        """A sub-agent's responses are paid for by the sessions above it, and count for the limits of the run above."""
        sender = self._active.get(turn.run.parent_run_id)
        turn.sender = None if sender is None else sender.turn
        payers = [session.id]
        above: Session | None = session
        while above is not None and is_helper_session(above.id) and above.parent_session_id:
            payers.append(above.parent_session_id)
            above = await self.run_context.ledger.session(self.record.id, above.parent_session_id)
        turn.payers = tuple(payers)

    def _over(self, session: SessionId, run: RunId, task: asyncio.Task[None]) -> None:
        """The task's done callback: a task cancelled before its first step never reaches a `finally`."""
        error = None if task.cancelled() else task.exception()
        state = self._active.get(run)
        if state is not None and state.task is task and not state.is_over:
            self._finish(session, run, error, failed=task.cancelled() or error is not None)

    def _finish(self, session: SessionId, run: RunId, error: BaseException | None, *, failed: bool) -> None:
        state = self._active[run]
        state.is_over = True
        state.error = error
        if state.deadline is not None:
            state.deadline.cancel()
        self.dispatch(session, Finish(run, "failed" if failed else "completed"))

    def _interrupt(self, session: SessionId, run: RunId) -> None:
        state = self._active[run]
        state.task.cancel()
        settings = self.run_context.settings
        patience = settings.grace + settings.margin
        state.deadline = asyncio.get_running_loop().call_later(patience, self._give_up, session, run)

    def _give_up(self, session: SessionId, run: RunId) -> None:
        """The task does not stop: end the run without it. Its turn is closed then; nothing of it counts any more."""
        self._active[run].task.cancel()
        self._finish(session, run, None, failed=True)

    def _park(self, session: SessionId, run: RunId) -> None:
        if (state := self._active.pop(run, None)) is not None:
            state.task.cancel()
        outbox = self._outboxes.get(session)
        if outbox is not None and Spawn(run) in outbox:
            outbox.remove(Spawn(run))

    # The outbox.

    def _post(self, session: SessionId, effect: Effect) -> None:
        if isinstance(effect, Fold):
            waiter = self._folds[effect.host] = asyncio.get_running_loop().create_future()
            # A run that fails before it waits for its folds fails for a reason of its own.
            waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif isinstance(effect, End):
            self._ends[effect.run] = PendingEnd(session, effect)
            if self._is_cancelling(session):
                self.hold_for_ends(session)
        if session in self._outboxes:
            self._outboxes[session].append(effect)
            return
        self._outboxes[session] = deque([effect])
        self._writing.start(self._carry_out(session), name=f"outbox {session}")

    async def _carry_out(self, session: SessionId) -> None:
        outbox = self._outboxes[session]
        while outbox:
            effect = outbox.popleft()
            if isinstance(effect, Spawn):
                self._spawn(session, effect.run)
            elif isinstance(effect, Fold):
                await self._fold(effect)
            elif isinstance(effect, End):
                # The ends that one cancel causes are stored together, if the head is quick to stop.
                if self._is_cancelling(session) and (hold := self._holds.get(session)) is not None:
                    await hold.head_finished
                await self._end(session, [effect, *leading_ends(outbox)])
        del self._outboxes[session]
        self._wake_if_quiet(session)

    def _wake_if_quiet(self, session: SessionId) -> None:
        if session in self._quiet and session not in self._outboxes and not members(self.lane(session)):
            for waiter in self._quiet.pop(session):
                if not waiter.done():
                    waiter.set_result(None)

    async def _fold(self, fold: Fold) -> None:
        waiter = self._folds[fold.host]
        turn = self._active[fold.host].turn
        assert turn is not None, "only a run that has begun reaches a step boundary"
        try:
            operations: list[Operation] = []
            prompts: list[Message] = []
            for run in fold.runs:
                prompt = await self._prompt_message(run, turn.author)
                prompts.append(prompt)
                operations += [FoldRun(run, fold.host, turn.now_ms()), PutMessage(prompt)]
            turn.add(prompts)
            await turn.record(*operations, sync=True)
        except Exception as error:
            # Whatever it is, it is the end of the host, and never of the outbox.
            answer_fold(waiter, error)
        else:
            answer_fold(waiter, None)
        del self._folds[fold.host]

    async def _end(self, session: SessionId, ends: list[End]) -> None:
        """Settle, store the end, tell it: again and again until it is stored, for an end is never lost."""
        announce = partial(announce_ends, session, self.outlet, self.run_context.hooks)
        wait = self.run_context.settings.retry_first
        make = self._end_operations
        while True:
            try:
                operations = await make(ends)
                for end in ends:
                    self._ends[end.run].is_put = True
                if make == self._bare_ends:
                    self._put_costs(ends)
                # Without an await before `put`, so that the recorder finds the hold done and the ends in its batch.
                self._update_hold(session)
                answer = await self.recorder.put(*operations, announce=announce)
                if isinstance(answer, Refusal) and make == self._end_operations:
                    raise Conflict(f"The store refused an end: {answer.reason}.")
            except OwnerChanged:
                break
            except StorageError as error:
                self._tell_failure(error)
            except Exception as error:
                # Settling is beyond us: the run still ends, if with nothing but its end.
                make = self._bare_ends
                context = {"message": "an end could not be settled", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            else:
                self.retries.succeed()
                break
            await self.retries.pause(wait)
            wait = min(2 * wait, self.run_context.settings.retry_longest)
        for end in ends:
            self._active.pop(end.run, None)
            self._ends.pop(end.run).told.set_result(None)

    async def _end_operations(self, ends: list[End]) -> list[Operation]:
        operations: list[Operation] = []
        for end in ends:
            if end.waited:
                operations.append(end_of_waiting(end, self.clock.now_ms()))
            elif end.host is None:
                turn = await self._settling(end)
                together = [other for other in ends if end.run in (other.run, other.host)]
                ending = describe(end.outcome, self._active[end.run].error)
                operations += end_of_turn(turn, together, ending, self.clock.now_ms())
        # The ends get the last numbers: everything else is told before the first of them.
        return sorted(operations, key=lambda operation: isinstance(operation, EndRun))

    async def _bare_ends(self, ends: list[End]) -> list[Operation]:
        states = [self._active.get(end.host or end.run) for end in ends]
        errors = [None if state is None else state.error for state in states]
        return [bare_end(end, error, self.clock.now_ms()) for end, error in zip(ends, errors, strict=True)]

    def _put_costs(self, ends: list[End]) -> None:
        """Store the cost that settling would have stored. If it is refused, the end that follows is stored all the
        same; if that cannot be stored, this is not stored either, for both are in one batch.
        """
        for end in ends:
            state = self._active.get(end.run)
            if state is not None and state.turn is not None and (costs := state.turn.with_cost(())):
                self.recorder.put(*costs)

    async def _settling(self, end: End) -> Turn:
        """The turn to be settled, complete: also of a run that was stopped before it had one."""
        state = self._active[end.run]
        if end.outcome != "completed":
            await self.run_context.clean_up(end.run)
        if state.turn is None:
            state.turn = self._turn_for(await self._load(end.run))
        if state.turn.is_unsure:
            # What the task had put on its way is answered before this is.
            await self.recorder.put(sync=False)
        if not state.turn.messages and state.turn.run.kind == "prompt":
            state.turn.expect(await self._prompt_message(end.run, state.turn.author))
        return state.turn

    @property
    def storage_fails(self) -> bool:
        """Whether an end could not be stored, and is tried again."""
        return self.retries.has_failed

    def _tell_failure(self, error: StorageError) -> None:
        is_first = not self.retries.has_failed
        self.retries.error = error
        if is_first:
            self.outlet.publish_live(AgentEvent(Change("created", AgentNotice("error", error=str(error)))))

    # Reading.

    def _turn_for(self, record: RunRecord) -> Turn:
        turn = Turn(
            record.run,
            recorder=self.recorder,
            outlet=self.outlet,
            clock=self.clock,
            new_id=self.new_id,
            pace=self.run_context.settings.pace,
        )
        turn.brief = record.brief
        return turn

    async def _load(self, run: RunId) -> RunRecord:
        record = await self.run_context.ledger.run(self.record.id, run)
        if record is None:
            raise UnknownRun
        return record

    async def _prompt_message(self, run: RunId, author: MessageFactory) -> Message:
        return prompt_message(await self._load(run), author)
