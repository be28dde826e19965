"""Errors that a handler does not expect pass through it unchanged; those that it expects never leave it."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.domain.errors import BadRequest, OwnerChanged, ProviderError, StorageUnavailable
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.engine import titles
from holdfast.engine.run_context import RunContext
from holdfast.engine.subagents import SubagentRunner
from holdfast.engine.titles import TitleGenerator
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger


def echo(_: ModelRequest) -> Step:
    return Step((Say("yes"),))


class FailingReads(MemoryLedger):
    """Reads of inputs fail once with each of the errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = [*errors]

    async def inputs_after(
        self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
    ) -> Sequence[tuple[int, bytes]]:
        if self.errors:
            raise self.errors.pop()
        return await super().inputs_after(workspace, epoch, cursor, limit)


@pytest.mark.parametrize(
    ("error", "is_lost", "is_reported"),
    [(StorageUnavailable(), False, False), (OwnerChanged(), True, False), (ZeroDivisionError(), False, True)],
    ids=["store", "owner", "bug"],
)
async def test_after_any_failed_read_of_inputs_the_recorder_writes(
    error: Exception, is_lost: bool, is_reported: bool
) -> None:
    """Only a bug is reported, and only a change of the owner ends the ownership."""
    ledger = FailingReads()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger, is_shared=True)
    losses: list[bool] = []
    reported: list[object] = []
    harness.workspace.recorder._on_owner_changed = lambda: losses.append(True)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    ledger.errors.append(error)
    harness.workspace.catch_up()
    await asyncio.wait({*harness.workspace.recorder.tasks._tasks})
    await asyncio.sleep(0)
    assert ledger.errors == []
    async with asyncio.timeout(20):
        await harness.prompt("one", "r1")
        await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "completed"
    assert (bool(losses), reported == [error]) == (is_lost, is_reported)


@pytest.mark.parametrize("error", [ProviderError("refused"), ZeroDivisionError()], ids=["provider", "bug"])
async def test_only_a_refused_model_is_replaced(error: Exception) -> None:
    model = SimpleNamespace(info=SimpleNamespace(provider="p", model="m"))

    async def large() -> object:
        return model

    async def named(_: str) -> object:
        raise error

    context = cast(Any, SimpleNamespace(named_model=named, models=SimpleNamespace(large=large)))
    if isinstance(error, ProviderError):
        assert await RunContext.model(context, "other") == (model, "refused p/m is used instead.")
        return
    with pytest.raises(ZeroDivisionError):
        await RunContext.model(context, "other")


@pytest.mark.parametrize("error", [ProviderError("refused"), ZeroDivisionError()], ids=["provider", "bug"])
async def test_only_a_refused_title_is_requested_from_the_large_model(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def small() -> str:
        return "small"

    async def large() -> str:
        return "large"

    async def generate(model: str, *_: object) -> str:
        if model == "small":
            raise error
        return model

    monkeypatch.setattr(titles, "generate_title", generate)
    models = SimpleNamespace(small=small, large=large)
    generator = cast(Any, SimpleNamespace(_run_context=SimpleNamespace(models=models)))
    work = TitleGenerator._generate(generator, SessionId("s"), cast(Any, None), lambda _: None)
    if isinstance(error, ProviderError):
        assert await work == "large"
        return
    with pytest.raises(ZeroDivisionError):
        await work


@pytest.mark.parametrize(
    ("submitted", "cancelled", "steps"),
    [
        (None, None, ["cancel", "idle"]),
        (None, StorageUnavailable(), ["cancel", "idle"]),
        (BadRequest("refused"), None, []),
    ],
    ids=["cancelled", "cancel not stored", "never accepted"],
)
async def test_a_cancelled_parent_stays_cancelled_whatever_becomes_of_its_sub_agent(
    submitted: Exception | None, cancelled: Exception | None, steps: list[str]
) -> None:
    """An error in place of the cancellation would become a result of the call, and the parent would continue."""
    done: list[str] = []

    async def submit() -> None:
        if submitted is not None:
            raise submitted

    async def cancel(_: SessionId) -> None:
        done.append("cancel")
        if cancelled is not None:
            raise cancelled

    async def wait_until_idle(_: SessionId) -> None:
        done.append("idle")

    parts = {"_inputs": SimpleNamespace(cancel=cancel), "_engine": SimpleNamespace(wait_until_idle=wait_until_idle)}
    await SubagentRunner._cancel(cast(Any, SimpleNamespace(**parts)), cast(Any, submit()), SessionId("s"))
    assert done == steps
