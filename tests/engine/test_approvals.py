"""Approvals under every interleaving: resolved once, withdrawn before their run's end, ignored after a cancel."""

import asyncio
import random
from collections.abc import Sequence
from itertools import product

import msgspec
import pytest

from holdfast.domain.approvals import (
    Choice,
    GrantAction,
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    Verdict,
)
from holdfast.domain.errors import BadRequest, StorageUnavailable
from holdfast.domain.events import (
    ApprovalEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
    decode_event,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import Answer, CloseRequest, Write
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.approvals import check_answers, find_batch, subject_of
from holdfast.engine.recovery import UnansweredRequests
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import Gate, SimpleTool, settle_down, until
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time, run_seeded

ACTIONS: tuple[GrantAction, ...] = ("allow", "allow_session", "allow_always", "deny")


class Scenario:
    """A workspace whose model calls one tool that requests permission, and one that submits questions."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.ran: list[str] = []
        self._ledger = ledger

    async def open(self) -> Harness:
        async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            await context.permit(Permit("bash", "execute", "/project", "run", {"command": "make"}, "make"))
            self.ran.append(context.run_id)
            return ToolOutcome("ran")

        async def ask_questions(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            answers = await context.ask_questions(QuestionBatch((Question("", "yes_no", "?"),)))
            return ToolOutcome("dismissed" if answers is None else str(answers[0].yes))

        def script(request: ModelRequest) -> Step:
            is_first = request.messages[-1].role == "user"
            return Step((Call("bash"), Call("ask")) if is_first else (Say("done"),))

        tools = [SimpleTool("bash", act, is_parallel=True), SimpleTool("ask", ask_questions, is_parallel=True)]
        harness = await Harness.open(ScriptedModel(script), tools=tools, ledger=self._ledger)
        harness.workspace.approvals.judge = lambda _: Verdict("ask", "No rule.", ("bash(make)",))
        return harness


async def test_r4_recovery_withdraws_the_requests_of_interrupted_runs() -> None:
    """R4, R10: once, before the end of the run, and without a client name. Answered requests are not closed again."""
    ledger = MemoryLedger()
    scenario = Scenario(ledger)
    dead = await scenario.open()
    other = (await dead.workspace.sessions.create("other")).id
    asks = dead.workspace.approvals

    async def until_open(count: int) -> None:
        await until(lambda: len(asks.permissions) == len(asks.questions) == count)

    # The requests of the first run are older than the second run.
    for count, session in enumerate((dead.session, other), 1):
        await dead.workspace.inputs.submit(_prompt(session))
        await until_open(count)
    await asks.grant(asks.permissions[0].id, "allow", by="a client")
    bodies = [body for _, body in await ledger.events_after(dead.workspace.record.id, 0, 1_000)]
    again = await Harness.open(ScriptedModel([]), ledger=ledger, ids="later")
    published = [event for _, event in again.published.events]
    kinds = [type(event) for event in published]
    assert kinds.count(RunCompleteEvent) == 2
    notices = [event.change.object for event in published if isinstance(event, PermissionNotificationEvent)]
    assert [(item.session_id, item.withdrawn, item.by) for item in notices] == [(other, True, "")]
    closed = [event.change.object for event in published if isinstance(event, QuestionNotificationEvent)]
    assert {(item.session_id, item.withdrawn, item.by) for item in closed} == {
        (dead.session, True, ""),
        (other, True, ""),
    }
    assert kinds.index(PermissionNotificationEvent) < kinds.index(RunCompleteEvent)
    again.published.events[:0] = [(number, decode_event(body)) for number, body in enumerate(bodies, 1)]
    _check(again)
    third = await Harness.open(ScriptedModel([]), ledger=ledger, ids="third")
    assert not any(isinstance(event, PermissionNotificationEvent) for _, event in third.published.events)
    for harness in (dead, again, third):
        await harness.close()


async def _wait_for_request(harness: Harness) -> None:
    asks = harness.workspace.approvals
    await until(lambda: len(asks.permissions) == len(asks.questions) == 1)


async def _results(harness: Harness, session: SessionId) -> dict[str, str]:
    messages = await harness.messages(session)
    return {result.name: result.content for message in messages for result in message.tool_results}


@pytest.mark.parametrize("how", ["cancelled", "interrupted", "killed"])
async def test_call_that_was_not_approved_is_reported_without_effects(how: str) -> None:
    """Cancelled, stopped by a shutdown, or found by the next server after a kill."""
    ledger = MemoryLedger()
    harness = await Scenario(ledger).open()
    await harness.workspace.inputs.submit(_prompt(harness.session))
    await _wait_for_request(harness)
    later = harness
    if how == "cancelled":
        await harness.cancel()
        await harness.wait_until_idle()
    else:
        if how == "interrupted":
            await harness.close()
        later = await Harness.open(ScriptedModel([]), ledger=ledger, ids="later")
    results = await _results(later, harness.session)
    texts = {"cancelled": "Cancelled by the user. This call was not run."}
    wanted = texts.get(how, "Interrupted: the server stopped before this call was run.")
    assert results == {"bash": wanted, "ask": wanted}
    for each in {id(item): item for item in (harness, later)}.values():
        await each.close()


RUN, CALL = RunId("r1"), ToolCallId("c1")


def _requested(ask: str = "p1", *, run: RunId = RUN, continues: bool = False) -> ApprovalEvent:
    request = PermissionRequest(
        ask, SessionId("s"), CALL, "bash", "run", "execute", {}, "/w", run_id=run, continues=continues
    )
    return PermissionRequestEvent(Change("created", request))


def _notification(ask: str = "p1", *, granted: bool = False, denied: bool = False) -> ApprovalEvent:
    return PermissionNotificationEvent(Change("created", PermissionNotification(CALL, granted, denied, ask)))


_QUESTION = QuestionRequestEvent(Change("created", QuestionRequest("q1", SessionId("s"), CALL, (), run_id=RUN)))
_ANSWERED = QuestionNotificationEvent(Change("created", QuestionNotification("q1")))

HISTORIES: dict[str, tuple[tuple[ApprovalEvent, ...], bool]] = {
    "requested": ((_requested(), _notification()), True),
    "denied, and its result was lost": ((_requested(), _notification(denied=True)), True),
    "allowed": ((_requested(), _notification(granted=True)), False),
    "allowed, then requested again": (
        (_requested(), _notification(granted=True), _requested("p2", continues=True)),
        False,
    ),
    "allowed by a rule, then requested": ((_requested(continues=True),), False),
    "requested by another run": ((_requested(run=RunId("r2")),), False),
    "a question": ((_QUESTION,), True),
    "a question that was answered": ((_QUESTION, _ANSWERED), False),
}


@pytest.mark.parametrize("history", HISTORIES)
def test_after_a_kill_the_log_identifies_calls_without_effects(history: str) -> None:
    events, is_certain = HISTORIES[history]
    left = UnansweredRequests({RUN})
    for event in events:
        left.feed(msgspec.json.encode(event))
    assert left.not_run == ({CALL} if is_certain else set())


async def test_a_later_request_of_a_call_is_marked_as_continuing() -> None:
    """The call was granted something before: if the server dies now, it may have had effects."""

    async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        for place in ("/one", "/two"):
            await context.permit(Permit("fetch", "fetch", place, "get", {}))
        return ToolOutcome("done")

    harness = await Harness.open(ScriptedModel([Step((Call("fetch"),))]), tools=[SimpleTool("fetch", act)])
    harness.workspace.approvals.judge = lambda permit: Verdict("allow" if permit.path == "/one" else "ask")
    await harness.prompt("go", "r1")
    asks = harness.workspace.approvals
    await until(lambda: len(asks.permissions) == 1)
    assert asks.permissions[0].continues
    await harness.cancel()
    await harness.wait_until_idle()
    assert "was not undone" in (await _results(harness, harness.session))["fetch"]


async def _answer_randomly(harness: Harness, rng: random.Random, seen: list[bool]) -> None:
    """Answer open requests at random, at random times."""
    asks = harness.workspace.approvals
    for _ in range(rng.randint(0, 60)):
        await asyncio.sleep(0)
    for ask in asks.permissions:
        action = rng.choice(ACTIONS)
        seen.append(await asks.grant(ask.id, action, by=str(len(seen))))
    for batch in asks.questions:
        if rng.random() < 0.5:
            await asks.dismiss(batch.id)
        else:
            await asks.answer("", [QuestionAnswer(batch.questions[0].id, yes=True)])


def _check(harness: Harness) -> None:
    """Check that each request is closed exactly once, in the log, before the end of its run."""
    opened: dict[str, str] = {}
    closed: list[str] = []
    ended: set[str] = set()
    for number, event in harness.published.events:
        match event:
            case PermissionRequestEvent(change=change) | QuestionRequestEvent(change=change):
                assert number is not None
                assert change.object.run_id not in ended
                opened[change.object.id] = change.object.run_id
            case PermissionNotificationEvent(change=change) if change.object.granted or change.object.denied:
                assert opened[change.object.id] not in ended
                closed.append(change.object.id)
            case QuestionNotificationEvent(change=change):
                assert opened[change.object.batch_id] not in ended
                closed.append(change.object.batch_id)
            case RunCompleteEvent(change=change):
                ended.add(change.object.run_id)
                open_now = {ask for ask, run in opened.items() if run == change.object.run_id} - set(closed)
                assert not open_now, "R4: the end of a run is published while a request of it is open"
            case _:
                pass
    assert sorted(closed) == sorted(opened), "R10: closed exactly once"


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_r10_no_interleaving_closes_a_request_twice_or_leaves_one_open(first: int) -> None:
    async def live(rng: random.Random) -> None:
        scenario = Scenario()
        harness = await scenario.open()
        run = await harness.workspace.inputs.submit(_prompt(harness.session))
        resolved: list[bool] = []
        people = [_answer_randomly(harness, rng, resolved) for _ in range(3)]
        if rng.random() < 0.6:
            people.append(_cancel(harness, rng))
        await asyncio.gather(*people)
        while harness.workspace.engine.is_busy():
            await _answer_randomly(harness, rng, resolved)
            await asyncio.sleep(rng.random() / 100)
        await harness.wait_until_idle()
        _check(harness)
        assert harness.workspace.approvals.permissions == ()
        assert harness.workspace.approvals.questions == ()
        granted = [
            event.change.object.granted
            for _, event in harness.published.events
            if isinstance(event, PermissionNotificationEvent)
        ]
        assert not scenario.ran or any(granted), "a tool ran without a grant"
        assert run.run_id in {end.run_id for end in harness.ends()}
        await harness.close()

    for seed in range(first, first + 100):
        run_seeded(live, seed)


async def _cancel(harness: Harness, rng: random.Random) -> None:
    for _ in range(rng.randint(0, 120)):
        await asyncio.sleep(0)
    await harness.cancel()


def _prompt(session: SessionId) -> Prompt:
    return Prompt(session, "go", interactive=True)


class BreakingDisk:
    """A disk that fails as soon as a request is about to be stored, until it is repaired."""

    def __init__(self) -> None:
        self.is_broken = False

    def fail(self) -> Exception | None:
        return StorageUnavailable() if self.is_broken else None

    def judge(self, _: Permit) -> Verdict:
        self.is_broken = True
        return Verdict("ask")


def test_request_that_cannot_be_stored_fails_its_run_and_is_never_published() -> None:
    async def live() -> None:
        disk = BreakingDisk()
        scenario = Scenario(MemoryLedger(fail=disk.fail))
        harness = await scenario.open()
        asks = harness.workspace.approvals
        asks.judge = disk.judge
        await harness.workspace.inputs.submit(_prompt(harness.session))
        await settle_down(200)
        assert asks.permissions == ()
        disk.is_broken = False
        await harness.wait_until_idle()
        assert scenario.ran == []
        assert harness.ends()[0].outcome == "failed"
        await harness.close()

    in_virtual_time(live)


def _open(harness: Harness) -> tuple[int, int]:
    return len(harness.workspace.approvals.permissions), len(harness.workspace.approvals.questions)


def test_a_request_expires_after_a_day_without_clients() -> None:
    """While a client is attached it waits without limit; the time starts again each time the last client detaches."""

    async def live() -> None:
        scenario = Scenario()
        harness = await scenario.open()
        asks = harness.workspace.approvals
        asks.client_attached()
        await harness.workspace.inputs.submit(_prompt(harness.session))
        await asyncio.sleep(10 * asks.timeout())
        assert _open(harness) == (1, 1)
        asks.client_detached()
        await asyncio.sleep(asks.timeout() - 1)
        asks.client_attached()
        await asyncio.sleep(asks.timeout() / 10)
        assert _open(harness) == (1, 1)
        asks.client_detached()
        await asyncio.sleep(asks.timeout() + 1)
        assert _open(harness) == (0, 0)
        await harness.wait_until_idle()
        assert scenario.ran == []
        _check(harness)
        await harness.close()

    in_virtual_time(live)


def test_answer_is_matched_to_its_batch() -> None:
    first = QuestionRequest(
        "b1", SessionId("s"), ToolCallId("c"), (Question("q1", "yes_no", "?"), Question("q2", "free_text", "?"))
    )
    second = QuestionRequest("b2", SessionId("s"), ToolCallId("c"), (Question("q3", "yes_no", "?"),))
    batches = (first, second)

    def found(batch: str, *questions: str) -> QuestionRequest | None:
        return find_batch(batches, batch, {name: QuestionAnswer(name) for name in questions})

    assert found("", "q3") is second
    assert found("", "q2") is first
    assert found("b2", "q3") is second
    assert found("b2") is second
    assert found("b1", "q3") is None
    assert found("", "q1", "q3") is None
    assert found("", "nosuch") is None
    assert found("") is None
    assert found("nosuch") is None


def test_invalid_answers_are_refused() -> None:
    choices = (Choice("a", "A"), Choice("b", "B"))
    batch = QuestionRequest(
        "b", SessionId("s"), ToolCallId("c"), (Question("q", "multi_choice", "?", choices=choices),)
    )
    check_answers(batch, {"q": QuestionAnswer("q", ("a", "b"), "and more", notes={"a": "x"})})
    check_answers(batch, {})
    for wrong in (QuestionAnswer("q", ("c",)), QuestionAnswer("q", ("a", "a")), QuestionAnswer("q", yes=True)):
        with pytest.raises(BadRequest):
            check_answers(batch, {"q": wrong})


def test_c60_the_subject_of_a_grant() -> None:
    """C-60: command lines, files, addresses and other parameters are each subjects of their own."""

    def file(path: str, content: str = "") -> Permit:
        return Permit("write", "write", path, "", {"file_path": path, "new_content": content})

    def other(**params: object) -> Permit:
        return Permit("mcp_x_y", "execute", "/w", "", params)

    def line(text: str, where: str = "/w") -> Permit:
        return Permit("bash", "execute", where, "", {"description": text * 2}, text)

    assert subject_of(file("/w/a", "1")) == subject_of(file("/w/a", "2"))
    assert subject_of(other(a=1, b=2)) == subject_of(other(b=2, a=1))
    assert subject_of(line("make")) == subject_of(line("make"))
    different = [file("/w/a"), file("/w/b"), other(a=1), other(a=2), line("make"), line("make "), line("make", "/w/x")]
    different += [Permit("fetch", "fetch", "/w", "", {"url": url}) for url in ("https://a", "https://b")]
    different += [Permit("ls", "list", path, "", {"path": "x"}) for path in ("/a", "/b")]
    fields = {"url": ("https://a", "https://b"), "file_path": ("/w/a", "/w/b")}
    different += [
        Permit(tool, action, path, "", dict(zip(fields, values, strict=True)))
        for tool, action, path, *values in product(("download", "other"), ("download", "use"), "ab", *fields.values())
    ]
    assert len({subject_of(permit) for permit in different}) == len(different)


def test_grants_of_a_session_cover_its_sub_agents() -> None:
    """A sub-agent works in a child session; a grant of the parent applies there, but not the other way round."""

    async def live() -> None:
        scenario = Scenario()
        harness = await scenario.open()
        asks = harness.workspace.approvals
        other = (await harness.workspace.sessions.create("Other")).id
        below = (await harness.workspace.sessions.create("Below", harness.session)).id
        for session, is_asked in ((harness.session, True), (below, False), (other, True)):
            run = await harness.workspace.inputs.submit(_prompt(session))
            await asyncio.sleep(asks.timeout() / 1_000_000)
            assert bool(asks.permissions) is is_asked, session
            for ask in asks.permissions:
                await asks.grant(ask.id, "allow_session")
            for batch in asks.questions:
                await asks.dismiss(batch.id)
            await harness.workspace.engine.wait_until_idle(session)
            assert run.run_id in scenario.ran
        await harness.close()

    in_virtual_time(live)


class HeldLedger(MemoryLedger):
    """Holds, or fails, the commit of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.fails = False

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(operation, CloseRequest) for write in writes for operation in write.operations):
            if self.fails:
                raise StorageUnavailable
            await self.gate()
        return await super().commit(workspace, epoch, ticket, writes)


async def test_r10_an_answer_takes_effect_when_it_is_stored() -> None:
    """Until then the request is open, the call waits, and no rule is saved."""
    ledger = HeldLedger()
    scenario = Scenario(ledger)
    harness = await scenario.open()
    asks = harness.workspace.approvals
    saved: list[str] = []
    asks.save_rule = saved.append
    await harness.workspace.inputs.submit(_prompt(harness.session))
    await until(lambda: _open(harness) == (1, 1))
    tasks = TaskOwner()
    first = tasks.start(asks.grant(asks.permissions[0].id, "allow_always", by="one"), name="first")
    await ledger.gate.reached.wait()
    second = tasks.start(asks.grant(asks.permissions[0].id, "deny", by="two"), name="second")
    answered = tasks.start(asks.answer("", [QuestionAnswer(asks.questions[0].questions[0].id, yes=True)]), name="third")
    await settle_down(200)
    assert (scenario.ran, saved, _open(harness)) == ([], [], (1, 1))
    ledger.gate.open()
    assert (await first, await second, await answered) == (True, False, True)
    await harness.wait_until_idle()
    assert (len(scenario.ran), saved) == (1, ["bash(make)"])
    _check(harness)
    await harness.close()


async def test_r10_an_answer_that_cannot_be_stored_leaves_the_request_open() -> None:
    ledger = HeldLedger()
    ledger.gate.open()
    scenario = Scenario(ledger)
    harness = await scenario.open()
    asks = harness.workspace.approvals
    saved: list[str] = []
    asks.save_rule = saved.append
    await harness.workspace.inputs.submit(_prompt(harness.session))
    await until(lambda: _open(harness) == (1, 1))
    ledger.fails = True
    for action in ACTIONS:
        with pytest.raises(StorageUnavailable):
            await asks.grant(asks.permissions[0].id, action)
    for close in (asks.dismiss(), asks.answer("", [QuestionAnswer(asks.questions[0].questions[0].id, yes=True)])):
        with pytest.raises(StorageUnavailable):
            await close
    assert (scenario.ran, saved, _open(harness)) == ([], [], (1, 1))
    ledger.fails = False
    assert await asks.grant(asks.permissions[0].id, "allow")
    assert await asks.dismiss()
    await harness.wait_until_idle()
    assert len(scenario.ran) == 1
    _check(harness)
    await harness.close()
