"""Every part of a workspace is used for its purpose: a table with a row for each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from holdfast.domain.approvals import Verdict
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.project_context import GitChanges, ProjectContext
from holdfast.domain.runs import Prompt, PromptExpansion, Run
from holdfast.domain.tools import Permit, SubagentTask, ToolContext, ToolOutcome
from holdfast.engine.ports import Outlet
from holdfast.engine.run_context import NoHooks, SubagentType
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.testing.gates import SimpleTool, start, until
from holdfast.testing.harness import CountingClock, FixedModels, FixedTools, Harness, PublishedEvents, counting_ids
from holdfast.testing.memory_ledger import MemoryLedger

PERMIT = Permit("tool", "execute", "/project", "run", {"n": 1})


class RecordingWorkspace:
    """One workspace, and all uses of its parts."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.contexts: list[ToolContext] = []
        self.model = ScriptedModel(self._script, info=ModelInfo("test", "large"))
        self.tool = SimpleTool("tool", self._act)
        self.kind = "task"
        self.allowed: Exception | None = None
        self.published: PublishedEvents
        self.workspace: Workspace | None = None
        self.given: dict[str, object] = {}

    def _script(self, request: ModelRequest) -> Step:
        if request.tools and request.messages[-1].role == "user":
            return Step((Call("tool"),))
        return Step((Say("done"),))

    async def _act(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        self.contexts.append(context)
        try:
            await context.permit(PERMIT)
        except Exception as error:
            self.allowed = error
        if self.given.get("sends"):
            return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent", kind=self.kind)))
        return ToolOutcome("did it")

    async def run(
        self, *, brief: PromptExpansion | None = None, interactive: bool = False, **parts: object
    ) -> RunComplete:
        self.given = {name: value for name, value in parts.items() if name == "sends"}
        others = {name: value for name, value in parts.items() if name != "sends"}

        def wrap_outlet(outlet: Outlet) -> Outlet:
            self.published = PublishedEvents(outlet)
            return self.published

        known: dict[str, object] = {
            "ledger": MemoryLedger(),
            "models": FixedModels(self.model),
            "tools": FixedTools([self.tool]),
            "settings": EngineSettings(titles=False),
            "wrap_outlet": wrap_outlet,
        }
        workspace = await open_workspace("/project", FixedServices(**(known | others)))  # type: ignore[arg-type]
        self.workspace = workspace
        session = await workspace.sessions.create("Test")
        prompt = Prompt(session.id, "go", run_id=RunId("r1"), brief=brief, interactive=interactive)
        await workspace.inputs.submit(prompt)
        await workspace.engine.wait_until_idle(session.id)
        record = await workspace.engine.run_context.ledger.run(workspace.record.id, RunId("r1"))
        assert record is not None
        self.seen += [workspace, record.run]
        messages = await workspace.engine.run_context.ledger.messages(workspace.record.id, session.id)
        await workspace.close()
        run = record.run
        text = text_of(messages[-1])
        return RunComplete(session.id, messages[-1].id, run.run_id, run.outcome or "failed", text, run.error)


async def ledger(recorded: RecordingWorkspace) -> None:
    store = MemoryLedger()
    await recorded.run(ledger=store)
    assert await store.unfinished_workspaces() == []
    assert len(await store.runs(recorded.seen[0].record.id, None, 9, 0)) == 1  # type: ignore[attr-defined]


async def models(recorded: RecordingWorkspace) -> None:
    other = ScriptedModel(lambda _: Step((Say("another model"),)))
    assert (await recorded.run(models=FixedModels(other))).text == "another model"


async def tools(recorded: RecordingWorkspace) -> None:
    other = SimpleTool("other", recorded._act)
    await recorded.run(tools=FixedTools([other]))
    assert [spec.name for spec in recorded.model.requests[0].tools] == ["other"]


async def settings(recorded: RecordingWorkspace) -> None:
    end = await recorded.run(settings=EngineSettings(titles=False, limits=Limits(steps=1)))
    assert end.error.startswith("limit")


async def current_settings(recorded: RecordingWorkspace) -> None:
    end = await recorded.run(current_settings=lambda: EngineSettings(titles=False, limits=Limits(steps=1)))
    assert end.error.startswith("limit"), "in place of the settings"


async def clock(recorded: RecordingWorkspace) -> None:
    await recorded.run(clock=CountingClock(5_000_000))
    run = recorded.seen[1]
    assert isinstance(run, Run)
    assert 5_000_000 < run.accepted_at < run.started_at < run.ended_at < 5_001_000


async def new_id(recorded: RecordingWorkspace) -> None:
    end = await recorded.run(new_id=counting_ids("mine"))
    assert end.message_id.startswith("mine-")
    assert end.session_id == "mine-1"


async def wrap_outlet(recorded: RecordingWorkspace) -> None:
    await recorded.run()
    assert len(recorded.published.events) > 5


class FixedContext:
    def __init__(self) -> None:
        self.requested: list[tuple[str, str]] = []

    async def load(self, session: SessionId) -> ProjectContext:
        return ProjectContext("/somewhere/else", notes=(f"about {session}",))

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        self.requested.append((session, newest))
        return {newest: GitChanges(("M file.py",))}


async def context_loader(recorded: RecordingWorkspace) -> None:
    found = FixedContext()
    end = await recorded.run(context_loader=found)
    for request in recorded.model.requests:
        assert "/somewhere/else" in request.system
        assert f"about {end.session_id}" in request.system
        prompt = request.messages[0]
        assert "M file.py" in text_of(prompt)
        assert [name for _, name in found.requested] == [prompt.id] * len(found.requested), (
            "beside the message of the user"
        )


async def test_changes_are_sent_beside_the_newest_prompt() -> None:
    model, found = ScriptedModel(lambda _: Step((Say("yes"),))), FixedContext()
    harness = await Harness.open(model, context_loader=found)
    for prompt in ("first", "second"):
        await harness.prompt(prompt)
        await harness.wait_until_idle()
    users = [message for message in model.requests[-1].messages if message.role == "user"]
    assert ["M file.py" in text_of(message) for message in users] == [False, True]
    await harness.close()


async def subagent_types(recorded: RecordingWorkspace) -> None:
    own = ScriptedModel(lambda _: Step((Say("from the subagent_type"),)))
    subagent_type = {"own": SubagentType(FixedTools(), "small", prompt="Work as I say.")}
    recorded.kind = "own"
    await recorded.run(sends=True, subagent_types=subagent_type, models=FixedModels(recorded.model, own))
    assert own.requests[0].system.startswith("Work as I say.")


async def find_subagent_type(recorded: RecordingWorkspace) -> None:
    recorded.kind = "found"
    requested: list[str] = []

    def find(kind: str) -> SubagentType | None:
        requested.append(kind)
        return SubagentType(FixedTools(), prompt="Found it.")

    await recorded.run(sends=True, find_subagent_type=find)
    assert set(requested) == {"found"}
    assert any(request.system.startswith("Found it.") for request in recorded.model.requests)


async def environment(recorded: RecordingWorkspace) -> None:
    await recorded.run(environment={"COLOUR": "red"})
    assert recorded.contexts[0].environment == {"COLOUR": "red"}


async def cleanup(recorded: RecordingWorkspace) -> None:
    left: list[RunId] = []

    async def leave(run: RunId) -> None:
        left.append(run)

    await recorded.run(cleanup=leave)
    assert left == [], "a completed run is not cleaned up"
    await recorded.run(cleanup=leave, settings=EngineSettings(titles=False, limits=Limits(steps=1)))
    assert left == ["r1"]


async def completion_error(recorded: RecordingWorkspace) -> None:
    end = await recorded.run(completion_error=lambda run: f"{run} is out of control")
    assert (end.outcome, end.error) == ("failed", "r1 is out of control")


async def extensions_ready(recorded: RecordingWorkspace) -> None:
    waited: list[str] = []

    async def note() -> None:
        waited.append("extensions_ready")

    await recorded.run(extensions_ready=note, interactive=True)
    assert waited == [], "interactive runs do not wait"
    await recorded.run(extensions_ready=note, interactive=False)
    assert waited == ["extensions_ready"]


async def judge(recorded: RecordingWorkspace) -> None:
    requested: list[object] = []

    def rules(permit: Permit) -> Verdict:
        requested.append(permit.tool)
        return Verdict("deny", "Because.")

    await recorded.run(judge=rules)
    assert requested == ["tool"]
    assert recorded.allowed is not None
    assert "Because." in str(recorded.allowed)


class RecordingHooks(NoHooks):
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        self.calls.append(f"before {use.name}")
        return HookOutcome()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        self.calls.append(f"after {use.name}: {outcome.content}")
        return HookOutcome()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        self.calls.append(f"prompt {prompt} {is_first}")
        return HookOutcome()

    def after_run(self, end: RunComplete) -> None:
        self.calls.append(f"end {end.run_id} {end.outcome}")


async def hooks(recorded: RecordingWorkspace) -> None:
    calls: list[str] = []
    await recorded.run(hooks=RecordingHooks(calls))
    assert calls == ["prompt go True", "before tool", "after tool: did it", "end r1 completed"]


async def rules_allow(recorded: RecordingWorkspace) -> None:
    requested: list[object] = []

    def allow(rules: Sequence[str], permit: Permit) -> bool:
        requested.append((tuple(rules), permit.tool))
        return "yes" in rules

    def ask(_: Permit) -> Verdict:
        return Verdict("ask", insists=False)

    brief = PromptExpansion("go on", allow=("yes",))
    await asyncio.wait_for(recorded.run(rules_allow=allow, judge=ask, brief=brief), 5)
    assert requested == [(("yes",), "tool")]
    assert recorded.allowed is None


async def named_model(recorded: RecordingWorkspace) -> None:
    other = ScriptedModel(lambda _: Step((Say("by its name"),)))

    async def named(name: str) -> ScriptedModel:
        recorded.seen.append(name)
        return other

    assert (
        await recorded.run(named_model=named, brief=PromptExpansion("go on", model="my/model"))
    ).text == "by its name"
    assert "my/model" in recorded.seen


async def save_rule(recorded: RecordingWorkspace) -> None:
    saved: list[str] = []
    ask = Verdict("ask", "No rule.", ("tool(x)",))
    running = start(recorded.run(save_rule=saved.append, judge=lambda _: ask, interactive=True))
    await until(lambda: recorded.workspace is not None and recorded.workspace.approvals.permissions)
    assert recorded.workspace is not None
    (request,) = recorded.workspace.approvals.permissions
    await recorded.workspace.approvals.grant(request.id, "allow_always")
    await running
    assert saved == ["tool(x)"]


ROWS: dict[str, Callable[[RecordingWorkspace], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        *(
            ledger,
            models,
            tools,
            settings,
            current_settings,
            clock,
            new_id,
            wrap_outlet,
            context_loader,
            subagent_types,
            find_subagent_type,
            environment,
        ),
        *(cleanup, completion_error, extensions_ready, judge, hooks, rules_allow, named_model, save_rule),
    )
}


@pytest.mark.parametrize("name", FixedServices.__struct_fields__)
async def test_every_part_is_used(name: str) -> None:
    await ROWS[name](RecordingWorkspace())


def test_every_row_is_a_part() -> None:
    assert set(ROWS) == set(FixedServices.__struct_fields__)
