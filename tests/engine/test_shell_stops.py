"""The shell's contract: what stops runs meets what is on its way, to the disk or to its end."""

import asyncio

from engine.held import slow_reads
from holdfast.domain.hooks import Ruling
from holdfast.domain.ledger import (
    EndRun,
    PatchSession,
)
from holdfast.domain.runs import Run
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.kit import NoHooks
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, SimpleTool, settle_down, start
from holdfast.testing.harness import World
from holdfast.testing.loop import in_virtual_time

_SHORT = EngineSettings(titles=False, grace=0.5, margin=0.1)


def talking() -> ScriptedModel:
    return ScriptedModel(lambda _: Step((Say("words"),)))


class SlowHooks(NoHooks):
    """Think about a prompt until they are let, and hear nothing meanwhile."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        while not self.gate.passed:
            try:
                await self.gate()
            except asyncio.CancelledError:
                continue
        return Ruling()


# Turns on their way to their ends


def test_what_a_tool_says_after_it_was_given_up_is_no_part_of_the_end() -> None:
    """R7: the disk fails, so the end is made again. The call's result is not what nobody has stored."""

    async def main() -> None:
        ledger, at_work = GatedLedger(), Gate()

        async def stubborn(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            while not at_work.passed:
                try:
                    await at_work()
                except asyncio.CancelledError:
                    continue
            return ToolOutcome("too late")

        tools = [SimpleTool("stubborn", stubborn)]
        model = ScriptedModel([Step((Call("stubborn"),))])
        world = await World.open(model, tools=tools, ledger=ledger, settings=_SHORT)
        await world.prompt("one", "r1")
        await at_work.reached.wait()
        await world.cancel()
        ledger.refused = (EndRun,)
        ledger.asked.clear()
        await ledger.asked.wait()
        at_work.open()
        await settle_down()
        ledger.refused = ()
        await world.quiet()
        await world.assert_valid()
        assert "too late" not in " ".join(await world.outline())

    in_virtual_time(main)


def test_a_prompt_is_said_once_by_whoever_comes_first() -> None:
    """A hook that was given up lets its prompt through while the end is being made, which brings the prompt too."""

    async def main() -> None:
        (ledger, reading), hooks = slow_reads(), SlowHooks()
        world = await World.open(talking(), ledger=ledger, settings=_SHORT, hooks=hooks)
        await world.prompt("one", "r1")
        await hooks.gate.reached.wait()
        await world.cancel()
        reading.shut()
        reading.reached.clear()
        await reading.reached.wait()
        hooks.gate.open()
        await settle_down()
        reading.open()
        await world.quiet()
        assert await world.outline() == ["user:one", "assistant:"]

    in_virtual_time(main)


async def test_a_summary_that_is_complete_stays_when_a_cancel_comes() -> None:
    """It is being stored: the session does not begin with a message that was taken away again."""
    ledger = GatedLedger()
    world = await World.open(talking(), ledger=ledger)
    await world.prompt("one", "r1")
    await world.quiet()
    ledger.hold(PatchSession)
    run = await world.workspace.inputs.summarize(world.session)
    await ledger.gate.reached.wait()
    stopping = start(world.cancel())
    await settle_down()
    ledger.gate.open()
    assert await stopping == (run.run_id,)
    await world.quiet()
    session = await ledger.session(world.workspace.record.id, world.session)
    assert session is not None
    assert session.summary_message_id == (await world.messages())[-1].id
    assert world.end_of(run.run_id).outcome == "cancelled"
