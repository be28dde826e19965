"""Another node that stores inputs for the workspace of a harness."""

from engine.gated_harness import gated_model, wait_for_request
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Delivery, Run
from holdfast.domain.store_operations import (
    Admit,
    Operation,
    Receipt,
    Write,
)
from holdfast.providers.scripted_model import ScriptedModel
from holdfast.testing.gates import GatedModel
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger

HARNESSES: list[Harness] = []
"""Those that a test has opened, which closes them."""


class Node:
    """Another node: stores inputs for the workspace of a harness."""

    def __init__(self, harness: Harness) -> None:
        HARNESSES.append(harness)
        self._harness = harness
        assert isinstance(harness.ledger, MemoryLedger)
        self._ledger = harness.ledger

    async def accept(self, *operations: Operation) -> Receipt:
        (answer,) = await self._ledger.accept(self._harness.workspace.id, [Write(operations)])
        assert isinstance(answer, Receipt), answer
        return answer

    async def prompt(self, name: str, delivery: Delivery = "queue") -> Receipt:
        run = Run(RunId(name), self._harness.session, "accepted", delivery, 1, f"prompt {name}")
        return await self.accept(Admit(run, b"hash"))

    async def wake(self) -> None:
        """Wake the owner and wait until it has applied every input."""
        self._harness.workspace.catch_up()
        await self._harness.workspace.recorder.tasks.drain()


async def opened(model: GatedModel | ScriptedModel, ledger: MemoryLedger | None = None) -> tuple[Harness, Node]:
    harness = await Harness.open(model, ledger=ledger or MemoryLedger(), is_shared=True)
    return harness, Node(harness)


async def busy(ledger: MemoryLedger | None = None) -> tuple[Harness, Node, GatedModel]:
    """A harness in which run r1 waits for its model."""
    model = gated_model()
    harness, node = await opened(model, ledger)
    await harness.prompt("one", "r1")
    await wait_for_request(model)
    return harness, node, model


def numbers(harness: Harness) -> list[int]:
    return [number for number, _ in harness.published.events if number is not None]


def published_without_a_gap(harness: Harness) -> bool:
    published = numbers(harness)
    return published == list(range(1, len(published) + 1))
