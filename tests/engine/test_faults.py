"""Faults of our own: a bug in one place does not keep others from their answers, nor a run from its end."""

import asyncio

import pytest

from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import Answer
from holdfast.domain.models import ModelRequest
from holdfast.engine import ending
from holdfast.providers.scripted import Fail, Say, ScriptedModel, Step
from holdfast.testing.harness import World
from holdfast.testing.loop import SeededLoop, in_virtual_time


def echo(_: ModelRequest) -> Step:
    return Step((Say("yes"),))


def test_a_run_ends_even_if_it_cannot_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: the end is told, and the next prompt runs."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        world = await World.open(ScriptedModel([Step((Fail(),)), Step((Say("fine"),))]))
        monkeypatch.setattr(ending, "settle", broken)
        await world.prompt("one", "r1")
        await world.prompt("two", "r2")
        await world.quiet()
        assert [(end.run_id, end.outcome) for end in world.ends()] == [("r1", "failed"), ("r2", "completed")]

    with pytest.raises(AssertionError, match="could not be settled"):
        in_virtual_time(main)


async def test_a_listener_that_breaks_keeps_nobody_from_an_answer() -> None:
    world = await World.open(ScriptedModel(echo))
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))

    def broken(_: Answer) -> None:
        raise ZeroDivisionError

    recorder = world.workspace.engine.recorder
    first = recorder.put(then=broken)
    second = recorder.put()
    await first
    await second
    assert reported == ["telling what was stored failed"]


async def test_text_that_is_no_text_is_refused_or_mended() -> None:
    """Half characters can be neither stored nor sent: a prompt is refused, an answer gets a mark instead."""
    world = await World.open(ScriptedModel(lambda _: Step((Say("half \ud83d here"),))))
    with pytest.raises(BadRequest, match="Unicode"):
        await world.prompt("half \ud83d character", "r1")
    assert await world.ledger.run(world.workspace.record.id, RunId("r1")) is None
    await world.prompt("fine", "r2")
    await world.quiet()
    assert world.end_of("r2").text == "half ? here"


def test_the_loop_of_these_tests_has_no_real_clock() -> None:
    loop = SeededLoop(lambda _: 0)
    assert loop.time() == 0.0
    loop.close()
