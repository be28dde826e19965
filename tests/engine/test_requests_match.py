"""The requests of a run and the stored conversation agree, step by step, whatever joins the run or fails."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from engine.helpers import PLAIN
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.messages import Message, ShellCommand, TextPart, text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.store_operations import (
    Answer,
    DeleteMessage,
    EndRun,
    FoldRun,
    Operation,
    PatchSession,
    PutMessage,
    StartRun,
    StepRun,
    Write,
)
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.domain.usage import Usage
from holdfast.engine.history import conversation
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import SimpleTool
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time


def texts(messages: Sequence[Message], role: str) -> list[str]:
    """Return the texts that a provider reads, one for each part."""
    parts = (part for item in messages if item.role == role for part in item.parts)
    return [part.data.text for part in parts if isinstance(part, TextPart)]


@pytest.mark.parametrize("seed", range(12))
def test_every_request_is_the_conversation_stored_so_far(seed: int) -> None:
    """Steps with several calls, parallel and not; prompts and shell commands that join between the steps."""

    async def main() -> None:
        rng = random.Random(seed)
        left = 5

        def script(_: ModelRequest) -> Step:
            nonlocal left
            left -= 1
            if not left:
                return Step((Say("done"),))
            names = [rng.choice(("alone", "beside")) for _ in range(rng.randint(1, 3))]
            return Step((*([Say(f"step {left}")] if rng.random() < 0.5 else []), *map(Call, names)))

        async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            if rng.random() < 0.3:
                await harness.prompt(f"steer {context.tool_call_id}", delivery="steer")
            if rng.random() < 0.3:
                await harness.workspace.sessions.note_shell(harness.session, ShellCommand("ls", "a", 0))
            return ToolOutcome(f"result of {context.tool_call_id}")

        model = ScriptedModel(script, info=PLAIN)
        tools = [SimpleTool("alone", act), SimpleTool("beside", act, is_parallel=True)]
        harness = await Harness.open(model, tools=tools)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        stored = await harness.messages()
        assert text_of(stored[-1]) == "done"
        sent = model.requests[-1].messages
        results = [result.content for item in sent for result in item.tool_results]
        assert results == [f"result of {call.id}" for item in stored for call in item.tool_calls]
        assert [call.id for item in sent for call in item.tool_calls] == [
            call.id for item in stored for call in item.tool_calls
        ]
        for role in ("user", "assistant"):
            assert Counter(texts(sent, role)) == Counter(texts(conversation(stored[:-1], PLAIN), role))
        assert len(model.requests) == 5
        await harness.close()

    in_virtual_time(main)


class Choosy(MemoryLedger):
    """Cannot store the batch with the given occurrence of an operation."""

    def __init__(self, kind: type[Operation], place: int) -> None:
        super().__init__()
        self.kind, self.left = kind, place

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(item, self.kind) for write in writes for item in write.operations):
            self.left -= 1
            if self.left == 0:
                raise StorageUnavailable
        return await super().commit(workspace, epoch, ticket, writes)


KINDS = [
    *((PutMessage, place) for place in range(1, 9)),
    *((StepRun, place) for place in range(2, 5)),
    *((kind, 1) for kind in (StartRun, FoldRun, DeleteMessage, PatchSession, EndRun)),
]


@pytest.mark.parametrize(("kind", "place"), KINDS)
def test_a_conversation_is_valid_after_any_write_has_failed(kind: type[Operation], place: int) -> None:
    """A run with a tool, a prompt that joins it, a summary, and a response that is discarded."""

    async def main() -> None:
        ledger = Choosy(kind, place)
        steps = [
            Step((Say("let me see"), Call("tool"))),
            Step((Say("nearly full"), Call("tool")), Usage(input_tokens=9_000)),
            Step((Say("in short"),)),
            Step((Fail(trouble="overflow"),)),
            Step((Say("shorter"),)),
            Step((Say("done"),)),
        ]
        joined = False

        async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            nonlocal joined
            if not joined:
                joined = True
                await harness.prompt("joins", "f1", delivery="steer")
            return ToolOutcome("done")

        model = ScriptedModel(steps, info=ModelInfo("test", "m", context_window=10_000))
        settings = EngineSettings(titles=False)
        harness = await Harness.open(model, tools=[SimpleTool("tool", act)], ledger=ledger, settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert ledger.left <= 0, "the write was reached"
        await harness.assert_valid(model.requests)
        # A change of structure that could not be stored is stored with the next write.
        outcome = harness.end_of("r1").outcome
        assert outcome == ("completed" if kind is EndRun else "failed") or kind is PutMessage
        assert await ledger.open_runs(harness.workspace.record.id) == []
        assert "user:go" in await harness.outline()
        assert not joined or "user:joins" in await harness.outline()
        await harness.close()

    in_virtual_time(main)
