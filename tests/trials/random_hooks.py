"""Hooks with random results for random schedules; their inputs are checked against their earlier results."""

import asyncio
import random
from collections import Counter

from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import RunId, ToolCallId
from holdfast.domain.runs import Run
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.run_context import NoHooks

__all__ = ["RandomHooks"]


class RandomHooks(NoHooks):
    """In a schedule without hooks they return nothing and take no time."""

    def __init__(self, rng: random.Random, *, says_something: bool) -> None:
        self._dice = rng
        self._says_something = says_something
        self._at_work: Counter[RunId] = Counter()
        self._inputs: dict[tuple[RunId, ToolCallId], dict[str, object] | None] = {}
        """The expected input of each call; None if it must not run."""
        self.ended: Counter[RunId] = Counter()
        self.refused: set[RunId] = set()

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        ruling = await self._reply(use.run_id)
        is_refused = ruling.halts or ruling.decision == "deny"
        self._inputs[use.run_id, use.tool_call_id] = None if is_refused else ruling.input or use.input
        return ruling

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        assert self._inputs[use.run_id, use.tool_call_id] == use.input, "hooks received another input than was used"
        return await self._reply(use.run_id)

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        ruling = await self._reply(run.run_id)
        if (ruling.halts or ruling.decision == "deny") and prompt == run.prompt:
            self.refused.add(run.run_id)
        return ruling

    def after_run(self, end: RunComplete) -> None:
        assert not self._at_work[end.run_id], f"R4: a hook of {end.run_id} was still running when its end was published"
        self.ended[end.run_id] += 1

    def judge_call(self, context: ToolContext, arguments: dict[str, object]) -> None:
        """Check that a tool receives the input that the hooks allowed."""
        wanted = self._inputs[context.run_id, context.tool_call_id]
        assert wanted is not None, "a call that a hook refused was carried out"
        assert wanted == arguments, "the tool did not receive the rewritten input"

    async def _reply(self, run: RunId) -> HookOutcome:
        if not self._says_something:
            return HookOutcome()
        self._at_work[run] += 1
        try:
            await asyncio.sleep(self._dice.choice((0.0, 0.0, 0.01, 0.3)))
        finally:
            self._at_work[run] -= 1
        ending_kind = self._dice.random()
        return HookOutcome(
            "deny" if ending_kind < 0.1 else "allow" if ending_kind < 0.4 else "",
            halts=ending_kind < 0.03,
            reason="a reason",
            context="a word for the model" if ending_kind > 0.7 else "",
            input={"n": self._dice.randint(2, 9)} if ending_kind > 0.8 else None,
            report={"hook_count": 1},
        )
