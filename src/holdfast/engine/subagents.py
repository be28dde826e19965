"""Sub-agents: runs that a tool starts in a child session.

A sub-agent's run belongs to the run that started it: it is cancelled with it, the tool call waits for its end, and it
is not resumed after a crash. Its tools, model and system prompt depend on its type.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from holdfast.domain.errors import HoldfastError, StorageError, ToolError
from holdfast.domain.ids import RunId, SessionId, subagent_session
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
    """Enforces the maximum depth and number of sub-agents below a run."""

    def __init__(self) -> None:
        self._above: dict[RunId, tuple[RunId, ...]] = {}
        """For each running sub-agent the runs above it, the top-level run first."""

    def add(self, run: RunId, parent: RunId, settings: EngineSettings) -> None:
        """Count a sub-agent. Raises `ToolError` if a limit is reached."""
        above = (*self._above.get(parent, ()), parent)
        if len(above) > settings.subagent_depth:
            raise ToolError("The maximum depth of sub-agents is reached. Do it yourself.")
        if sum(others[0] == above[0] for others in self._above.values()) >= settings.max_subagents:
            raise ToolError(
                f"{settings.max_subagents} sub-agents are running, which is the maximum. Wait, or do it yourself."
            )
        self._above[run] = above

    def remove(self, run: RunId) -> None:
        """Stop counting a sub-agent that has ended."""
        self._above.pop(run, None)


class SubagentRunner:
    """Starts sub-agents and waits for their ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inputs = Inputs(engine)
        self._sessions = Sessions(engine, self._inputs)
        self._tasks = TaskOwner()
        self._limits = _SubagentLimits()

    async def run(self, context: ToolContext, task: SubagentTask) -> str:
        """Run a sub-agent and return its final text. Raises `ToolError` if it fails or returns no text."""
        subagent_type = self._engine.run_context.subagents.find(task.kind)
        if subagent_type is None:
            raise ToolError("There is no sub-agent of this kind. Do it yourself.")
        run = RunId(self._engine.new_id())
        self._limits.add(run, context.run_id, self._engine.run_context.settings)
        self._engine.run_context.subagents.assign(run, subagent_type)
        try:
            text = await self._run(context, task, run)
            _, trouble = await self._engine.run_context.model(subagent_type.model)
            return f"{text}\n\n({trouble})" if trouble else text
        finally:
            self._engine.run_context.subagents.release(run)
            self._limits.remove(run)

    async def _run(self, context: ToolContext, task: SubagentTask, run: RunId) -> str:
        name = subagent_session(context.message_id, context.tool_call_id)
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
        return await self._final_text(await self._wait_for_end(prompt))

    async def _wait_for_end(self, prompt: Prompt) -> Run:
        """Submit the prompt and return the run at its end. If the caller is cancelled, cancel the run first."""
        submitted = self._tasks.start(
            self._inputs.submit(prompt), name=f"sub-agent {prompt.run_id}", done=_retrieve_exception
        )
        try:
            await asyncio.shield(submitted)
            await self._engine.wait_until_idle(prompt.session_id)
        except asyncio.CancelledError:
            # In a task of its own: the parent's task may be abandoned before the sub-agent has ended.
            work = self._cancel(submitted, prompt.session_id)
            await asyncio.shield(self._tasks.start(work, name=f"cancel sub-agent {prompt.run_id}"))
            raise
        record = await self._engine.run_context.ledger.run(self._engine.record.id, prompt.run_id)
        if record is None:
            raise ToolError("The sub-agent's run is not stored.")
        return record.run

    async def _cancel(self, submitted: Awaitable[Run], session: SessionId) -> None:
        with suppress(HoldfastError):
            await submitted
            # The run is cancelled even if the cancel cannot be stored.
            with suppress(StorageError):
                await self._inputs.cancel(session)
            await self._engine.wait_until_idle(session)

    async def _final_text(self, run: Run) -> str:
        if run.outcome != "completed":
            raise ToolError(f"The sub-agent did not finish: {run.error or run.outcome}.")
        messages = await self._engine.run_context.ledger.messages_of_run(self._engine.record.id, run.run_id)
        answer = last_answer(messages, set())
        text = text_of(answer).strip() if answer else ""
        if not text:
            raise ToolError("The sub-agent finished without a text. Try again with a more precise prompt.")
        return text


def _retrieve_exception(submitted: asyncio.Task[Run]) -> None:
    """Mark the exception as retrieved: it is raised by the await in `_wait_for_end` or `_cancel`."""
    if not submitted.cancelled():
        submitted.exception()
