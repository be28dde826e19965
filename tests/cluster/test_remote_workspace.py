"""A workspace on a node that does not own it: inputs are stored, reads and streams follow the log."""

from collections.abc import AsyncIterator

import pytest

from holdfast.bus.bus import Subscription
from holdfast.cluster.remote_workspace import RemoteWorkspace, open_remote_workspace
from holdfast.domain.approvals import PermissionRequest, Question, QuestionAnswer, QuestionRequest
from holdfast.domain.errors import (
    BadRequest,
    EmptyPrompt,
    HoldfastError,
    NotWaiting,
    RunFolded,
    RunIdTaken,
    SessionBusy,
    StorageUnavailable,
    StorageUnknown,
    UnknownRun,
    UnknownSession,
)
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    PermissionRequestEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.runs import Delivery, Prompt
from holdfast.domain.store_operations import Announce, EndRun, FoldRun, StartRun
from holdfast.engine.approvals import permission_notice
from holdfast.engine.run_lifecycle import Head, Lane, Waiting
from holdfast.testing.conformance import WorkspaceOwner
from holdfast.testing.harness import CountingClock, counting_ids
from holdfast.testing.memory_ledger import MemoryLedger

SESSION = SessionId("s")


class Cluster:
    """The rows of a workspace, its owner without an engine, and two nodes that do not own it."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.ledger = MemoryLedger(jump=0, fail=lambda: self.failures.pop(0) if self.failures else None)
        self.notified = 0

    async def open(self) -> None:
        self.owner = await WorkspaceOwner.with_session(self.ledger)
        self.node, self.other = await self._join("b"), await self._join("c")

    async def _join(self, name: str) -> RemoteWorkspace:
        return await open_remote_workspace(
            self.owner.record.path, self.ledger, CountingClock(), counting_ids(name), self._notify
        )

    def _notify(self) -> None:
        self.notified += 1

    async def prompt(self, name: str, delivery: Delivery = "queue", text: str = "go") -> int:
        run = await self.node.inputs.submit(Prompt(SESSION, text, run_id=RunId(name), delivery=delivery))
        return run.position

    async def lane(self) -> Lane:
        """Return the lane as the other node sees it."""
        await self.other.catch_up()
        return self.other.lane(SESSION)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.open()
    yield cluster
    await cluster.node.close()
    await cluster.other.close()


async def refusal(error: type[HoldfastError], call: object) -> HoldfastError:
    with pytest.raises(error) as caught:
        await call  # type: ignore[misc]
    return caught.value


async def test_prompts_are_stored_and_visible_on_every_node(cluster: Cluster) -> None:
    """R1, R6."""
    subscription = cluster.other.bus.subscribe(0)
    assert [await cluster.prompt(name) for name in ("r1", "r2")] == [0, 1]
    assert cluster.notified == 2
    assert await cluster.lane() == Lane(Head(RunId("r1")), (), (Waiting(RunId("r2"), "queue"),))
    assert cluster.other.is_busy()
    assert cluster.other.is_busy(SESSION)
    assert not cluster.other.is_busy(SessionId("t"))
    assert await numbers(subscription, 3) == [1, 2, 3]


async def numbers(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [frame.number for frame in await subscription.take() if frame.number]
    subscription.close()
    return found


async def test_a_repeated_prompt_gets_the_same_response(cluster: Cluster) -> None:
    assert await cluster.prompt("r1") == await cluster.prompt("r1") == 0
    await refusal(RunIdTaken, cluster.prompt("r1", text="something else"))
    await refusal(SessionBusy, cluster.prompt("r2", "reject"))
    await refusal(EmptyPrompt, cluster.prompt("r3", text=" "))
    await refusal(UnknownSession, cluster.node.inputs.submit(Prompt(SessionId("nowhere"), "go")))


async def test_an_input_with_an_unknown_result_is_repeated(cluster: Cluster) -> None:
    """R1: the client gets the response of the first attempt."""
    cluster.failures.append(StorageUnknown())
    assert await cluster.prompt("r1") == 0
    cluster.failures.append(StorageUnknown())
    assert await cluster.node.inputs.cancel(SESSION) == ("r1",)
    cluster.failures += [StorageUnknown(), StorageUnavailable()]
    assert (await cluster.node.sessions.create("new")).title == "new"
    cluster.failures.append(StorageUnavailable())
    await refusal(StorageUnavailable, cluster.prompt("r2"))
    assert [run.run_id for run in await cluster.ledger.open_runs(cluster.owner.id)] == ["r1"]


async def test_cancels_and_clears(cluster: Cluster) -> None:
    for name in ("r1", "r2", "r3"):
        await cluster.prompt(name)
    assert (await cluster.node.inputs.cancel_run(RunId("r3"))).must_cancel
    assert await cluster.node.inputs.clear(SESSION) == ("r2", "r3")
    assert await cluster.lane() == Lane(Head(RunId("r1")))
    assert await cluster.node.inputs.cancel(SESSION) == ("r1", "r2", "r3")
    assert (await cluster.lane()).head == Head(RunId("r1"), "cancelling", "cancel")
    await refusal(UnknownRun, cluster.node.inputs.cancel_run(RunId("nothing")))
    assert await cluster.node.inputs.cancel(SessionId("idle")) == ()
    await cluster.owner.do(*(EndRun(RunId(name), "cancelled", 9) for name in ("r1", "r2", "r3")))
    assert await cluster.lane() == Lane()
    assert (await cluster.node.inputs.cancel_run(RunId("r1"))).outcome == "cancelled"


async def test_a_folded_run_is_not_cancelled_alone(cluster: Cluster) -> None:
    await cluster.prompt("r1")
    await cluster.prompt("r2", "steer")
    await cluster.owner.do(StartRun(RunId("r1"), 7))
    await cluster.owner.do(FoldRun(RunId("r2"), RunId("r1"), 8))
    assert await cluster.lane() == Lane(Head(RunId("r1"), "active"), (RunId("r2"),))
    error = await refusal(RunFolded, cluster.node.inputs.cancel_run(RunId("r2")))
    assert "r1" in str(error)


async def test_moves_and_deliveries(cluster: Cluster) -> None:
    for name in ("r1", "r2", "r3", "r4"):
        await cluster.prompt(name)
    await cluster.node.inputs.move(RunId("r4"), 0)
    await cluster.node.inputs.move(RunId("r2"), 99)
    await cluster.node.inputs.redeliver(RunId("r3"), "steer")
    queue = [(item.run, item.delivery) for item in (await cluster.lane()).queue]
    assert queue == [("r4", "queue"), ("r3", "steer"), ("r2", "queue")]
    await refusal(NotWaiting, cluster.node.inputs.move(RunId("r1"), 0))
    await cluster.owner.do(StartRun(RunId("r1"), 7))
    await refusal(NotWaiting, cluster.node.inputs.redeliver(RunId("r1"), "queue"))
    await refusal(UnknownRun, cluster.node.inputs.redeliver(RunId("nothing"), "queue"))
    await refusal(UnknownRun, cluster.node.inputs.move(RunId("nothing"), 0))


async def test_a_summary_is_refused_while_the_session_is_busy(cluster: Cluster) -> None:
    run = await cluster.node.inputs.summarize(SESSION)
    assert run.kind == "summary"
    await refusal(SessionBusy, cluster.node.inputs.summarize(SESSION))


async def test_sessions(cluster: Cluster) -> None:
    created = await cluster.node.sessions.create("one")
    assert (await cluster.node.sessions.rename(created.id, "two")).title == "two"
    await refusal(UnknownSession, cluster.node.sessions.rename(SessionId("nowhere"), "x"))
    await cluster.node.sessions.note_shell(created.id, ShellCommand("make", "made", 0))
    await cluster.node.sessions.note_shell(SessionId("nowhere"), ShellCommand("make", "made", 0))
    assert len(await cluster.ledger.messages(cluster.owner.id, created.id)) == 1
    await cluster.node.sessions.delete(created.id)
    await refusal(UnknownSession, cluster.node.sessions.delete(created.id))
    assert await cluster.ledger.session(cluster.owner.id, created.id) is None


async def test_a_busy_session_is_deleted_once_its_runs_have_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.prompt("r1")
    monkeypatch.setattr("holdfast.cluster.stored_inputs._DELETE_TIMEOUT", 0.0)
    error = await refusal(StorageUnavailable, cluster.node.sessions.delete(SESSION))
    assert "no server has ended them yet" in str(error)
    assert (await cluster.owner.get("r1")).must_cancel
    await cluster.owner.do(EndRun(RunId("r1"), "cancelled", 9))
    await cluster.node.sessions.delete(SESSION)
    assert await cluster.ledger.session(cluster.owner.id, SESSION) is None


async def ask(cluster: Cluster) -> None:
    """Store a permission request and a batch of questions as the owner does."""
    call = ToolCallId("c")
    request = PermissionRequest("p", SESSION, call, "bash", "run", "execute", {}, "/w", rules=("bash(make)",))
    batch = QuestionRequest("b", SESSION, call, (Question("q", "yes_no", "?"), Question("f", "free_text", "?")))
    await cluster.owner.do(
        Announce(PermissionRequestEvent(Change("created", request))),
        Announce(permission_notice(request, granted=False, denied=False)),
        Announce(QuestionRequestEvent(Change("created", batch))),
    )


async def test_the_first_answer_of_any_node_wins(cluster: Cluster) -> None:
    """R4: also on a node that has not read the request yet."""
    await ask(cluster)
    assert await cluster.node.approvals.grant("p", "deny", reason=" no ", by="ada")
    assert not await cluster.other.approvals.grant("p", "allow")
    with pytest.raises(BadRequest):
        await cluster.node.approvals.answer("b", [QuestionAnswer("f", yes=True)])
    assert await cluster.other.approvals.answer("", [QuestionAnswer("q", yes=True)])
    assert not await cluster.node.approvals.answer("b", [])
    await cluster.node.catch_up()
    assert cluster.node.approvals.permissions == ()
    assert cluster.node.approvals.questions == ()
    assert cluster.node.approvals.pause > 0
    stored = [event for _, event in await cluster.owner.events()][-2:]
    assert "reason='no'" in str(stored[0])
    assert "QuestionAnswer(request_id='f'" in str(stored[1])


async def test_a_dismissal_and_an_answer_with_an_unknown_result(cluster: Cluster) -> None:
    await ask(cluster)
    await cluster.node.catch_up()
    cluster.failures.append(StorageUnknown())
    assert await cluster.node.approvals.grant("p", "allow_always")
    assert await cluster.node.approvals.dismiss()
    assert not await cluster.node.approvals.dismiss()
    assert not await cluster.node.approvals.dismiss("b")
    await cluster.other.catch_up()
    assert cluster.other.approvals.questions == ()


async def test_requests_that_were_open_before_the_node_joined(cluster: Cluster) -> None:
    await cluster.prompt("r1")
    await ask(cluster)
    late = await open_remote_workspace(cluster.owner.record.path, cluster.ledger, CountingClock(), counting_ids("d"))
    assert [request.id for request in late.approvals.permissions] == ["p"]
    assert [batch.id for batch in late.approvals.questions] == ["b"]
    assert late.is_busy(SESSION)
    assert (late.open_parts(), late.open_messages(SESSION)) == ([], [])
    await late.close()


async def test_a_stream_resumes_on_another_node_that_is_behind(cluster: Cluster) -> None:
    """R6: every event once, although the second node has not read them all."""
    first = cluster.node.bus.subscribe(0)
    await cluster.prompt("r1")
    await cluster.node.catch_up()
    await cluster.prompt("r2")
    await cluster.node.catch_up()
    assert await numbers(first, 3) == [1, 2, 3]
    second = cluster.other.bus.subscribe(3)
    await cluster.owner.do(EndRun(RunId("r1"), "completed", 9))
    await cluster.other.catch_up()
    frames = [frame for frame in [*await second.take(), *await second.take()] if frame.number]
    assert [frame.number for frame in frames] == [4]
    assert isinstance(frames[0].event, RunCompleteEvent)
    second.close()


async def test_the_end_of_a_turn_is_published_after_the_end_of_its_run(cluster: Cluster) -> None:
    """A notification arrives before the log was read."""
    await cluster.prompt("r1")
    await cluster.other.catch_up()
    subscription = cluster.other.bus.subscribe(cluster.other.cursor)
    await cluster.owner.do(EndRun(RunId("r1"), "completed", 9))
    notice = AgentNotice("agent_finished", session_id=SESSION)
    cluster.other.receive(AgentEvent(Change("created", notice)))
    events: list[object] = []
    while not any(isinstance(event, AgentEvent) for event in events):
        events += [frame.event for frame in await subscription.take()]
    ends = [type(event) for event in events if isinstance(event, RunCompleteEvent | AgentEvent)]
    assert ends == [RunCompleteEvent, AgentEvent]
    assert not cluster.other.is_busy(SESSION)
    subscription.close()
