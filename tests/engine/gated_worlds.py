"""Models and stores that wait for the test."""

from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.ledger import Briefing, RunRecord
from holdfast.domain.model_requests import ModelRequest
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedModel
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger


def echo(request: ModelRequest) -> Step:
    """Answers with the number of messages it was sent, so that answers can be told apart."""
    return Step((Say(f"answer {len(request.messages)}"),))


def gated() -> GatedModel:
    """A model that waits before it answers."""
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    return model


async def held(model: GatedModel) -> None:
    """Wait until somebody asks the model."""
    await model.before.reached.wait()


def slow_reads() -> tuple[MemoryLedger, Gate]:
    """A store whose reads of runs can be held up, so that a run has the lane but has not begun to work."""
    gate = Gate(is_open=True)

    class Slow(MemoryLedger):
        async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
            await gate()
            return await super().briefing(workspace, run)

        async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
            await gate()
            return await super().run(workspace, run)

    return Slow(), gate


async def busy_world(ledger: MemoryLedger | None = None) -> tuple[Harness, GatedModel]:
    """A world in which run r1 has asked its model and waits for the answer."""
    model = gated()
    harness = await Harness.open(model, ledger=ledger)
    await harness.prompt("one", "r1")
    await held(model)
    return harness, model
