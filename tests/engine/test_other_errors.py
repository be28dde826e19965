"""Errors that a handler does not expect pass through it unchanged; those that it expects never leave it."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.domain.errors import BadRequest, OwnerChanged, ProviderError, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Answer, Write
from holdfast.engine import titles
from holdfast.engine.run_context import RunContext
from holdfast.engine.settings import EngineSettings
from holdfast.engine.subagents import SubagentRunner
from holdfast.engine.titles import TitleGenerator
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time


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


class FailingBatches(MemoryLedger):
    """The next commit fails, and so does the next read of the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Exception] = []
        self.reads: list[Exception] = []

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if self.commits:
            raise self.commits.pop()
        return await super().commit(workspace, epoch, ticket, writes)

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        if self.reads:
            raise self.reads.pop()
        return await super().last_batch(workspace, epoch)


BUG = ZeroDivisionError("bug")
LOST = OwnerChanged()


@pytest.mark.parametrize(
    ("commit", "read", "raised"),
    [
        (BUG, None, BUG),
        (LOST, None, LOST),
        (StorageUnknown(), BUG, BUG),
        (StorageUnknown(), LOST, LOST),
        (StorageUnknown(), StorageUnknown(), StorageUnavailable),
        (StorageUnknown(), None, StorageUnavailable),
    ],
    ids=["bug", "owner", "unknown, then a bug", "unknown, then the owner", "unknown twice", "unknown"],
)
def test_a_write_fails_with_the_error_of_the_store(
    commit: Exception, read: Exception | None, raised: Exception | type[Exception]
) -> None:
    """Only an unknown result is looked up, until the store answers; a later write is stored."""

    async def main() -> None:
        ledger = FailingBatches()
        harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
        recorder = harness.workspace.recorder
        ledger.commits.append(commit)
        ledger.reads += [read] if read is not None else []
        async with asyncio.timeout(60):
            with pytest.raises((BUG.__class__, OwnerChanged, StorageUnavailable)) as caught:
                await recorder.put()
            assert caught.value is raised or type(caught.value) is raised
            assert ledger.reads == []
            if raised is not LOST:
                await recorder.put()

    in_virtual_time(main)


async def test_a_bug_during_a_summary_is_reported_as_what_it_is() -> None:
    """The log and the error of the run name the bug, not one of the handler that looks for a conversation too long."""
    steps = [echo]

    def answer(request: ModelRequest) -> Step:
        if not steps:
            raise ZeroDivisionError
        return steps.pop()(request)

    harness = await Harness.open(ScriptedModel(answer), settings=EngineSettings(titles=False))
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    run = await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    assert "ZeroDivisionError" in harness.end_of(run.run_id).error


@pytest.mark.parametrize("error", [ProviderError("refused"), ZeroDivisionError()], ids=["provider", "bug"])
async def test_only_a_refused_model_is_replaced(error: Exception) -> None:
    model = SimpleNamespace(info=SimpleNamespace(provider="p", model="m", fallback_reason=""))

    async def large() -> object:
        return model

    async def named(_: str) -> object:
        raise error

    unused = cast(Any, None)
    models = cast(Any, SimpleNamespace(large=large))
    context = RunContext(WorkspaceId("w"), "/", unused, models, unused, EngineSettings, named_model=cast(Any, named))
    if isinstance(error, ProviderError):
        assert await context.model("other") == (model, "refused p/m is used instead.")
        return
    with pytest.raises(ZeroDivisionError):
        await context.model("other")


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
