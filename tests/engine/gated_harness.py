"""Harnesses whose model or store waits for the test."""

from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Briefing, RunRecord
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedModel
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger


def echo(request: ModelRequest) -> Step:
    """Answer with the number of messages in the request, so that answers can be distinguished."""
    return Step((Say(f"answer {len(request.messages)}"),))


def gated_model() -> GatedModel:
    """Return a model that waits at a gate before it answers."""
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    return model


async def wait_for_request(model: GatedModel) -> None:
    """Wait until a request has reached the model."""
    await model.before.reached.wait()


def slow_run_reads() -> tuple[MemoryLedger, Gate]:
    """Return a ledger whose run reads wait at a gate, so that a run has the lane but has not entered its loop."""
    gate = Gate(is_open=True)

    class Slow(MemoryLedger):
        async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
            await gate()
            return await super().briefing(workspace, run)

        async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
            await gate()
            return await super().run(workspace, run)

    return Slow(), gate


async def busy_harness(ledger: MemoryLedger | None = None) -> tuple[Harness, GatedModel]:
    """Return a harness in which run r1 waits for the response of its model."""
    model = gated_model()
    harness = await Harness.open(model, ledger=ledger)
    await harness.prompt("one", "r1")
    await wait_for_request(model)
    return harness, model
