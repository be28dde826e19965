"""The scripted model that is used when no other is configured."""

from pathlib import Path

from engine.helpers import message, request_of, text_part
from holdfast.domain.messages import ReasoningPart, ToolCallPart
from holdfast.domain.model_requests import UsagePart
from holdfast.domain.usage import Usage
from holdfast.providers.scripted_model import DemoModel, tour_titles
from holdfast.testing.harness import Harness
from holdfast.tools.ls import Ls
from holdfast.tools.write import WriteTool


async def answer(prompt: str) -> Harness:
    harness = await Harness.open(DemoModel(), tools=[Ls()], path=".")
    await harness.prompt(prompt, "r1")
    await harness.wait_until_idle()
    return harness


async def test_the_demo_model_identifies_itself() -> None:
    harness = await answer("Who are you?")
    assert "scripted model" in harness.end_of("r1").text


async def test_demo_model_follows_its_commands() -> None:
    assert (await answer("words=3")).end_of("r1").text == "word1 word2 word3"
    assert (await answer("please fail")).end_of("r1").outcome == "failed"
    harness = await answer("tool=ls")
    assert [line.split(":")[0] for line in await harness.outline()] == ["user", "assistant", "tool", "assistant"]


async def test_the_usage_of_the_demo_model_is_that_of_the_prompt() -> None:
    model = DemoModel()
    request = request_of([message("user", text_part("words=3 and so on"))])
    usage = [part.usage async for part in model.stream(request) if isinstance(part, UsagePart)]
    assert usage == [Usage(5, 20)]


async def test_demo_model_is_labelled() -> None:
    info = DemoModel().info
    assert info.is_scripted
    assert info.name == "Scripted tour (no model)"
    assert tour_titles().info.is_scripted


async def test_tools_are_called_one_after_the_other_with_their_arguments() -> None:
    harness = await answer('tool=ls {"path": "."} and then tool=ls {"path": "{}"} words=2')
    calls = [part for message in await harness.messages() for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.data.input for part in calls] == ['{"path": "."}', '{"path": "{}"}']
    assert harness.end_of("r1").text == "word1 word2"


async def test_invalid_arguments_are_passed_on() -> None:
    harness = await answer("tool=ls {nonsense} words=1")
    assert harness.end_of("r1").outcome == "completed"


async def test_the_tour_shows_reasoning_a_tool_and_a_question(tmp_path: Path) -> None:
    harness = await Harness.open(DemoModel(), tools=[Ls(), WriteTool()], path=str(tmp_path))
    await harness.prompt("Tour", "r1")
    await harness.wait_until_idle()
    calls = [part for message in await harness.messages() for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.data.name for part in calls] == ["ls", "write"]
    assert "That was the tour" in harness.end_of("r1").text
    assert any(isinstance(part, ReasoningPart) for message in await harness.messages() for part in message.parts)


async def test_without_tools_the_tour_is_an_ordinary_prompt() -> None:
    harness = await Harness.open(DemoModel())
    await harness.prompt("tour", "r1")
    await harness.wait_until_idle()
    assert "scripted model" in harness.end_of("r1").text


async def test_demo_model_streams_reasoning() -> None:
    harness = await Harness.open(DemoModel())
    await harness.prompt("think", "r1")
    await harness.wait_until_idle()
    assert "pretend" in str((await harness.messages())[-1].parts[0])
