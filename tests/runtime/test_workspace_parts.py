"""Every part that a workspace is built from is used for what it is: a table with a row for each of them."""

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
from holdfast.testing.harness import CountingClock, FixedModels, FixedTools, PublishedEvents, counting_ids
from holdfast.testing.memory_ledger import MemoryLedger

PERMIT = Permit("tool", "execute", "/project", "run", {"n": 1})


class Place:
    """One workspace, and all that was asked of its parts."""

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


async def ledger(place: Place) -> None:
    store = MemoryLedger()
    await place.run(ledger=store)
    assert await store.unfinished_workspaces() == []
    assert len(await store.runs(place.seen[0].record.id, None, 9, 0)) == 1  # type: ignore[attr-defined]


async def models(place: Place) -> None:
    other = ScriptedModel(lambda _: Step((Say("another model"),)))
    assert (await place.run(models=FixedModels(other))).text == "another model"


async def tools(place: Place) -> None:
    other = SimpleTool("other", place._act)
    await place.run(tools=FixedTools([other]))
    assert [spec.name for spec in place.model.requests[0].tools] == ["other"]


async def settings(place: Place) -> None:
    end = await place.run(settings=EngineSettings(titles=False, limits=Limits(steps=1)))
    assert end.error.startswith("limit")


async def current_settings(place: Place) -> None:
    end = await place.run(current_settings=lambda: EngineSettings(titles=False, limits=Limits(steps=1)))
    assert end.error.startswith("limit"), "in place of the settings"


async def clock(place: Place) -> None:
    await place.run(clock=CountingClock(5_000_000))
    run = place.seen[1]
    assert isinstance(run, Run)
    assert 5_000_000 < run.accepted_at < run.started_at < run.ended_at < 5_001_000


async def new_id(place: Place) -> None:
    end = await place.run(new_id=counting_ids("mine"))
    assert end.message_id.startswith("mine-")
    assert end.session_id == "mine-1"


async def wrap_outlet(place: Place) -> None:
    await place.run()
    assert len(place.published.events) > 5


class FixedContext:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def load(self, session: SessionId) -> ProjectContext:
        return ProjectContext("/somewhere/else", notes=(f"about {session}",))

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        self.asked.append((session, newest))
        return {newest: GitChanges(("M file.py",))}


async def context_loader(place: Place) -> None:
    found = FixedContext()
    end = await place.run(context_loader=found)
    for request in place.model.requests:
        assert "/somewhere/else" in request.system
        assert f"about {end.session_id}" in request.system
        prompt = request.messages[0]
        assert "M file.py" in text_of(prompt)
        assert [name for _, name in found.asked] == [prompt.id] * len(found.asked), "beside the message of the user"


async def subagent_types(place: Place) -> None:
    own = ScriptedModel(lambda _: Step((Say("from the subagent_type"),)))
    subagent_type = {"own": SubagentType(FixedTools(), "small", prompt="Work as I say.")}
    place.kind = "own"
    await place.run(sends=True, subagent_types=subagent_type, models=FixedModels(place.model, own))
    assert own.requests[0].system.startswith("Work as I say.")


async def find_subagent_type(place: Place) -> None:
    place.kind = "found"
    asked: list[str] = []

    def find(kind: str) -> SubagentType | None:
        asked.append(kind)
        return SubagentType(FixedTools(), prompt="Found it.")

    await place.run(sends=True, find_subagent_type=find)
    assert set(asked) == {"found"}
    assert any(request.system.startswith("Found it.") for request in place.model.requests)


async def environment(place: Place) -> None:
    await place.run(environment={"COLOUR": "red"})
    assert place.contexts[0].environment == {"COLOUR": "red"}


async def cleanup(place: Place) -> None:
    left: list[RunId] = []

    async def leave(run: RunId) -> None:
        left.append(run)

    await place.run(cleanup=leave)
    assert left == [], "a run that completed leaves what it wants"
    await place.run(cleanup=leave, settings=EngineSettings(titles=False, limits=Limits(steps=1)))
    assert left == ["r1"]


async def completion_error(place: Place) -> None:
    end = await place.run(completion_error=lambda run: f"{run} is out of control")
    assert (end.outcome, end.error) == ("failed", "r1 is out of control")


async def extensions_ready(place: Place) -> None:
    waited: list[str] = []

    async def note() -> None:
        waited.append("extensions_ready")

    await place.run(extensions_ready=note, interactive=True)
    assert waited == [], "who looks on can do without"
    await place.run(extensions_ready=note, interactive=False)
    assert waited == ["extensions_ready"]


async def judge(place: Place) -> None:
    asked: list[object] = []

    def rules(permit: Permit) -> Verdict:
        asked.append(permit.tool)
        return Verdict("deny", "Because.")

    await place.run(judge=rules)
    assert asked == ["tool"]
    assert place.allowed is not None
    assert "Because." in str(place.allowed)


class Hooked(NoHooks):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        self.said.append(f"before {use.name}")
        return HookOutcome()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        self.said.append(f"after {use.name}: {outcome.content}")
        return HookOutcome()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        self.said.append(f"prompt {prompt} {is_first}")
        return HookOutcome()

    def after_run(self, end: RunComplete) -> None:
        self.said.append(f"end {end.run_id} {end.outcome}")


async def hooks(place: Place) -> None:
    said: list[str] = []
    await place.run(hooks=Hooked(said))
    assert said == ["prompt go True", "before tool", "after tool: did it", "end r1 completed"]


async def rules_allow(place: Place) -> None:
    asked: list[object] = []

    def allow(rules: Sequence[str], permit: Permit) -> bool:
        asked.append((tuple(rules), permit.tool))
        return "yes" in rules

    def ask(_: Permit) -> Verdict:
        return Verdict("ask", insists=False)

    brief = PromptExpansion("go on", allow=("yes",))
    await asyncio.wait_for(place.run(rules_allow=allow, judge=ask, brief=brief), 5)
    assert asked == [(("yes",), "tool")]
    assert place.allowed is None


async def named_model(place: Place) -> None:
    other = ScriptedModel(lambda _: Step((Say("by its name"),)))

    async def named(name: str) -> ScriptedModel:
        place.seen.append(name)
        return other

    assert (await place.run(named_model=named, brief=PromptExpansion("go on", model="my/model"))).text == "by its name"
    assert "my/model" in place.seen


async def save_rule(place: Place) -> None:
    saved: list[str] = []
    ask = Verdict("ask", "No rule.", ("tool(x)",))
    running = start(place.run(save_rule=saved.append, judge=lambda _: ask, interactive=True))
    await until(lambda: place.workspace is not None and place.workspace.approvals.permissions)
    assert place.workspace is not None
    (request,) = place.workspace.approvals.permissions
    await place.workspace.approvals.grant(request.id, "allow_always")
    await running
    assert saved == ["tool(x)"]


ROWS: dict[str, Callable[[Place], Awaitable[None]]] = {
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
    await ROWS[name](Place())


def test_no_row_is_for_nothing() -> None:
    assert set(ROWS) == set(FixedServices.__struct_fields__)
