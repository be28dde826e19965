"""Resources of a run are released whatever fails next: containers, tasks, timers, streams, slots, requests.

Held resources are found by walking every object of the engine, so that none has to be listed here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import get_args

import pytest

from engine.helpers import PLAIN, results_of, sleep_virtual
from holdfast.domain.approvals import Question, Verdict
from holdfast.domain.errors import (
    HoldfastError,
    PermissionDenied,
    ProviderError,
    RunIdTaken,
    SessionBusy,
    StorageUnavailable,
    ToolError,
    UnknownSession,
)
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt, Run
from holdfast.domain.store_operations import (
    Admit,
    Announce,
    Answer,
    CloseRequest,
    CreateSession,
    EndRun,
    FoldRun,
    GrowMessage,
    Operation,
    PatchSession,
    PutMessage,
    StartRun,
    StepRun,
    Write,
)
from holdfast.domain.tools import Permit, QuestionBatch, SubagentTask, Tool, ToolContext, ToolOutcome
from holdfast.domain.usage import Usage
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.run_context import NoHooks, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import SimpleTool, until
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time


class SelectiveLedger(MemoryLedger):
    """Fails batches that contain an operation of one kind, as often as configured."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[type, int] = {}

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        for operation in (operation for write in writes for operation in write.operations):
            if self.refuses.get(type(operation), 0) > 0:
                self.refuses[type(operation)] -= 1
                raise StorageUnavailable
        return await super().commit(workspace, epoch, ticket, writes)


class FailingHooks(NoHooks):
    def __init__(self) -> None:
        self.fails = ""

    def reach(self, name: str) -> None:
        if self.fails == name:
            raise ValueError(name)

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        self.reach("before tool")
        return HookOutcome()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        self.reach("after tool")
        return HookOutcome()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        self.reach("before prompt")
        return HookOutcome()


class FailingWorkspace:
    """A workspace in which any part can be made to fail."""

    def __init__(self) -> None:
        self.ledger = SelectiveLedger()
        self.hooks = FailingHooks()
        self.steps: list[Step] = []
        self.error: BaseException | None = None
        self.tools_error: Exception | None = None
        self.settled_error: Exception | None = None
        self.model = ScriptedModel(lambda _: self.steps.pop(0) if self.steps else Step((Say("done"),)), info=PLAIN)
        self.tool = SimpleTool("tool", self._act)
        self.calls = 0
        self.harness: Harness

    async def open(self) -> None:
        settings = EngineSettings(titles=True, grace=1.0, max_subagents=1, retries=RetryPolicy(most=1, first=0.1))
        tools = [
            self.tool,
            SimpleTool("beside", self._act, is_parallel=True),
            SimpleTool("ask", self._ask),
            SimpleTool("ask_questions", self._ask_questions),
            SimpleTool("agent", self._send),
        ]
        small = ScriptedModel(lambda _: Step((Say("A title"),)))
        self.harness = await Harness.open(
            FixedModels(self.model, small),
            settings=settings,
            ledger=self.ledger,
            hooks=self.hooks,
            extensions_ready=self._extensions_ready,
        )
        current = self.harness.workspace.engine.run_context.tools
        current.current = self._current(tools)  # type: ignore[method-assign]
        self.harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools(tools)))
        self.harness.workspace.approvals.judge = lambda permit: Verdict("ask" if permit.tool == "ask" else "allow")

    def _current(self, tools: Sequence[Tool]) -> Callable[[], Coroutine[None, None, Sequence[Tool]]]:
        async def current() -> Sequence[Tool]:
            if self.tools_error is not None:
                raise self.tools_error
            return tools

        return current

    async def _extensions_ready(self) -> None:
        if self.settled_error is not None:
            raise self.settled_error

    async def _act(self, _: ToolContext, __: dict[str, object]) -> ToolOutcome:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return ToolOutcome("done")

    async def _ask(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("ask", "execute", "/project", "run", {}))
        return ToolOutcome("allowed")

    async def _ask_questions(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.ask_questions(QuestionBatch((Question("", "yes_no", "?"),)))
        return ToolOutcome("answered")

    async def _send(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))

    async def prompt(self, *steps: Step, interactive: bool = True) -> Run:
        self.steps = list(steps)
        return await self.harness.workspace.inputs.submit(
            Prompt(self.harness.session, "go", interactive=interactive, run_id=RunId(""), delivery="queue")
        )

    async def work(self, *steps: Step, interactive: bool = True) -> None:
        await self.prompt(*steps, interactive=interactive)
        await self.harness.wait_until_idle()

    async def wait_until_idle(self) -> None:
        """Wait until all started work is done."""
        self.ledger.refuses = {}
        self.error = self.tools_error = self.settled_error = None
        self.hooks.fails = ""
        self.steps = []
        await self.harness.wait_until_idle()
        await sleep_virtual(100)

    def holdings(self) -> dict[str, object]:
        found: dict[str, object] = {"streams": self.model.open_streams}
        _collect(self.harness.workspace, "workspace", found, set())
        loop = asyncio.get_running_loop()
        found["timers"] = sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]
        found["tasks"] = sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task())
        return found


def _collect(thing: object, name: str, found: dict[str, object], seen: set[int]) -> None:
    """Count the items of every container of the engine, and record every flag."""
    if id(thing) in seen or not type(thing).__module__.startswith(("holdfast.engine", "holdfast.runtime.workspace")):
        return
    seen.add(id(thing))
    attributes = getattr(thing, "__dict__", None) or {
        field: getattr(thing, field) for field in getattr(thing, "__struct_fields__", ())
    }
    for field, value in attributes.items():
        failing = f"{name}.{field}"
        if isinstance(value, dict | list | set | deque | TaskOwner):
            found[failing] = len(value)
        elif isinstance(value, bool):
            found[failing] = value
        else:
            _collect(value, failing, found, seen)
            owner = getattr(value, "__self__", None)
            if owner is not None:
                _collect(owner, failing, found, seen)


TOOL = Step((Call("tool"),))
BESIDE = Step((Call("beside"), Call("beside", '{"n":1}')))
AGENT = Step((Call("agent"),))
DONE = Step((Say("done"),))


def broken(trouble: str = "other") -> Step:
    return Step((Say("half"), Fail(trouble=trouble)))  # type: ignore[arg-type]


Scenario = Callable[[FailingWorkspace], Awaitable[None]]
SCENES: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def keep(made: Scenario) -> Scenario:
        SCENES[name] = made
        return made

    return keep


def plain(name: str, *steps: Step) -> None:
    async def play(failing: FailingWorkspace) -> None:
        await failing.work(*steps)

    SCENES[name] = play


plain("the model fails", broken())
plain("the model hangs up twice", Step((Fail(hangs_up=True),)), Step((Fail(hangs_up=True),)))
plain("a retry", broken("busy"), DONE)
plain("too long, and so is the summary", TOOL, broken("overflow"), broken("overflow"), broken("overflow"))
plain("too long", TOOL, broken("overflow"), Step((Say("in short"),)), DONE)
plain("a call is cut off", Step((Call("tool"),), finish="length"))
plain("a call is malformed", Step((Call("tool", "["),)), DONE)
plain("a tool that is not there", Step((Call("nowhere"),)), DONE)
plain("no key", broken("credentials"))
plain("a sub-agent", AGENT, DONE, DONE)
plain("a sub-agent fails", AGENT, broken(), DONE)
plain("a sub-agent of a sub-agent is refused", AGENT, AGENT, DONE, DONE)
plain("a sub-agent says nothing", AGENT, Step((), Usage(1)), DONE)

for failure in (ToolError("no"), ValueError("bug"), StorageUnavailable(), PermissionDenied("no", stops_turn=True)):
    for step in (TOOL, BESIDE):

        async def fail_tool(failing: FailingWorkspace, failure: Exception = failure, step: Step = step) -> None:
            failing.error = failure
            await failing.work(step, DONE)

        SCENES[f"a tool raises {type(failure).__name__} in {len(step.acts)}"] = fail_tool

for kind in (StartRun, StepRun, PutMessage, GrowMessage, PatchSession, EndRun, Announce, CloseRequest, CreateSession):
    for number, step in enumerate((TOOL, AGENT, Step((Call("ask"),)), Step((Call("ask_questions"),)))):

        async def fail_store(failing: FailingWorkspace, kind: type = kind, step: Step = step) -> None:
            await failing.prompt(step)
            failing.ledger.refuses = {kind: 2}
            await sleep_virtual(10)
            failing.ledger.refuses = {}
            await failing.harness.cancel()

        SCENES[f"the store refuses {kind.__name__} in {number}"] = fail_store


@scenario("the store refuses a prompt")
async def _(failing: FailingWorkspace) -> None:
    failing.ledger.refuses = {Admit: 1}
    with pytest.raises(StorageUnavailable):
        await failing.prompt(DONE)


@scenario("the store refuses the prompt of a sub-agent")
async def _(failing: FailingWorkspace) -> None:
    await failing.prompt(AGENT, DONE)
    failing.ledger.refuses = {Admit: 1}
    await failing.harness.wait_until_idle()


@scenario("the store refuses a fold")
async def _(failing: FailingWorkspace) -> None:
    await failing.prompt(TOOL, DONE)
    failing.ledger.refuses = {FoldRun: 1}
    await failing.harness.prompt("and this", delivery="steer")
    await failing.harness.wait_until_idle()


for point in ("before prompt", "before tool", "after tool"):

    async def fail_hook(failing: FailingWorkspace, point: str = point) -> None:
        failing.hooks.fails = point
        await failing.work(TOOL, DONE)

    SCENES[f"a hook fails {point}"] = fail_hook


@scenario("the tools cannot be had")
async def _(failing: FailingWorkspace) -> None:
    failing.tools_error = ValueError("no tools")
    await failing.work(DONE)


@scenario("the extensions never come")
async def _(failing: FailingWorkspace) -> None:
    failing.settled_error = ValueError("no extensions")
    await failing.work(DONE, interactive=False)


@scenario("a summary fails")
async def _(failing: FailingWorkspace) -> None:
    failing.steps = [broken()]
    await failing.harness.workspace.inputs.summarize(failing.harness.session)
    await failing.harness.wait_until_idle()


for state in ("model", "tool", "ask", "ask_questions", "agent"):

    async def cancel(failing: FailingWorkspace, state: str = state) -> None:
        inner = Step((Call("ask"),))
        await failing.prompt(
            Step((Call("tool" if state == "model" else state),)), *([inner] if state == "agent" else [])
        )
        asks = failing.harness.workspace.approvals
        if state in ("ask", "ask_questions", "agent"):
            await until(lambda: asks.permissions or asks.questions)
        await failing.harness.cancel()

    SCENES[f"a cancel in {state}"] = cancel

REFUSED: dict[str, tuple[Prompt, type[HoldfastError]]] = {
    "unknown session": (Prompt(SessionId("nowhere"), "go", run_id=RunId("x1")), UnknownSession),
    "taken": (Prompt(SessionId(""), "other", run_id=RunId("taken")), RunIdTaken),
    "busy": (Prompt(SessionId(""), "go", run_id=RunId("x2"), delivery="reject"), SessionBusy),
}

for name, (wanted, expected) in REFUSED.items():

    async def refuse(
        failing: FailingWorkspace, wanted: Prompt = wanted, expected: type[HoldfastError] = expected
    ) -> None:
        harness = failing.harness
        session = wanted.session_id or harness.session
        await harness.prompt("first", "taken")
        prompt = Prompt(session, wanted.prompt, run_id=wanted.run_id, delivery=wanted.delivery)
        with pytest.raises(expected):
            await harness.workspace.inputs.submit(prompt)
        await harness.wait_until_idle()

    SCENES[f"a prompt is refused: {name}"] = refuse


@pytest.mark.parametrize("name", SCENES)
def test_all_resources_are_released_after(name: str) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        reports: list[str] = []
        loop.set_exception_handler(lambda _, context: reports.append(str(context.get("exception") or context)))
        failing = FailingWorkspace()
        await failing.open()
        await failing.work(TOOL, DONE)
        await failing.wait_until_idle()
        before = failing.holdings()
        await SCENES[name](failing)
        await failing.wait_until_idle()
        assert failing.holdings() == before
        assert (failing.harness.workspace.approvals.permissions, failing.harness.workspace.approvals.questions) == (
            (),
            (),
        )
        # Everything can be done again, to its end.
        failing.calls = 0
        await failing.work(TOOL, DONE)
        await failing.work(AGENT, DONE, DONE)
        assert failing.calls == 1
        assert results_of(await failing.harness.messages())[-1].content == "done", "the sub-agent's answer"
        assert [end.outcome for end in failing.harness.ends()[-2:]] == ["completed", "completed"]
        runs = await failing.ledger.runs(failing.harness.workspace.record.id, None, 100, 0)
        assert all(run.outcome for run in runs)
        await failing.harness.assert_valid()
        await failing.harness.close()
        assert "Exception" not in "".join(reports)

    in_virtual_time(play)


def test_failed_title_releases_all_resources() -> None:
    async def play() -> None:
        large = ScriptedModel(lambda _: DONE, info=PLAIN)
        harness = await Harness.open(FixedModels(large, ProviderError("none")), settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        await sleep_virtual(10)
        assert {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()} == set()  # type: ignore[union-attr]
        await harness.close()

    in_virtual_time(play)


def test_number_of_concurrent_sub_agents_is_limited() -> None:
    """At once below one run, at any depth; the slot of an ended one is free again."""

    async def play() -> None:
        gate = asyncio.Event()

        async def wait(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            await gate.wait()
            return ToolOutcome("done")

        async def send(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))

        def script(request: ModelRequest) -> Step:
            if "$$" in request.session_id:
                return DONE if request.messages[-1].role == "tool" else Step((Call("wait"),))
            many = tuple(Call("agent", f'{{"n":{n}}}') for n in range(4))
            return DONE if request.messages[-1].role == "tool" else Step(many)

        tools = [SimpleTool("agent", send, is_parallel=True), SimpleTool("wait", wait)]
        settings = EngineSettings(titles=False, max_subagents=3)
        harness = await Harness.open(ScriptedModel(script, info=PLAIN), tools=tools, settings=settings)
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools(tools)))
        for number in (1, 2):
            gate.clear()
            await harness.prompt("go", f"r{number}")
            await sleep_virtual(1)
            runs = await harness.ledger.open_runs(harness.workspace.record.id)
            assert sum(bool(run.parent_run_id) for run in runs) == 3
            gate.set()
            await harness.wait_until_idle()
        results = [result for message in await harness.messages() for result in message.tool_results]
        assert [result.is_error for result in results].count(True) == 2
        assert sum("3 sub-agents are running" in result.content for result in results) == 2
        await harness.close()

    in_virtual_time(play)


def test_the_operations_of_a_run_can_all_fail() -> None:
    """The table above covers every operation that a run writes."""
    refused = {name.split()[3] for name in SCENES if name.startswith("the store refuses ")}
    elsewhere = {"RemoveRun", "CancelSession", "CancelRun", "ClearQueue", "Reorder", "Redeliver", "DeleteSession"}
    by_tools = {"AddFile", "MarkRead", "DeleteMessage"}
    tested = {"Admit", "FoldRun"}
    assert {kind.__name__ for kind in get_args(Operation)} - elsewhere - by_tools - tested <= refused
