"""The scripted model that answers when no real one is set up."""

from holdfast.providers.tour import TourModel
from holdfast.testing.harness import World
from holdfast.tools.ls import Ls


async def answer(prompt: str) -> World:
    world = await World.open(TourModel(), tools=[Ls()], path=".")
    await world.prompt(prompt, "r1")
    await world.quiet()
    return world


async def test_it_says_what_it_is() -> None:
    world = await answer("Who are you?")
    assert "scripted model" in world.end_of("r1").text


async def test_it_does_small_tricks_on_request() -> None:
    assert (await answer("words=3")).end_of("r1").text == "word1 word2 word3"
    assert (await answer("please fail")).end_of("r1").outcome == "failed"
    world = await answer("tool=ls")
    assert [line.split(":")[0] for line in await world.outline()] == ["user", "assistant", "tool", "assistant"]


async def test_it_pretends_to_think() -> None:
    world = await World.open(TourModel())
    await world.prompt("think", "r1")
    await world.quiet()
    assert "pretend" in str((await world.messages())[-1].parts[0])
