"""Events and writes of a turn while a response is streamed, in the first and in later steps."""

from collections.abc import Sequence

import pytest

from engine.helpers import PLAIN, fixed_tool, sleep_virtual
from holdfast.domain.events import MessageDeltaEvent, MessageEvent, MessagePartEvent, ToolOutputEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.messages import ReasoningPart, text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Answer, PutMessage, Refusal, Write
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import SimpleTool, start
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time

QUICK = EngineSettings(titles=False, pace=Pace(seconds=0.5, characters=10**9))
WORDS = "one two three four five six seven eight"


@pytest.mark.parametrize("act", [Say(WORDS), Think(WORDS)])
def test_every_delta_is_published_and_stored(act: Say | Think) -> None:
    async def scenario() -> None:
        model = ScriptedModel([Step((act, Say("end")))], info=PLAIN, pause=lambda: 1.0)
        harness = await Harness.open(model, settings=QUICK)
        await harness.prompt("go", "r1")
        await sleep_virtual(6.9)
        streamed = " ".join(WORDS.split()[:7])
        deltas = [event.payload.text for _, event in harness.published.events if isinstance(event, MessageDeltaEvent)]
        assert "one" + "".join(deltas) == streamed, "the first word is in the part itself"
        (part,) = (await harness.messages())[-1].parts
        stored = part.data.thinking if isinstance(part, ReasoningPart) else text_of((await harness.messages())[-1])
        assert stored == streamed, "half a second later it is stored"
        await harness.wait_until_idle()
        await harness.close()

    in_virtual_time(scenario)


def test_tool_calls_are_durable_events_in_every_step() -> None:
    """A call is logged when it starts and when it is complete, in the last step as in the first."""

    async def scenario() -> None:
        steps = [Step((Say(f"step {number}"), Call("tool", f'{{"n":{number}}}'))) for number in range(30)]
        harness = await Harness.open(
            ScriptedModel([*steps, Step((Say("done"),))], info=PLAIN), tools=[fixed_tool("tool")]
        )
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        answers = [message.id for message in await harness.messages() if message.role == "assistant"]
        published = [event.change.object for event in harness.message_events()]
        counts = [sum(message.id == answer for message in published) for answer in answers[:-1]]
        assert len(set(counts)) == 1, counts
        assert counts[0] >= 4, "empty, with a call, with its arguments, with its end"
        unfinished = [message for message in published if any(not call.finished for call in message.tool_calls)]
        assert len({message.id for message in unfinished}) == 30
        await harness.close()

    in_virtual_time(scenario)


def test_tool_output_is_published_until_the_run_ends() -> None:
    async def scenario() -> None:
        kept: list[ToolContext] = []

        async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            kept.append(context)
            context.publish_output("héllo ")
            context.publish_output("world")
            return ToolOutcome("done")

        model = ScriptedModel([Step((Call("tool"),)), Step((Say("done"),))], info=PLAIN)
        harness = await Harness.open(model, tools=[SimpleTool("tool", act)])
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        kept[0].publish_output("too late")
        streamed = [event.payload for _, event in harness.published.events if isinstance(event, ToolOutputEvent)]
        assert [(item.offset, item.text) for item in streamed] == [(0, "héllo "), (6, "world")]
        answer = (await harness.messages())[1]
        place = (harness.session, answer.id, answer.tool_calls[0].id)
        assert {(item.session_id, item.message_id, item.tool_call_id) for item in streamed} == {place}
        await harness.close()

    in_virtual_time(scenario)


def test_refused_write_fails_the_run() -> None:
    """Nothing is executed on the basis of a write that is not stored."""

    class RefusingLedger(MemoryLedger):
        refuses = False

        async def commit(
            self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
        ) -> Sequence[Answer]:
            answers = await super().commit(workspace, epoch, ticket, writes)
            puts = [item for write in writes for item in write.operations if isinstance(item, PutMessage)]
            if self.refuses and any(item.message.role == "tool" for item in puts):
                self.refuses = False
                return [Refusal("unknown_session") for _ in answers]
            return answers

    async def scenario() -> None:
        ledger, tool = RefusingLedger(), fixed_tool("tool")

        def script(_: ModelRequest) -> Step:
            ledger.refuses = True
            return Step((Call("tool"), Call("tool", '{"n":2}')))

        harness = await Harness.open(ScriptedModel(script, info=PLAIN), tools=[tool], ledger=ledger, settings=QUICK)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        end = harness.end_of("r1")
        assert end.outcome == "failed"
        assert "refused a write" in end.error
        assert tool.started == 1
        await harness.close()

    in_virtual_time(scenario)


def test_a_late_subscriber_gets_open_parts_in_full() -> None:
    async def scenario() -> None:
        model = ScriptedModel([Step((Think("let me see"), Say(WORDS)))], info=PLAIN, pause=lambda: 1.0)
        harness = await Harness.open(model, settings=QUICK)
        engine = harness.workspace.engine
        assert engine.open_parts() == []
        await harness.prompt("go", "r1")
        await sleep_virtual(5.5)
        thought, words = engine.open_parts()
        assert isinstance(thought.content, ReasoningPart)
        assert thought.content.data.thinking == "let me see"
        (growing,) = engine.open_messages(harness.session)
        assert text_of(growing) == "one two three"
        assert words.part == 1
        assert (words.message_id, words.session_id) == (growing.id, harness.session)
        other = (await harness.workspace.sessions.create()).id
        assert engine.open_messages(other) == []
        await harness.wait_until_idle()
        assert engine.open_parts() == []
        assert engine.open_messages(harness.session) == []
        await harness.close()

    in_virtual_time(scenario)


def test_withdrawn_response_is_removed_for_subscribers_and_in_the_store() -> None:
    """The next attempt starts from an empty message."""

    async def scenario() -> None:
        steps = [Step((Say("half an answer"), Fail(trouble="busy"))), Step((Say("whole"),))]
        harness = await Harness.open(ScriptedModel(steps, info=PLAIN), settings=QUICK)
        run = start(harness.prompt("go", "r1"))
        await run
        await sleep_virtual(0.9)
        message = (await harness.messages())[-1]
        assert (message.role, text_of(message)) == ("assistant", "")
        published = [event.change.object for event in harness.message_events() if event.change.object.id == message.id]
        assert text_of(published[-1]) == ""
        await harness.wait_until_idle()
        last = [event for _, event in harness.published.events if isinstance(event, MessageEvent | MessagePartEvent)][
            -1
        ]
        assert isinstance(last, MessageEvent)
        assert harness.end_of("r1").text == "whole"
        assert len([item for item in await harness.messages() if item.role == "assistant"]) == 1
        await harness.close()

    in_virtual_time(scenario)
