"""Writes that reach the disk before they are answered: inputs, starts, folds and ends. Streamed content does not."""

from collections.abc import Sequence

from engine.helpers import sleep_virtual
from holdfast.domain.approvals import Verdict
from holdfast.domain.hooks import HookOutcome
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import (
    Admit,
    Announce,
    Answer,
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    CreateSession,
    DeleteMessage,
    DeleteSession,
    EndRun,
    FoldRun,
    GrowMessage,
    PatchSession,
    PutMessage,
    Redeliver,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.domain.usage import Usage
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.run_context import NoHooks
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import Gate, SimpleTool, until
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time

SYNCED = frozenset(
    {
        *(Admit, StartRun, FoldRun, EndRun, CancelSession, CancelRun, ClearQueue, Reorder, Redeliver),
        *(Announce, CloseRequest, CreateSession, DeleteSession),
    }
)
"""A power cut must not undo these: their effects were reported, or tools may follow them."""
UNSYNCED = frozenset({StepRun, PutMessage, GrowMessage, DeleteMessage, PatchSession})
"""Without one of the others, a power cut may undo these: the run is then interrupted and its conversation repaired."""


class Recording(MemoryLedger):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        self.writes += writes
        return await super().commit(workspace, epoch, ticket, writes)


class SlowHooks(NoHooks):
    """Hold the prompt "slow" back until the gate is open."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        if prompt == "slow":
            await self.gate()
        return HookOutcome()


def test_writes_of_runs_are_synced_by_their_kind() -> None:
    async def main() -> None:
        ledger, gate, hooks = Recording(), Gate(), SlowHooks()
        full = Usage(input_tokens=9_000)
        steps = [
            Step((Think("hm", "signed"), Say("some text" * 20), Call("ask"))),
            Step((Say("cut off"), Fail(trouble="busy"))),
            Step((Say("nearly full"), Call("plain")), full),
            Step((Say("in short"),)),
            Step((Fail(trouble="overflow"),)),
            Step((Say("done"),)),
        ]

        def script(_: ModelRequest) -> Step:
            return steps.pop(0) if steps else Step((Say("yes"),))

        async def ask(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            await context.permit(Permit("ask", "execute", "/project", "may I?", {}))
            await gate()
            return ToolOutcome("asked")

        async def plain(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            return ToolOutcome("plain")

        large = ScriptedModel(script, info=ModelInfo("test", "m", context_window=10_000))
        harness = await Harness.open(
            FixedModels(large),
            ledger=ledger,
            tools=[SimpleTool("ask", ask), SimpleTool("plain", plain)],
            settings=EngineSettings(retries=RetryPolicy(first=0.1), pace=Pace(0.01, 8)),
            hooks=hooks,
            judge=lambda permit: Verdict("ask" if permit.tool == "ask" else "allow"),
        )
        inputs, approvals = harness.workspace.inputs, harness.workspace.approvals
        await harness.prompt("one", "r1")
        await until(lambda: approvals.permissions)
        await approvals.grant(approvals.permissions[0].id, "allow")
        await gate.reached.wait()
        for name in ("w1", "w2", "w3"):
            await harness.prompt(name, name, delivery="queue")
        await inputs.move(RunId("w2"), 0)
        await inputs.redeliver(RunId("w3"), "steer")
        await inputs.redeliver(RunId("w3"), "queue")
        await inputs.cancel_run(RunId("w3"))
        await inputs.clear(harness.session)
        await harness.prompt("folded", "f1", delivery="steer")
        gate.open()
        await harness.wait_until_idle()
        await harness.workspace.engine._titler.drain()
        await harness.prompt("two", "r2")
        await inputs.cancel(harness.session)
        await harness.wait_until_idle()
        # A prompt that is folded before the first request of its host.
        await harness.prompt("slow", "r3")
        await hooks.gate.reached.wait()
        await harness.prompt("early", "f3", delivery="steer")
        hooks.gate.open()
        await harness.wait_until_idle()
        assert (await harness.outline())[-3:] == ["user:slow", "user:early", "assistant:yes"]
        await harness.workspace.sessions.delete(harness.session)
        await sleep_virtual(1)
        assert harness.end_of("r1").outcome == "completed"
        kinds = {type(operation) for write in ledger.writes for operation in write.operations}
        assert kinds == SYNCED | UNSYNCED, "the story contains every kind"
        for write in ledger.writes:
            of_write = {type(operation) for operation in write.operations}
            assert write.sync == bool(of_write & SYNCED), of_write

    in_virtual_time(main)
