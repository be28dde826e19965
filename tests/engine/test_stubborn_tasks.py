"""Tasks that suppress a cancellation, and stores that change hands: nothing is left running or held."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from engine.helpers import PLAIN, sleep_virtual
from holdfast.domain.errors import ProviderError, StorageError
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelRequest, StreamPart, TextDelta
from holdfast.domain.store_operations import EndRun
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, SimpleTool, settle_down, start
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import in_virtual_time


def echo(_: ModelRequest) -> Step:
    return Step((Say("yes"),))


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_a_task_that_suppresses_its_cancellation_is_cancelled_again(cancels: int) -> None:
    """By the cancel, when the grace is over, and by a close that could not store the end in time."""

    async def main() -> None:
        ledger = GatedLedger()
        began, ended = asyncio.Event(), asyncio.Event()
        received: list[float] = []

        async def stubborn(_: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            began.set()
            while len(received) < cancels:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    received.append(asyncio.get_running_loop().time())
            ended.set()
            return ToolOutcome("")

        model = ScriptedModel([Step((Call("stubborn"),))])
        settings = EngineSettings(titles=False)
        harness = await Harness.open(model, tools=[SimpleTool("stubborn", stubborn)], ledger=ledger, settings=settings)
        await harness.prompt("one", "r1")
        await began.wait()
        start_time = asyncio.get_running_loop().time()
        await harness.cancel()
        ledger.hold(EndRun)
        closing = start(harness.close())
        async with asyncio.timeout(60):
            await ended.wait()
            ledger.gate.open()
            await closing
        due = [0.0, settings.grace + settings.margin, settings.grace + settings.margin + settings.closing]
        assert [moment - start_time for moment in received] == pytest.approx(due[:cancels], abs=0.01)

    in_virtual_time(main)


class Deaf:
    """A model that suppresses its cancellation and fails when the gate is opened, after some text or without."""

    def __init__(self, text: str) -> None:
        self.gate = Gate()
        self.text = text
        self.info = PLAIN

    async def stream(self, _: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        while not self.gate.passed:
            with suppress(asyncio.CancelledError):
                await self.gate()
        if self.text:
            yield TextDelta(self.text)
        raise ProviderError("busy", trouble="busy")


@pytest.mark.parametrize("text", ["late", ""])
def test_an_abandoned_task_publishes_nothing(text: str) -> None:
    """Neither text nor the notice of a retry: clients have received the end of its run."""

    async def main() -> None:
        model = Deaf(text)
        harness = await Harness.open(model)
        await harness.prompt("one", "r1")
        await model.gate.reached.wait()
        await harness.cancel()
        await harness.wait_until_idle()
        published = len(harness.published.events)
        model.gate.open()
        await sleep_virtual(60)
        assert harness.published.events[published:] == []
        await harness.close()

    in_virtual_time(main)


async def test_an_end_that_another_owner_has_taken_over_is_given_up() -> None:
    """The new owner has ended the run. Here nothing of it is left, and no caller waits for its end."""
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    ledger.hold(EndRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    stopping = start(harness.workspace.inputs.cancel_run(RunId("r1")))
    await settle_down()
    await ledger.open_workspace("/project")
    ledger.gate.open()
    async with asyncio.timeout(20):
        await harness.wait_until_idle()
        await asyncio.gather(stopping, return_exceptions=True)
    error = stopping.exception()
    assert error is None or isinstance(error, StorageError)
    engine = harness.workspace.engine
    assert (engine.open_parts(), engine.turn_of(harness.session), engine.is_busy()) == ([], None, False)
