"""Inputs that other nodes store, applied by the owner: in number order, before its own answers, exactly once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from engine.gated_harness import echo, gated_model, wait_for_request
from engine.remote_node import HARNESSES, Node, busy, numbers, opened, published_without_a_gap
from holdfast.domain.approvals import GrantAction, Question, QuestionAnswer, Verdict
from holdfast.domain.errors import OwnerChanged, StorageUnavailable
from holdfast.domain.events import Change, PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import ShellCommand, text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import (
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    DeleteSession,
    EndRun,
    FoldRun,
    Operation,
    PutMessage,
    Redeliver,
    Refusal,
    Reorder,
    StartRun,
)
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.approvals import permission_notice, question_notice
from holdfast.engine.message_factory import MessageFactory
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedModel, SimpleTool, start, until
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    """Close every workspace after its test."""
    yield
    while HARNESSES:
        await HARNESSES.pop().close()


async def test_a_prompt_of_another_node_runs_after_a_wake_up() -> None:
    """R1, R2, R6."""
    harness, node = await opened(ScriptedModel(echo))
    await node.prompt("r1")
    await node.prompt("r2")
    assert not harness.workspace.is_busy()
    await node.wake()
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r2"]
    assert [end.outcome for end in harness.ends()] == ["completed", "completed"]
    assert published_without_a_gap(harness)
    await node.wake()
    assert len(harness.ends()) == 2


async def test_inputs_are_found_with_the_next_write_of_the_owner() -> None:
    """Without a wake-up: the next batch shows the gap, and its answer comes after the inputs."""
    harness, node, _ = await busy()
    await node.accept(CancelSession(harness.session, "ada"))
    await node.prompt("r2")
    run = await harness.prompt("three", "r3")
    assert [item.run for item in harness.workspace.lane(harness.session).queue] == ["r2", "r3"]
    assert run.position == 2
    await until(lambda: len(harness.ends()) == 1)
    assert harness.end_of("r1").outcome == "cancelled"
    assert published_without_a_gap(harness)


async def test_a_refusal_is_answered_after_the_inputs_that_cause_it() -> None:
    harness, node = await opened(gated_model())
    await node.prompt("r1")
    answer = await harness.workspace.recorder.put(StartRun(RunId("nothing"), 1))
    assert answer == Refusal("unknown_run")
    assert harness.workspace.is_busy(harness.session)


async def test_a_batch_without_events_reads_nothing() -> None:
    harness, node = await opened(gated_model())
    await node.prompt("r1")
    await harness.workspace.recorder.put(sync=False)
    assert not harness.workspace.is_busy()


async def test_a_cancel_of_another_node_covers_the_smaller_numbers() -> None:
    """R3: none accepted after it."""
    harness, node, model = await busy()
    await node.prompt("r2")
    await node.accept(CancelSession(harness.session, "ada"))
    await node.prompt("r3")
    model.before.open()
    await node.wake()
    await harness.wait_until_idle()
    assert {end.run_id: end.outcome for end in harness.ends()} == {
        "r1": "cancelled",
        "r2": "cancelled",
        "r3": "completed",
    }


async def test_an_interrupting_prompt_of_another_node() -> None:
    harness, node, model = await busy()
    await harness.prompt("two", "r2", delivery="queue")
    await node.prompt("now", "interrupt")
    model.before.open()
    await node.wake()
    await harness.wait_until_idle()
    outcomes = {end.run_id: end.outcome for end in harness.ends()}
    assert outcomes == {"r1": "cancelled", "r2": "cancelled", "now": "completed"}


async def test_a_cancel_that_was_stored_before_the_start() -> None:
    """R3: the run starts as a cancelled one and sends no request."""
    ledger = GatedLedger()
    model = ScriptedModel(echo)
    harness, node = await opened(model, ledger)
    ledger.hold(StartRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    await node.accept(CancelRun(RunId("r1"), "ada"))
    ledger.gate.open()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"
    assert model.requests == []


@pytest.mark.parametrize("cancel", [CancelSession(SessionId("id-1"), "ada"), CancelRun(RunId("r1"), "ada")])
async def test_a_cancel_that_was_stored_before_the_end(cancel: Operation) -> None:
    """R3: the client was told that the run is covered, so a decided end is decided again."""
    ledger = GatedLedger()
    harness, node = await opened(ScriptedModel(echo), ledger)
    ledger.hold(EndRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    receipt = await node.accept(cancel)
    assert [run.run_id for run in receipt.runs] == ["r1"]
    ledger.gate.open()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"
    assert harness.end_of("r1").text == "answer 1"
    await harness.assert_valid()
    assert published_without_a_gap(harness)


async def test_a_cancel_before_an_end_that_is_not_put_yet() -> None:
    """The end changes without a refused write; a later local cancel counts it as covered."""
    ledger = GatedLedger()
    harness, node = await opened(ScriptedModel(echo), ledger)
    ledger.error = None
    ledger.refused = (EndRun,)
    await harness.prompt("one", "r1")
    await until(lambda: harness.workspace.engine.storage_fails)
    await node.accept(CancelRun(RunId("r1")))
    harness.workspace.catch_up()
    await until(lambda: harness.workspace.engine.is_covered(harness.session, RunId("r1")))
    ledger.refused = ()
    await harness.workspace.engine.retries.retry(1.0)
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"


async def folding(cancels: Sequence[Operation]) -> Harness:
    """Run r1 folds r2 and r3; the cancels are stored before the fold."""
    ledger = GatedLedger()
    model = GatedModel(ScriptedModel(lambda request: Step((Call("nothing"),)) if _is_first(request) else echo(request)))
    model.before.shut()
    harness, node = await opened(model, ledger)
    await harness.prompt("one", "r1")
    await wait_for_request(model)
    for name in ("r2", "r3"):
        await harness.prompt(name, name, delivery="steer")
    ledger.hold(FoldRun)
    model.before.open()
    await ledger.gate.reached.wait()
    for cancel in cancels:
        await node.accept(cancel)
    ledger.gate.open()
    await harness.wait_until_idle()
    await harness.assert_valid(model.requests)
    return harness


def _is_first(request: ModelRequest) -> bool:
    return sum(message.role == "user" for message in request.messages) == 1 and request.messages[-1].role == "user"


async def test_a_cancelled_run_leaves_the_fold_that_was_not_stored() -> None:
    """R3: its host and the other folded run complete, and its prompt is not in the conversation."""
    harness = await folding([CancelRun(RunId("r2"), "ada")])
    outcomes = {end.run_id: (end.outcome, end.folded_into) for end in harness.ends()}
    assert outcomes == {"r1": ("completed", ""), "r2": ("cancelled", ""), "r3": ("completed", "r1")}
    texts = [text_of(message) for message in await harness.messages() if message.role == "user"]
    assert texts == ["one", "r3"]


async def test_every_folded_run_may_leave() -> None:
    harness = await folding([CancelRun(RunId("r2")), CancelRun(RunId("r3"))])
    assert {end.run_id: end.outcome for end in harness.ends()} == {
        "r1": "completed",
        "r2": "cancelled",
        "r3": "cancelled",
    }


async def test_a_session_cancel_during_a_fold() -> None:
    harness = await folding([CancelSession(SessionId("id-1"))])
    assert {end.outcome for end in harness.ends()} == {"cancelled"}
    assert len(harness.ends()) == 3


async def test_clears_moves_and_deliveries_of_another_node() -> None:
    harness, node, model = await busy()
    for name in ("r2", "r3", "r4"):
        await harness.prompt(name, name, delivery="queue")
    await node.accept(Reorder((RunId("r4"), RunId("r2"), RunId("r3")), RunId("r4")))
    await node.accept(Redeliver(RunId("r3"), "steer"))
    await node.wake()
    queue = [(item.run, item.delivery) for item in harness.workspace.lane(harness.session).queue]
    assert queue == [("r4", "queue"), ("r2", "queue"), ("r3", "steer")]
    await node.accept(Reorder((RunId("r2"), RunId("r4")), RunId("r2")))
    await harness.workspace.inputs.move(RunId("r3"), 0)
    # Both are stored in this order, so both agree on the result.
    stored = [run.run_id for run in await harness.ledger.open_runs(harness.workspace.id)]
    assert [item.run for item in harness.workspace.lane(harness.session).queue] == stored[1:]
    await node.accept(ClearQueue(harness.session, by="ada", keeps_next=True))
    await node.wake()
    assert harness.workspace.lane(harness.session).queue == ()
    model.before.open()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "completed"


async def test_a_closing_owner_leaves_prompts_for_the_next_one() -> None:
    harness, node, _ = await busy()
    closing = start(harness.close())
    await until(lambda: harness.workspace.engine.closing)
    await node.prompt("r2")
    harness.workspace.catch_up()
    await closing
    assert [run.run_id for run in await harness.ledger.open_runs(harness.workspace.id)] == ["r2"]
    again = await Harness.open(ScriptedModel(echo), ledger=harness.ledger, is_shared=True, ids="later")
    HARNESSES.append(again)
    await again.workspace.engine.wait_until_idle(harness.session)
    assert again.end_of("r2").outcome == "completed"


# Approvals.


async def asking(ledger: MemoryLedger | None = None) -> tuple[Harness, Node]:
    """A run whose tools wait for a permission and for answers."""

    async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("bash", "execute", "/project", "run", {"command": "make"}, "make"))
        return ToolOutcome("ran")

    async def ask(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        questions = (Question("", "free_text", "Where?"), Question("", "yes_no", "Now?"))
        answers = await context.ask_questions(QuestionBatch(questions))
        return ToolOutcome("dismissed" if answers is None else f"{answers[0].fill_in_text} {answers[1].yes}")

    def script(request: ModelRequest) -> Step:
        is_first = request.messages[-1].role == "user"
        return Step((Call("bash"), Call("ask")) if is_first else (Say("done"),))

    tools = [SimpleTool("bash", act, is_parallel=True), SimpleTool("ask", ask, is_parallel=True)]
    harness = await Harness.open(ScriptedModel(script), tools=tools, ledger=ledger or MemoryLedger(), is_shared=True)
    harness.workspace.approvals.judge = lambda _: Verdict("ask", "No rule.", ("bash(make)",))
    await harness.prompt("go")
    await until(lambda: harness.workspace.approvals.permissions and harness.workspace.approvals.questions)
    return harness, Node(harness)


async def results(harness: Harness) -> list[str]:
    """Return the results of the tool calls once the run has ended."""
    await harness.wait_until_idle()
    assert not harness.workspace.approvals.permissions
    assert not harness.workspace.approvals.questions
    messages = await harness.messages()
    return [result.content for message in messages for result in message.tool_results]


def decision(harness: Harness, action: GrantAction, reason: str = "") -> CloseRequest:
    (request,) = harness.workspace.approvals.permissions
    denied = action == "deny"
    notice = permission_notice(request, granted=not denied, denied=denied, client=("ada", ""), action=action)
    stored = msgspec.structs.replace(notice.change.object, reason=reason)
    return CloseRequest(PermissionNotificationEvent(Change("created", stored)))


def answers(harness: Harness, *given: QuestionAnswer, cancelled: bool = False) -> CloseRequest:
    (batch,) = harness.workspace.approvals.questions
    notice = question_notice(batch, by="ada", cancelled=cancelled)
    named = tuple(
        msgspec.structs.replace(answer, request_id=question.id)
        for answer, question in zip(given, batch.questions, strict=False)
    )
    stored = msgspec.structs.replace(notice.change.object, answers=named)
    return CloseRequest(QuestionNotificationEvent(Change("created", stored)))


async def test_answers_of_another_node_resolve_the_calls() -> None:
    """R4: with the content of the answers."""
    harness, node = await asking()
    await node.accept(decision(harness, "allow"))
    await node.accept(answers(harness, QuestionAnswer("", fill_in_text="here"), QuestionAnswer("", yes=True)))
    await node.wake()
    assert await results(harness) == ["ran", "here True"]
    assert published_without_a_gap(harness)


async def test_a_denial_and_a_dismissal_of_another_node() -> None:
    harness, node = await asking()
    await node.accept(decision(harness, "deny", " not today "))
    await node.accept(answers(harness, cancelled=True))
    await node.wake()
    assert await results(harness) == ["User denied permission: not today", "dismissed"]


@pytest.mark.parametrize("action", ["allow_session", "allow_always"])
async def test_a_lasting_grant_of_another_node(action: GrantAction) -> None:
    """R4: the next call of the kind is not requested again."""
    harness, node = await asking()
    await node.accept(decision(harness, action))
    await node.accept(answers(harness, cancelled=True))
    await node.wake()
    await results(harness)
    await harness.prompt("again")
    await until(lambda: harness.workspace.approvals.questions)
    assert harness.workspace.approvals.permissions == ()
    await harness.cancel()
    await harness.wait_until_idle()


async def test_a_rule_that_cannot_be_saved_is_reported_to_every_client() -> None:
    def fail(_: str) -> None:
        raise OSError("the disk is full")

    harness, node = await asking()
    harness.workspace.approvals.save_rule = fail
    await node.accept(decision(harness, "allow_always"), answers(harness, cancelled=True))
    await node.wake()
    assert "ran" in await results(harness)
    assert [notice.error for notice in harness.notices() if notice.error] == [
        "It was allowed this once, but the rule could not be saved: the disk is full"
    ]


async def test_the_first_stored_answer_wins() -> None:
    harness, node = await asking()
    remote = decision(harness, "deny", "no")
    (request,) = harness.workspace.approvals.permissions
    await node.accept(remote)
    assert not await harness.workspace.approvals.grant(request.id, "allow")
    await harness.workspace.approvals.dismiss()
    assert (await results(harness))[0] == "User denied permission: no"


# Sessions.


async def test_a_shell_command_of_another_node_is_seen_by_the_active_turn() -> None:
    gate = Gate()

    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await gate()
        return ToolOutcome("waited")

    model = ScriptedModel(lambda request: Step((Call("wait"),)) if len(request.messages) < 4 else Step((Say("seen"),)))
    harness = await Harness.open(model, tools=[SimpleTool("wait", act)], ledger=MemoryLedger(), is_shared=True)
    node = Node(harness)
    await harness.prompt("go", "r1")
    await gate.reached.wait()
    factory = MessageFactory(harness.session, RunId(""), 1, lambda: "shell-1")
    await node.accept(PutMessage(factory.shell(ShellCommand("make", "it is made", 0))))
    await node.wake()
    gate.open()
    await harness.wait_until_idle()
    assert "it is made" in str(msgspec.to_builtins(model.requests[-1].messages))
    await harness.assert_valid(model.requests)


async def test_a_deleted_session_leaves_no_grants() -> None:
    harness, node = await asking()
    await node.accept(decision(harness, "allow_session"), answers(harness, cancelled=True))
    await node.wake()
    await results(harness)
    await node.accept(DeleteSession(harness.session))
    await node.wake()
    assert not harness.workspace.approvals._granted
    assert published_without_a_gap(harness)


# Recovery and takeover.


class SlowOpenRuns(MemoryLedger):
    """A store whose list of open runs is read before, or after, a gate."""

    def __init__(self) -> None:
        super().__init__(jump=0)
        self.gate = Gate(is_open=True)
        self.is_read_first = False

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        if self.is_read_first:
            found = await super().open_runs(workspace)
            await self.gate()
            return found
        await self.gate()
        return await super().open_runs(workspace)


@pytest.mark.parametrize("is_read_first", [True, False])
async def test_inputs_during_the_recovery(*, is_read_first: bool) -> None:
    """R1 R2 R3: each takes effect once, in number order, whether or not the recovery saw it."""
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    ledger = SlowOpenRuns()
    dead = await Harness.open(gated_model(), ledger=ledger, is_shared=True, ids="dead")
    await dead.prompt("one", "r1")
    await dead.prompt("two", "r2", delivery="queue")
    await until(lambda: dead.workspace.engine.open_messages(dead.session))
    ledger.gate.shut()
    ledger.gate.reached.clear()
    ledger.is_read_first = is_read_first
    opening = start(Harness.open(ScriptedModel(echo), ledger=ledger, is_shared=True, ids="next"))
    await ledger.gate.reached.wait()
    node = Node(dead)
    await node.prompt("r3")
    await node.prompt("r4")
    await node.prompt("r5")
    await node.accept(CancelRun(RunId("r2")))
    await node.accept(CancelRun(RunId("r4")))
    await node.accept(Reorder((RunId("r5"), RunId("r3")), RunId("r5")))
    ledger.gate.open()
    harness = await opening
    HARNESSES.append(harness)
    await harness.workspace.engine.wait_until_idle(dead.session)
    harness.workspace.catch_up()
    await harness.workspace.engine.wait_until_idle(dead.session)
    outcomes = {end.run_id: end.outcome for end in harness.ends()}
    assert outcomes == {
        "r1": "interrupted",
        "r2": "cancelled",
        "r3": "completed",
        "r4": "cancelled",
        "r5": "completed",
    }
    assert not reports, "a run that the recovery has ended must not enter a lane, where it would end again"
    published = numbers(harness)
    assert published == list(range(published[0], published[0] + len(published)))


async def test_a_request_that_is_answered_during_the_recovery_is_not_withdrawn() -> None:
    """R4: a request is closed once."""

    class Answered(MemoryLedger):
        after_read: Callable[[], Awaitable[object]] | None = None

        async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
            page = await super().events_after(workspace, cursor, limit)
            if not page and self.after_read is not None:
                act, self.after_read = self.after_read, None
                await act()
            return page

    ledger = Answered(jump=0)
    dead, node = await asking(ledger)
    operation = decision(dead, "deny", "no")
    ledger.after_read = lambda: node.accept(operation)
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger, is_shared=True, ids="next")
    HARNESSES.append(harness)
    events = [event for _, event in harness.published.events if isinstance(event, PermissionNotificationEvent)]
    assert [event.change.object.reason for event in events] == ["no"]
    assert [type(event) for event in harness.workspace.recovered.withdrawn] == [QuestionNotificationEvent]


async def test_the_events_of_a_successor_are_no_inputs() -> None:
    """A former owner that reads the log finds that it is one, and starts nothing."""
    harness, node, model = await busy()
    lost = asyncio.Event()
    harness.workspace.recorder._on_owner_changed = lost.set
    ledger = harness.ledger
    await ledger.open_workspace("/project")
    await node.prompt("r2")
    harness.workspace.catch_up()
    await lost.wait()
    assert harness.workspace.lane(harness.session).queue == ()
    lost.clear()
    with pytest.raises(OwnerChanged):
        await harness.prompt("three", "r3")
    assert lost.is_set()
    model.before.open()
    await harness.wait_until_idle()


async def test_a_failing_read_is_repeated() -> None:
    """After a wake-up with the next one; before an answer at once, because the write is stored."""

    class Failing(MemoryLedger):
        failures = 0

        async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
            if self.failures:
                self.failures -= 1
                raise StorageUnavailable
            return await super().events_after(workspace, cursor, limit)

        async def inputs_after(
            self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
        ) -> Sequence[tuple[int, bytes]]:
            if self.failures:
                self.failures -= 1
                raise StorageUnavailable
            return await super().inputs_after(workspace, epoch, cursor, limit)

    ledger = Failing()
    harness, node = await opened(gated_model(), ledger)
    await node.prompt("r1")
    ledger.failures = 1
    await node.wake()
    assert not harness.workspace.is_busy()
    ledger.failures = 2
    await harness.prompt("two", "r2")
    assert [item.run for item in harness.workspace.lane(harness.session).queue] == ["r2"]
    assert ledger.failures == 0


async def test_an_input_that_cannot_be_applied_does_not_stop_the_others() -> None:
    harness, node = await opened(ScriptedModel(echo))
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["message"]))
    original = harness.workspace.engine.cancel_for_node

    def fail(session: SessionId, run: RunId) -> None:
        harness.workspace.engine.cancel_for_node = original  # type: ignore[method-assign]
        raise RuntimeError("a bug")

    harness.workspace.engine.cancel_for_node = fail  # type: ignore[method-assign]
    await node.prompt("r1")
    await node.accept(CancelRun(RunId("r1")))
    await node.prompt("r2")
    await node.wake()
    await harness.wait_until_idle()
    assert failures == ["an input of another node could not be applied"]
    assert {end.run_id for end in harness.ends()} == {"r1", "r2"}


async def test_a_former_owner_does_not_report_that_a_request_is_closed() -> None:
    """R10: a node that was suspended does not know the requests of its successor, where the answer still counts."""
    harness, _ = await opened(ScriptedModel(echo))
    approvals = harness.workspace.approvals
    answers: list[Callable[[], Awaitable[bool]]] = [
        lambda: approvals.grant("request", "allow"),
        lambda: approvals.answer("batch", ()),
        lambda: approvals.dismiss("batch"),
    ]
    assert [await answer() for answer in answers] == [False] * 3
    await harness.ledger.open_workspace(harness.workspace.record.path)
    for answer in answers:
        with pytest.raises(OwnerChanged):
            await answer()
