"""Permission requests: rules, modes and grants that decide them, and their timeout from every initial state."""

import asyncio
import random
from itertools import product
from typing import Literal

import pytest

from engine.helpers import PLAIN, results_of, sleep_virtual
from holdfast.domain.approvals import PermissionRequest, Question, QuestionAnswer, QuestionRequest, Verdict
from holdfast.domain.errors import PermissionDenied, StorageUnavailable
from holdfast.domain.events import PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import CloseRequest
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.approvals import Approvals
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedLedger, SimpleTool, start, until
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import in_virtual_time, run_seeded

PERMIT = Permit("bash", "execute", "/project", "run", {"command": "make"}, "make")
OTHER = Permit("bash", "execute", "/project", "run", {"command": "ls"}, "ls")
Kind = Literal["permission", "question"]


class Context:
    """Context of the call that makes the request."""

    def __init__(self, session: SessionId) -> None:
        self.session_id = session
        self.run_id = RunId("r1")
        self.tool_call_id = ToolCallId("call")


async def open_harness(ledger: GatedLedger | None = None) -> Harness:
    return await Harness.open(ScriptedModel([], info=PLAIN), ledger=ledger)


def timers() -> int:
    """Return the number of running timers."""
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


# Decisions.


def expected_decision(
    verdict: Verdict, *, interactive: bool, yolo: bool, skips: bool, insists: bool, granted: str
) -> Literal["refuse", "allow", "ask"]:
    """Apply the rules in their order: deny, forced request, skipped request, earlier grant."""
    if verdict.decision == "deny":
        return "refuse"
    if verdict.insists:
        return "ask" if interactive else "refuse"
    if yolo or skips:
        return "allow"
    if insists:
        return "ask"
    return "allow" if verdict.decision == "allow" or granted in ("session", "always") else "ask"


FLAGS = tuple(product((False, True), repeat=4))
VERDICTS = tuple(
    Verdict(decision, "Why.", insists=insists) for decision in ("allow", "ask", "deny") for insists in (False, True)
)


@pytest.mark.parametrize("granted", ["", "session", "always", "another session", "another command"])
def test_every_combination_of_rule_mode_and_grant(granted: str) -> None:
    async def scenario() -> None:
        harness = await open_harness()
        engine = harness.workspace.engine
        other = (await harness.workspace.sessions.create()).id
        seen = set()
        for verdict, (interactive, yolo, skips, insists) in product(VERDICTS, FLAGS):
            asks = Approvals(engine.recorder, harness.ledger, engine.new_id)
            if granted:
                await grant(asks, other if granted == "another session" else harness.session, granted)
            asks.judge = lambda _, verdict=verdict: verdict  # type: ignore[misc]
            asks.skips = yolo
            flags = {"interactive": interactive, "skips": skips, "insists": insists}
            asking = start(asks.permit(Context(harness.session), PERMIT, **flags))  # type: ignore[arg-type]
            await until(lambda asking=asking, asks=asks: asking.done() or asks.permissions)  # type: ignore[misc]
            if asks.permissions:
                found = "ask"
                asking.cancel()
                await asyncio.wait([asking])
            else:
                error = asking.exception()
                found = "allow" if error is None else "refuse"
                if error is not None:
                    assert isinstance(error, PermissionDenied)
                    assert not error.stops_turn
                    assert "Why." in str(error)
            due = expected_decision(
                verdict, granted=granted, interactive=interactive, yolo=yolo, skips=skips, insists=insists
            )
            assert found == due, (verdict, flags, yolo, granted)
            seen.add(found)
        assert seen == {"refuse", "allow", "ask"}
        await harness.close()

    in_virtual_time(scenario)


async def grant(asks: Approvals, session: SessionId, granted: str) -> None:
    """Grant the permit once, so that it counts from now on."""
    asks.judge = lambda _: Verdict("ask", saves=("Bash(make)",))
    permit = OTHER if granted == "another command" else PERMIT
    asking = start(asks.permit(Context(session), permit, interactive=True))  # type: ignore[arg-type]
    await until(lambda: asks.permissions)
    await asks.grant(asks.permissions[0].id, "allow_always" if granted == "always" else "allow_session")
    await asking


@pytest.mark.parametrize("action", ["allow", "allow_session", "allow_always"])
def test_the_scope_of_an_answer(action: Literal["allow", "allow_session", "allow_always"]) -> None:
    """Once, for the session and its sub-agents, or for everything; a deleted session is forgotten."""

    async def scenario() -> None:
        harness = await open_harness()
        engine = harness.workspace.engine
        asks = Approvals(engine.recorder, harness.ledger, engine.new_id)
        asks.judge = lambda _: Verdict("ask", saves=("Bash(make)",))
        child = (await harness.workspace.sessions.create(parent=harness.session)).id
        below = (await harness.workspace.sessions.create(parent=child)).id
        other = (await harness.workspace.sessions.create()).id
        asking = start(asks.permit(Context(below), PERMIT, interactive=True))  # type: ignore[arg-type]
        await until(lambda: asks.permissions)
        assert await asks.grant(asks.permissions[0].id, action)
        await asking
        covered = {name for name in (harness.session, child, below, other) if await is_granted(asks, name)}
        own = {harness.session, child, below}
        assert covered == {"allow": set(), "allow_session": own, "allow_always": {*own, other}}[action]
        asks.forget_sessions([harness.session])
        left = {name for name in (harness.session, other) if await is_granted(asks, name)}
        assert left == ({harness.session, other} if action == "allow_always" else set())
        await harness.close()

    in_virtual_time(scenario)


async def is_granted(asks: Approvals, session: SessionId) -> bool:
    """Return true if the permit is granted without a request."""
    asking = start(asks.permit(Context(session), PERMIT, interactive=True))  # type: ignore[arg-type]
    await until(lambda: asking.done() or asks.permissions)
    is_done = asking.done()
    asking.cancel()
    await asyncio.wait([asking])
    return is_done


# Timeouts.


def begin(asks: Approvals, kind: Kind, session: SessionId) -> "asyncio.Task[object]":
    context = Context(session)
    if kind == "permission":
        return start(asks.permit(context, PERMIT, interactive=True))  # type: ignore[arg-type]
    return start(asks.ask_questions(context, QuestionBatch((Question("", "yes_no", "?"),))))  # type: ignore[arg-type]


def open_requests(asks: Approvals) -> tuple[PermissionRequest | QuestionRequest, ...]:
    return (*asks.permissions, *asks.questions)


HISTORIES: dict[str, tuple[list[str], bool]] = {
    "no client was ever attached": ([], True),
    "every client has detached": (["attach", "detach"], True),
    "one of two has detached": (["attach", "attach", "detach"], False),
    "a client is attached": (["attach"], False),
    "a client attached again": (["attach", "detach", "attach"], False),
    "both have detached": (["attach", "attach", "detach", "detach"], True),
}


@pytest.mark.parametrize("kind", ["permission", "question"])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_request_expires_only_while_no_client_is_attached(history: str, kind: Kind) -> None:
    """From every state in which it can be made, to the second."""
    events, expires = HISTORIES[history]

    async def scenario() -> None:
        harness = await open_harness()
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask")
        asks.timeout = lambda: 100.0
        for event in events:
            (asks.client_attached if event == "attach" else asks.client_detached)()
            await sleep_virtual(7)
        asking = begin(asks, kind, harness.session)
        await sleep_virtual(99.9)
        assert len(open_requests(asks)) == 1
        await asyncio.sleep(0.2 if expires else 10_000)
        assert len(open_requests(asks)) == (0 if expires else 1)
        assert asking.done() == expires
        assert timers() == 0
        if not expires:
            for _ in range(events.count("attach") - events.count("detach")):
                asks.client_detached()
            await sleep_virtual(99.9)
            assert not asking.done()
            await sleep_virtual(0.2)
            assert asking.done()
        await asyncio.wait([asking])
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["permission", "question"])
def test_timeout_starts_when_the_last_client_detaches(kind: Kind) -> None:
    """On random histories, compared with the simplest possible count."""

    async def scenario(rng: random.Random) -> bool:
        harness = await open_harness()
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask")
        asks.timeout = lambda: 50.0
        loop = asyncio.get_running_loop()
        readers = rng.randint(0, 2)
        for _ in range(readers):
            asks.client_attached()
        asking = begin(asks, kind, harness.session)
        await until(lambda: open_requests(asks))
        since = loop.time() if readers == 0 else None
        for _ in range(rng.randint(0, 6)):
            wait = rng.choice([1.0, 20.0, 49.0])
            if since is not None and loop.time() + wait >= since + 50:
                break
            await asyncio.sleep(wait)
            if readers and rng.random() < 0.6:
                asks.client_detached()
                readers -= 1
                since = loop.time() if readers == 0 else None
            else:
                asks.client_attached()
                readers += 1
                since = None
        if since is None:
            await sleep_virtual(1_000)
            assert not asking.done()
            assert timers() == 0
            asking.cancel()
            await asyncio.wait([asking])
        else:
            await asyncio.wait([asking])
            assert loop.time() == pytest.approx(since + 50)
        assert timers() == 0
        await harness.close()
        return since is None

    assert {run_seeded(scenario, seed) for seed in range(40)} == {True, False}


@pytest.mark.parametrize("kind", ["permission", "question"])
def test_an_expiry_that_cannot_be_stored_is_tried_again(kind: Kind) -> None:
    async def scenario() -> None:
        ledger = GatedLedger()
        harness = await open_harness(ledger)
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask")
        asks.timeout = lambda: 10.0
        asking = begin(asks, kind, harness.session)
        await until(lambda: open_requests(asks))
        ledger.refused = (CloseRequest,)
        await sleep_virtual(15)
        assert (asking.done(), len(open_requests(asks)), timers()) == (False, 1, 1)
        ledger.refused = ()
        await sleep_virtual(6)
        assert asking.done()
        assert (len(open_requests(asks)), timers()) == (0, 0)
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("end", ["answer", "cancel"])
@pytest.mark.parametrize("kind", ["permission", "question"])
def test_a_closed_request_leaves_no_timer(kind: Kind, end: str) -> None:
    async def scenario() -> None:
        harness = await open_harness()
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask")
        asking = begin(asks, kind, harness.session)
        await until(lambda: open_requests(asks))
        assert timers() == 1
        (request,) = open_requests(asks)
        if end == "cancel":
            asking.cancel()
        elif isinstance(request, PermissionRequest):
            assert await asks.grant(request.id, "allow")
        else:
            assert await asks.answer(request.id, [QuestionAnswer(request.questions[0].id, yes=True)])
        await asyncio.wait([asking])
        await harness.workspace.engine.recorder.put(sync=False)
        assert (timers(), open_requests(asks)) == (0, ())
        asks.client_attached()
        asks.client_detached()
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("interactive", [True, False])
@pytest.mark.parametrize("way", ["expired", "denied", "denied with a reason"])
def test_the_run_after_a_denial(way: str, *, interactive: bool) -> None:
    """A denial by a user without a message stops the turn; otherwise, or without a user, the model continues."""

    async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(PERMIT)
        return ToolOutcome("ran")

    async def scenario() -> None:
        model = ScriptedModel([Step((Call("bash"),)), Step((Say("so be it"),))])
        settings = EngineSettings(titles=False, limits=Limits(minutes=0))
        harness = await Harness.open(model, tools=[SimpleTool("bash", act)], settings=settings)
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask")
        prompt = Prompt(harness.session, "go", run_id=RunId("r1"), interactive=interactive)
        await harness.workspace.inputs.submit(prompt)
        await until(lambda: asks.permissions)
        if way == "expired":
            await asyncio.sleep(asks.timeout() + 1)
        else:
            reason = "not now" if way == "denied with a reason" else " "
            assert await asks.grant(asks.permissions[0].id, "deny", reason=reason, by="me")
        await harness.wait_until_idle()
        stops = interactive and way != "denied with a reason"
        assert len(model.requests) == (1 if stops else 2)
        (result,) = results_of(await harness.messages())
        assert result.is_error
        texts = {"expired": "not answered in time", "denied with a reason": "not now"}
        assert texts.get(way, "") in result.content
        (notice,) = (
            event.change.object
            for _, event in harness.published.events
            if isinstance(event, PermissionNotificationEvent) and event.change.object.denied
        )
        assert notice.withdrawn == (way == "expired")
        assert harness.end_of("r1").outcome == "completed"
        await harness.close()

    in_virtual_time(scenario)


def test_next_batch_of_questions_counts_as_shown_after_a_pause() -> None:
    """This holds for the first batch too, although none was closed before it."""

    async def scenario() -> None:
        harness = await open_harness()
        asks = harness.workspace.approvals
        assert asks.pause == 0.0
        first, second = (begin(asks, "question", harness.session) for _ in range(2))
        await until(lambda: len(asks.questions) == 2)
        assert await asks.dismiss()
        assert await first is None
        assert asks.pause == pytest.approx(0.5)
        assert not await asks.dismiss(), "a dismissal right after it was meant for the previous batch"
        await sleep_virtual(0.5)
        assert asks.pause == 0.0
        assert await asks.dismiss()
        assert await second is None
        closed = [event for _, event in harness.published.events if isinstance(event, QuestionNotificationEvent)]
        assert [event.change.object.cancelled for event in closed] == [True, True]
        await harness.close()

    in_virtual_time(scenario)


def test_a_rule_that_cannot_be_saved_allows_once() -> None:
    async def scenario() -> None:
        harness = await open_harness()
        asks = harness.workspace.approvals
        asks.judge = lambda _: Verdict("ask", saves=("Bash(make)", "Bash(ls)"))
        saved: list[str] = []

        def save(rule: str) -> None:
            saved.append(rule)
            if fails:
                raise StorageUnavailable

        asks.save_rule = save
        for fails in (True, False):
            asking = begin(asks, "permission", harness.session)
            await until(lambda: asks.permissions)
            granting = start(asks.grant(asks.permissions[0].id, "allow_always"))
            await asyncio.wait([asking, granting])
            assert (granting.exception() is not None) == fails
            assert asking.exception() is None
        assert saved == ["Bash(make)", "Bash(make)", "Bash(ls)"]
        assert not await is_granted(asks, harness.session), "the saved rules decide, not this workspace's memory"
        await harness.close()

    in_virtual_time(scenario)
