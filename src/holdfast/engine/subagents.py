"""Helpers: runs that a tool starts in a session of its own, below the one it works for.

A helper belongs to the run that sent it: it is cancelled with it, ends before it goes on, and is not taken up
again after a crash. What it may use and how it is told to work depends on its subagent_type.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from holdfast.domain.errors import HoldfastError, StorageError, ToolError
from holdfast.domain.ids import RunId, SessionId, helper_session
from holdfast.domain.messages import text_of
from holdfast.domain.runs import Prompt, Run
from holdfast.domain.tools import SubagentTask, ToolContext
from holdfast.engine.engine import Engine
from holdfast.engine.inputs import Inputs
from holdfast.engine.run_end import last_answer
from holdfast.engine.sessions import Sessions
from holdfast.engine.settings import EngineSettings
from holdfast.tasks import TaskOwner

__all__ = ["SubagentRunner"]


class _SubagentLimits:
    """Who sent whom: how deep helpers stand below a run, and how many of them there are."""

    def __init__(self) -> None:
        self._above: dict[RunId, tuple[RunId, ...]] = {}
        """Of each helper under way the runs above it, the first one first."""

    def take(self, run: RunId, sender: RunId, settings: EngineSettings) -> None:
        """Raises `ToolError` if there is no place."""
        above = (*self._above.get(sender, ()), sender)
        if len(above) > settings.helper_depth:
            raise ToolError("A helper this far down may send no helpers of its own. Do it yourself.")
        if sum(others[0] == above[0] for others in self._above.values()) >= settings.helpers:
            raise ToolError(
                f"There are {settings.helpers} helpers under way, as many as there may be. Wait, or do it yourself."
            )
        self._above[run] = above

    def leave(self, run: RunId) -> None:
        self._above.pop(run, None)


class SubagentRunner:
    """Sends helpers out and waits for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inputs = Inputs(engine)
        self._sessions = Sessions(engine, self._inputs)
        self._tasks = TaskOwner()
        self._places = _SubagentLimits()

    async def run(self, context: ToolContext, task: SubagentTask) -> str:
        """The helper's last words. Raises `ToolError` if it has none to say."""
        subagent_type = self._engine.run_context.subagents.find(task.kind)
        if subagent_type is None:
            raise ToolError("There are no helpers of this kind any more. Do it yourself.")
        run = RunId(self._engine.new_id())
        self._places.take(run, context.run_id, self._engine.run_context.settings)
        self._engine.run_context.subagents.assign(run, subagent_type)
        try:
            words = await self._send(context, task, run)
            _, trouble = await self._engine.run_context.model(subagent_type.model)
            return f"{words}\n\n({trouble})" if trouble else words
        finally:
            self._engine.run_context.subagents.release(run)
            self._places.leave(run)

    async def _send(self, context: ToolContext, task: SubagentTask, run: RunId) -> str:
        name = helper_session(context.message_id, context.tool_call_id)
        session = await self._sessions.create(task.title, context.session_id, name)
        turn = self._engine.turn_of(context.session_id)
        prompt = Prompt(
            session.id,
            task.prompt,
            run_id=run,
            interactive=False,
            parent_run_id=context.run_id,
            yolo=turn is not None and turn.run.yolo,
            require_model=turn is not None and turn.run.require_model,
        )
        finished = await self._finished(prompt)
        return await self._words(finished)

    async def _finished(self, prompt: Prompt) -> Run:
        """The helper's run, at its end: by itself, or because the one that sent it was stopped."""
        submitted = self._tasks.start(self._inputs.submit(prompt), name=f"helper {prompt.run_id}", done=_seen)
        try:
            await asyncio.shield(submitted)
            await self._engine.wait_until_idle(prompt.session_id)
        except asyncio.CancelledError:
            # Not in the sender's task, which may be given up before the helper has ended.
            work = self._withdrawn(submitted, prompt.session_id)
            await asyncio.shield(self._tasks.start(work, name=f"withdraw {prompt.run_id}"))
            raise
        record = await self._engine.run_context.ledger.run(self._engine.record.id, prompt.run_id)
        if record is None:
            raise ToolError("The helper was lost: its run is not stored.")
        return record.run

    async def _withdrawn(self, submitted: Awaitable[Run], session: SessionId) -> None:
        with suppress(HoldfastError):
            await submitted
            # It stops even if that cannot be stored.
            with suppress(StorageError):
                await self._inputs.cancel(session)
            await self._engine.wait_until_idle(session)

    async def _words(self, run: Run) -> str:
        if run.outcome != "completed":
            raise ToolError(f"The helper did not finish: {run.error or run.outcome}.")
        messages = await self._engine.run_context.ledger.messages_of_run(self._engine.record.id, run.run_id)
        answer = last_answer(messages, set())
        words = text_of(answer).strip() if answer else ""
        if not words:
            raise ToolError("The helper finished without a word. Ask again, more precisely.")
        return words


def _seen(submitted: asyncio.Task[Run]) -> None:
    """Why a helper could not be sent is told to its sender, or to whoever withdraws it."""
    if not submitted.cancelled():
        submitted.exception()
