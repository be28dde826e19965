"""Driver of the lifecycle state machine: executes the effects that `run_lifecycle` returns and decides nothing itself.

One engine serves one workspace. `dispatch` is synchronous: it calls `transition`, replaces the lane, cancels tasks for
`Interrupt` and `Park` at once, and puts all other effects into the outbox of the session. An outbox is executed in
order by a task of its own, outside of any run's task, so that no cancellation of a run reaches the writes that end it.
A `Spawn` that no other effect precedes needs no outbox. Inputs (prompts, cancels, clears) are dispatched in the order
of their numbers by the recorder.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from holdfast.domain.errors import Conflict, OwnerChanged, StorageError, UnknownRun
from holdfast.domain.events import AgentEvent, AgentNotice, Change, MessagePart
from holdfast.domain.ids import RunId, SessionId, is_subagent_session
from holdfast.domain.messages import Message
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Answer, EndRun, FoldRun, Operation, PutMessage, Refusal, RunRecord
from holdfast.engine.active_runs import ActiveRuns, RunState
from holdfast.engine.agent_loop import run_summary_turn, run_turn
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.model_wait import ModelWait
from holdfast.engine.pause import Pause
from holdfast.engine.ports import Clock, NewId
from holdfast.engine.prompt_preparation import opening_message, prompt_message
from holdfast.engine.recorder import Recorder
from holdfast.engine.run_context import RunContext, StartSubagent
from holdfast.engine.run_end import (
    EndHold,
    EndRetries,
    PendingEnd,
    announce_ends,
    describe_end,
    end_turn_operations,
    end_waiting_run,
    leading_ends,
    minimal_end,
)
from holdfast.engine.run_lifecycle import (
    CancelRun,
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
from holdfast.engine.titles import TitleGenerator
from holdfast.engine.turn import Turn
from holdfast.tasks import TaskOwner

__all__ = ["Engine", "resolve_fold"]


def resolve_fold(waiter: asyncio.Future[None], error: Exception | None) -> None:
    """Complete the future of a fold, unless its run was cancelled and no longer waits for it."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


class Engine:
    """Lanes, tasks and outboxes of one workspace. Prompts and cancels enter through `Inputs`."""

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
        self._titler = TitleGenerator(run_context, recorder, clock)
        self._lanes: dict[SessionId, Lane] = {}
        self._active = ActiveRuns() if active_runs is None else active_runs
        self._outboxes: dict[SessionId, deque[Effect]] = {}
        self._ends: dict[RunId, PendingEnd] = {}
        self._holds: dict[SessionId, EndHold] = {}
        self._folds: dict[RunId, asyncio.Future[None]] = {}
        self._idle_waiters: dict[SessionId, list[asyncio.Future[None]]] = {}
        self._pause, self._model_wait = Pause(), ModelWait(self._load, self._spawn)
        self._must_cancel: set[RunId] = set()
        """Runs without a stored end whose cancel another node has accepted."""
        if subagents is not None:
            run_context = msgspec.structs.replace(run_context, start_subagent=subagents(self))
        self.run_context = run_context

    # State.

    def lane(self, session: SessionId) -> Lane:
        """Return the lane of a session."""
        return self._lanes.get(session) or Lane(closing=self.closing)

    def is_busy(self, session: SessionId | None = None) -> bool:
        """Return whether the session, or any session, has a head."""
        return bool(self._lanes) if session is None else self.lane(session).head is not None

    def covered_by_cancel(self, session: SessionId) -> tuple[RunId, ...]:
        """Return the runs that a cancel stops now and those that an earlier one stopped and whose end is not stored
        yet.
        """
        here = (ending for ending in self._ends.values() if ending.session == session)
        ending = (item.end.run for item in here if item.end.outcome == "cancelled")
        return (*ending, *members(self.lane(session)))

    def is_cancelled(self, session: SessionId, run: RunId) -> bool:
        """Return whether the run is being stopped by a cancel, or was, and its end is not stored yet."""
        if (ending := self._ends.get(run)) is not None:
            return ending.end.outcome == "cancelled"
        lane = self.lane(session)
        head = lane.head
        return head is not None and head.cause == "cancel" and run in (head.run, *lane.folded)

    def is_covered(self, session: SessionId, run: RunId) -> bool:
        """Return whether `covered_by_cancel` contains the run."""
        if (ending := self._ends.get(run)) is not None:
            return ending.end.outcome == "cancelled"
        return run in members(self.lane(session))

    def hold_for_ends(self, session: SessionId) -> asyncio.Future[None] | None:
        """Return a future that is done when the ends that were decided in this session are put to the recorder, or
        after a moment if they take longer. None if there are none.
        """
        if not self._is_cancelling(session) and not self._has_unput_ends(session):
            return None
        # A hold whose time is over has no effect any more; a later cancel needs one of its own.
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
        """Wait until the end of a run is stored that has finished without a cancel."""
        ending = self._ends.get(run)
        if ending is not None and ending.end.outcome != "cancelled":
            await asyncio.shield(ending.stored)

    def open_parts(self) -> list[MessagePart]:
        """Return every part that is growing, in full."""
        return self._active.open_parts()

    def open_messages(self, session: SessionId) -> list[Message]:
        """Return the messages of a session that are being streamed."""
        message = turn.open_message() if (turn := self.turn_of(session)) else None
        return [] if message is None else [message]

    def turn_of(self, session: SessionId) -> Turn | None:
        """Return the active turn of a session."""
        return self._active.turn_of(session)

    # Events.

    def dispatch(self, session: SessionId, event: LaneEvent) -> Refuse | None:
        """Apply an event to a lane and start its effects. Return the refusal, if the event is refused."""
        was_busy = bool(self._lanes)
        lane, effects = transition(self.lane(session), event)
        # Only lanes with a head are kept, so their number is that of the busy sessions.
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
        for held_back in (self._pause, self._model_wait):
            if (released := held_back.release(session, lane)) is not None:
                self._spawn(session, released)
        # After the effects: they may have put the ends that a cancel's write waits for.
        self._update_hold(session)
        self._wake_if_idle(session)
        if was_busy is not bool(self._lanes):
            self._on_busy(not was_busy)
        return refusal

    def cancel_for_node(self, session: SessionId, run: RunId) -> None:
        """Apply a cancel that another node has stored. It covers the run whatever was decided here meanwhile: an end
        or a fold that is not stored yet is decided again.
        """
        if self.closing:
            self.stop_requests.add(run)
        if run in self._ends or run in members(self.lane(session)):
            self._must_cancel.add(run)
        if run in self._ends:
            self._cancel_ends([run])
        else:
            self.dispatch(session, CancelRun(run, binding=True))

    def _cancel_ends(self, hosts: Sequence[RunId]) -> None:
        """Change the ends of these runs and of the runs folded into them to `cancelled`."""
        for run, ending in self._ends.items():
            if (ending.end.host or run) in hosts and ending.end.outcome != "interrupted":
                ending.end = msgspec.structs.replace(ending.end, outcome="cancelled")

    def boundary(self, session: SessionId, run: RunId) -> asyncio.Future[None] | None:
        """Dispatch the step boundary of a run. If prompts are folded, return a future that is done when they are
        stored.
        """
        self.dispatch(session, StepBoundary(run))
        return self._folds.get(run)

    async def wait_until_idle(self, session: SessionId) -> None:
        """Wait until no run of the session is in its lane or being stored."""
        while members(self.lane(session)) or session in self._outboxes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.setdefault(session, []).append(waiter)
            await waiter

    async def close(self) -> bool:
        """Refuse new prompts, shut every lane down, and store the ends. Return False if that took too long."""
        self.closing = True
        for session in tuple(self._lanes):
            self.dispatch(session, Shutdown())
        self._titler.stop()
        settings = self.run_context.settings
        # A session may have left its lane while its end is still in the outbox.
        quiet = [self.wait_until_idle(session) for session in {*self._lanes, *self._outboxes}]
        try:
            async with asyncio.timeout(settings.grace + settings.margin + settings.closing):
                await asyncio.gather(*quiet)
                await self._titler.drain()
                await self._writing.drain()
        except TimeoutError:
            return False
        finally:
            self._model_wait.cancel_all()
            self._tasks.cancel_all()
        return True

    async def pause(self) -> None:
        """Start no more runs, except those of sub-agents, and return when the active ones have ended. Prompts are
        accepted; they stay for the next owner of the workspace. There is no way back.
        """
        quiet = self._pause.begin()
        self._note_quiet()
        await asyncio.shield(quiet)

    @property
    def is_quiet(self) -> bool:
        """Whether no run is active and every end is stored. A run leaves its lane before its end is stored."""
        return not self._active and not self._outboxes

    def _note_quiet(self) -> None:
        self._pause.note(is_quiet=self.is_quiet)

    async def abandon(self) -> None:
        """Stop all tasks. Nothing is stored: another server owns the workspace and ends the runs."""
        self.closing = True
        for state in self._active.values():
            state.finish(None)
        self._titler.stop()
        self._model_wait.cancel_all()
        self._tasks.cancel_all()
        self._writing.cancel_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.run_context.settings.grace + self.run_context.settings.margin):
                await self._tasks.drain()
                await self._writing.drain()
        self._active.clear()
        self._lanes.clear()

    # Tasks.

    def _spawn(self, session: SessionId, run: RunId) -> None:
        lane = self.lane(session)
        held = session, run, lane
        if self._pause.holds_back(*held) or self._model_wait.holds_back(self.run_context, *held):
            return
        task = self._tasks.start(
            self._run_task(session, run), name=f"run {run}", done=partial(self._on_task_done, session, run)
        )
        self._active[run] = RunState(task)

    async def _run_task(self, session: SessionId, run: RunId) -> None:
        self.dispatch(session, Enter(run))
        # If `Enter` interrupted the task, the cancellation is raised here, before the run has any effect.
        await asyncio.sleep(0)
        briefing = await self.run_context.ledger.briefing(self.record.id, run)
        if briefing is None:
            raise UnknownRun
        turn = self._active[run].turn = self._turn_for(briefing.record)
        if turn.run.parent_run_id:
            await self._share_cost(turn, briefing.session)
        if turn.run.kind == "summary":
            await run_summary_turn(turn, self.run_context, briefing)
            return
        prompt = await opening_message(turn, self.run_context, briefing)
        self._titler.generate_for_first_prompt(turn, prompt, briefing)
        await run_turn(turn, self.run_context, briefing, partial(self.boundary, session, run))

    async def _share_cost(self, turn: Turn, session: Session) -> None:
        """A sub-agent's responses are paid for by the sessions above it, and count for the limits of the run above."""
        parent = self._active.get(turn.run.parent_run_id)
        turn.parent = None if parent is None else parent.turn
        payers = [session.id]
        above: Session | None = session
        while above is not None and is_subagent_session(above.id) and above.parent_session_id:
            payers.append(above.parent_session_id)
            above = await self.run_context.ledger.session(self.record.id, above.parent_session_id)
        turn.charged_sessions = tuple(payers)

    def _on_task_done(self, session: SessionId, run: RunId, task: asyncio.Task[None]) -> None:
        """Dispatch the finish. A done callback, because a task cancelled before its first step never enters its
        body.
        """
        error = None if task.cancelled() else task.exception()
        state = self._active.get(run)
        if state is not None and state.task is task and not state.is_over:
            self._finish(session, run, error, failed=task.cancelled() or error is not None)

    def _finish(self, session: SessionId, run: RunId, error: BaseException | None, *, failed: bool) -> None:
        self._active[run].finish(error)
        self.dispatch(session, Finish(run, "failed" if failed else "completed"))

    def _interrupt(self, session: SessionId, run: RunId) -> None:
        state = self._active[run]
        state.task.cancel()
        settings = self.run_context.settings
        timeout = settings.grace + settings.margin
        # A tool that ignores its cancellation must not keep the session busy.
        state.deadline = asyncio.get_running_loop().call_later(timeout, self._abandon, session, run)

    def _abandon(self, session: SessionId, run: RunId) -> None:
        """End a run whose task does not stop. Its turn is closed, so the task has no further effect on the run."""
        self._active[run].task.cancel()
        self._finish(session, run, None, failed=True)

    def _park(self, session: SessionId, run: RunId) -> None:
        if (state := self._active.pop(run, None)) is not None:
            state.task.cancel()
        outbox = self._outboxes.get(session)
        # The run may be parked before its task was started.
        if outbox is not None and Spawn(run) in outbox:
            outbox.remove(Spawn(run))

    # The outbox.

    def _post(self, session: SessionId, effect: Effect) -> None:
        if isinstance(effect, Fold):
            waiter = self._folds[effect.host] = asyncio.get_running_loop().create_future()
            # Mark the exception as retrieved: the host may fail for another reason before it awaits the folds.
            waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif isinstance(effect, End):
            self._ends[effect.run] = PendingEnd(session, effect)
            if self._is_cancelling(session):
                self.hold_for_ends(session)
        if session in self._outboxes:
            self._outboxes[session].append(effect)
            return
        if isinstance(effect, Spawn):
            # No effect precedes it, and it writes nothing.
            self._spawn(session, effect.run)
            return
        self._outboxes[session] = deque([effect])
        self._writing.start(self._execute_effects(session), name=f"outbox {session}")

    async def _execute_effects(self, session: SessionId) -> None:
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
        self._wake_if_idle(session)
        self._note_quiet()

    def _wake_if_idle(self, session: SessionId) -> None:
        if session in self._idle_waiters and session not in self._outboxes and not members(self.lane(session)):
            for waiter in self._idle_waiters.pop(session):
                if not waiter.done():
                    waiter.set_result(None)

    async def _fold(self, fold: Fold) -> None:
        waiter = self._folds[fold.host]
        turn = self._active[fold.host].turn
        assert turn is not None, "only a run that has begun reaches a step boundary"
        try:
            while not await self._store_fold(turn, [run for run in fold.runs if run not in self._must_cancel]):
                pass
        except Exception as error:
            # Any error fails the host, never the task of the outbox.
            resolve_fold(waiter, error)
        else:
            resolve_fold(waiter, None)
        del self._folds[fold.host]

    async def _store_fold(self, turn: Turn, runs: Sequence[RunId]) -> bool:
        """Store the fold of these runs. Return False if another node has cancelled one of them before."""
        operations: list[Operation] = []
        prompts: list[Message] = []
        for run in runs:
            prompt = await self._prompt_message(run, turn.factory)
            prompts.append(prompt)
            operations += [FoldRun(run, turn.run.run_id, turn.now_ms()), PutMessage(prompt)]
        if not operations:
            return True
        turn.add(prompts)
        try:
            await turn.record(*operations, sync=True)
        except Conflict:
            if self._must_cancel.isdisjoint(runs):
                raise
            turn.remove(prompts)
            return False
        return True

    async def _end(self, session: SessionId, ends: list[End]) -> None:
        """Repair the conversation, store the end and publish it. Retried until it is stored: an end is never lost."""
        wait = self.run_context.settings.retry_first
        make = self._end_operations
        while True:
            # A cancel of another node may have changed them.
            ends = [self._ends[end.run].end for end in ends]
            try:
                operations = await make(ends)
                is_minimal = make == self._minimal_end_operations
                if is_minimal:
                    self._put_costs(ends)
                if await self._put_ends(session, ends, operations, is_minimal=is_minimal) == Refusal("must_cancel"):
                    self._cancel_ends([end.host or end.run for end in ends])
                    continue
            except OwnerChanged:
                break
            except StorageError as error:
                self._report_storage_failure(error)
            except Exception as error:
                # The repair failed because of a bug: store the end without it.
                make = self._minimal_end_operations
                context = {"message": "the conversation of an ended run could not be repaired", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            else:
                self.retries.succeed()
                break
            await self.retries.pause(wait)
            wait = min(2 * wait, self.run_context.settings.retry_longest)
        for end in ends:
            self._must_cancel.discard(end.run)
            self._active.pop(end.run, None)
            self._ends.pop(end.run).stored.set_result(None)
        self._note_quiet()

    async def _put_ends(
        self, session: SessionId, ends: Sequence[End], operations: Sequence[Operation], *, is_minimal: bool
    ) -> Answer:
        """Store the ends. Raises `Conflict` if they are refused, unless another node has cancelled a run or the ends
        are minimal.
        """
        for end in ends:
            self._ends[end.run].is_put = True
        # Without an await before `put`, so that the recorder finds the hold done and the ends in its batch.
        self._update_hold(session)
        announce = partial(announce_ends, session, self.outlet, self.run_context.hooks)
        answer = await self.recorder.put(*operations, announce=announce)
        if isinstance(answer, Refusal) and answer.reason != "must_cancel" and not is_minimal:
            raise Conflict(f"The store refused an end: {answer.reason}.")
        return answer

    async def _end_operations(self, ends: list[End]) -> list[Operation]:
        operations: list[Operation] = []
        for end in ends:
            if end.waited:
                operations.append(end_waiting_run(end, self.clock.now_ms()))
            elif end.host is None:
                turn = await self._turn_to_end(end)
                together = [other for other in ends if end.run in (other.run, other.host)]
                ending = describe_end(end.outcome, self._active[end.run].error)
                operations += end_turn_operations(turn, together, ending, self.clock.now_ms())
        # The ends get the highest numbers: all other events are published before them.
        return sorted(operations, key=lambda operation: isinstance(operation, EndRun))

    async def _minimal_end_operations(self, ends: list[End]) -> list[Operation]:
        states = [self._active.get(end.host or end.run) for end in ends]
        errors = [None if state is None else state.error for state in states]
        return [minimal_end(end, error, self.clock.now_ms()) for end, error in zip(ends, errors, strict=True)]

    def _put_costs(self, ends: list[End]) -> None:
        """Store the costs that the full end would have stored, in a write of their own: if it is refused, the end is
        stored nevertheless. Both are in one batch, so neither is stored without the other.
        """
        for end in ends:
            state = self._active.get(end.run)
            if state is not None and state.turn is not None and (costs := state.turn.with_cost(())):
                self.recorder.put(*costs)

    async def _turn_to_end(self, end: End) -> Turn:
        """Return the turn to end, with its prompt, even if the run was stopped before its task created one."""
        state = self._active[end.run]
        if end.outcome != "completed":
            await self.run_context.clean_up(end.run)
        if state.turn is None:
            state.turn = self._turn_for(await self._load(end.run))
        if state.turn.has_pending_write:
            # An empty write completes after all writes of the task: wait for their answers.
            await self.recorder.put(sync=False)
        if not state.turn.messages and state.turn.run.kind == "prompt":
            state.turn.add_prompt(await self._prompt_message(end.run, state.turn.factory))
        return state.turn

    @property
    def storage_fails(self) -> bool:
        """Whether an end could not be stored and is being retried."""
        return self.retries.has_failed

    def _report_storage_failure(self, error: StorageError) -> None:
        is_first = not self.retries.has_failed
        self.retries.error = error
        if is_first:
            self.outlet.publish_live(AgentEvent(Change("created", AgentNotice("error", error=str(error)))))

    # Turns and run records.

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
