"""Hooks from the engine's side: around tools, before prompts, after ends. They are fakes; no process is started."""

import asyncio
import json
from typing import Any

import pytest

from engine.helpers import PATIENT, fixed_tool, results_of
from holdfast.domain.approvals import Verdict
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.messages import TextPart, text_of
from holdfast.domain.runs import Prompt, PromptExpansion, Run
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.engine.run_context import NoHooks
from holdfast.engine.tool_calls import add_hook_output, permit_for_hook, refusal
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedModel, SimpleTool, until
from holdfast.testing.harness import Harness
from planting import assert_every_clause_decides

DONE = Step((Say("done"),))


class FakeHooks(NoHooks):
    """Returns prepared results and records its calls."""

    def __init__(self, **says: HookOutcome) -> None:
        self.says = says
        self.calls: list[Any] = []
        self.gate = Gate()
        self.holds = ""
        """The hook that waits at the gate."""
        self.left = 0

    async def _reply(self, when: str, about: object) -> HookOutcome:
        self.calls.append((when, about))
        try:
            if when == self.holds:
                await self.gate()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return self.says.get(when, HookOutcome())

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        return await self._reply("before", use)

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        return await self._reply("after", (use, outcome))

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        return await self._reply("prompt", (prompt, is_first))

    def after_run(self, end: RunComplete) -> None:
        self.calls.append(("end", end.outcome))

    def count(self, when: str) -> int:
        return sum(name == when for name, _ in self.calls)


def recording_tool(seen: list[dict[str, object]]) -> SimpleTool:
    async def act(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        seen.append(arguments)
        await context.permit(Permit("tool", "execute", "/project", "do it", {}))
        return ToolOutcome("ran", '{"known": 1}')

    return SimpleTool("tool", act)


async def run_one_call(
    hooks: FakeHooks, judge: str = "allow"
) -> tuple[Harness, list[dict[str, object]], ScriptedModel]:
    """Execute one call with `{"n": 1}` to its end."""
    seen: list[dict[str, object]] = []
    model = ScriptedModel([Step((Call("tool", '{"n":1}'),)), DONE])
    verdict = Verdict("deny" if judge == "deny" else "ask" if judge == "ask" else "allow", "A rule.")
    harness = await Harness.open(model, tools=[recording_tool(seen)], hooks=hooks, judge=lambda _: verdict)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    await harness.assert_valid(model.requests)
    return harness, seen, model


async def test_rewritten_arguments_are_stored_before_the_call_runs() -> None:
    """The stored call, the permission request, the tool and the next model request all have the new input."""
    hooks = FakeHooks(before=HookOutcome(input={"n": 2, "extra": "é"}, report={"hook_count": 1}))
    harness, seen, model = await run_one_call(hooks)
    assert seen == [{"n": 2, "extra": "é"}]
    (call,) = [call for message in await harness.messages() for call in message.tool_calls]
    assert json.loads(call.input) == {"n": 2, "extra": "é"}
    sent = [call for message in model.requests[-1].messages for call in message.tool_calls]
    assert json.loads(sent[0].input) == {"n": 2, "extra": "é"}
    published = [event.change.object for event in harness.message_events()]
    with_new = next(i for i, item in enumerate(published) if any("extra" in one.input for one in item.tool_calls))
    result = next(i for i, item in enumerate(published) if item.tool_results)
    assert with_new < result, "it is published before the tool has run"


async def test_a_hook_refuses_a_call_and_the_turn_continues() -> None:
    hooks = FakeHooks(before=HookOutcome("deny", reason="not today", report={"hook_count": 1}))
    harness, seen, _ = await run_one_call(hooks)
    (result,) = results_of(await harness.messages())
    assert (result.content, result.is_error, seen) == ("not today", True, [])
    assert json.loads(result.metadata) == {"hook": {"hook_count": 1}}
    assert harness.end_of("r1").text == "done"
    assert hooks.count("after") == 0


async def test_a_hook_that_halts_stops_the_turn() -> None:
    harness, seen, model = await run_one_call(FakeHooks(before=HookOutcome("deny", halts=True, reason="stop")))
    assert (seen, len(model.requests)) == ([], 1)
    assert await harness.finishes() == ["end_turn"]


@pytest.mark.parametrize(("rule", "done"), [("allow", True), ("ask", True), ("deny", False)])
async def test_a_hook_skips_the_request_but_not_a_denying_rule(rule: str, done: bool) -> None:
    harness, _, _ = await run_one_call(FakeHooks(before=HookOutcome("allow")), rule)
    (result,) = results_of(await harness.messages())
    assert (result.content == "ran") is done
    assert harness.workspace.approvals.permissions == ()


@pytest.mark.parametrize("verdict", [Verdict("allow"), Verdict("ask")], ids=["allow", "ask"])
async def test_a_hook_can_force_one_request(verdict: Verdict) -> None:
    """Although a rule allows it; the answer also covers the request of the tool itself."""
    seen: list[dict[str, object]] = []
    model = ScriptedModel([Step((Call("tool", '{"n":1}'),)), DONE])
    hooks = FakeHooks(before=HookOutcome("ask", reason="are you sure"))
    harness = await Harness.open(model, tools=[recording_tool(seen)], hooks=hooks, judge=lambda _: verdict)
    await harness.prompt("go", "r1")
    asks = harness.workspace.approvals
    await until(lambda: bool(asks.permissions))
    (ask,) = asks.permissions
    assert (ask.description, ask.params, seen) == ("are you sure", {"n": 1}, [])
    assert await asks.grant(ask.id, "allow")
    await harness.wait_until_idle()
    assert seen == [{"n": 1}]


async def test_a_hook_that_allows_a_call_answers_for_a_tool_that_requests_nothing() -> None:
    model = ScriptedModel([Step((Call("todos"),)), DONE])
    hooks = FakeHooks(before=HookOutcome("allow"))
    harness = await Harness.open(model, tools=[fixed_tool("todos")], hooks=hooks, judge=lambda _: Verdict("ask"))
    await harness.prompt("go", "r1")
    await until(lambda: bool(harness.ends() or harness.workspace.approvals.permissions))
    assert harness.end_of("r1").text == "done"
    await harness.close()


async def test_a_hook_forces_no_request_in_a_run_that_approves_everything() -> None:
    seen: list[dict[str, object]] = []
    model = ScriptedModel([Step((Call("tool", '{"n":1}'),)), DONE])
    hooks = FakeHooks(before=HookOutcome("ask", reason="are you sure"))
    harness = await Harness.open(model, tools=[recording_tool(seen)], hooks=hooks, judge=lambda _: Verdict("ask"))
    await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId("r1"), yolo=True))
    await until(lambda: bool(harness.ends() or harness.workspace.approvals.permissions))
    assert seen == [{"n": 1}]
    await harness.close()


async def test_hooks_after_a_tool_add_text_for_the_model() -> None:
    hooks = FakeHooks(
        before=HookOutcome(context="before it"),
        after=HookOutcome("deny", reason="tests fail", context="after it", report={"hook_count": 2}),
    )
    harness, _, _ = await run_one_call(hooks)
    (result,) = results_of(await harness.messages())
    assert result.content == "ran\n\nbefore it\n\ntests fail\n\nafter it"
    assert not result.is_error
    assert json.loads(result.metadata) == {"known": 1, "post_hook": {"hook_count": 2}}
    (_, (_, outcome)) = next(item for item in hooks.calls if item[0] == "after")
    assert outcome.content == "ran"


async def test_the_context_of_a_hook_reaches_the_model_if_a_rule_denies_the_call() -> None:
    harness, seen, _ = await run_one_call(FakeHooks(before=HookOutcome(context="a note", report={"n": 1})), "deny")
    (result,) = results_of(await harness.messages())
    assert (result.is_error, result.content.endswith("a note")) == (True, True)
    assert json.loads(result.metadata) == {"hook": {"n": 1}}
    assert len(seen) == 1, "the tool asked for permission and got none"


RAN = ToolOutcome("ran", '{"known": 1, "hook": 0}')
NOTE = HookOutcome(context="note")
OUTPUTS: list[tuple[ToolOutcome, HookOutcome, HookOutcome | None, tuple[str, str, bool]]] = [
    (RAN, HookOutcome(), None, ("ran", RAN.metadata, False)),
    (RAN, NOTE, None, ("ran\n\nnote", RAN.metadata, False)),
    (RAN, HookOutcome(), NOTE, ("ran\n\nnote", RAN.metadata, False)),
    (RAN, HookOutcome(), HookOutcome(reason="why"), ("ran", RAN.metadata, False)),
    (RAN, HookOutcome(), HookOutcome("deny", reason="why"), ("ran\n\nwhy", RAN.metadata, False)),
    (RAN, HookOutcome(), HookOutcome(halts=True, reason="why"), ("ran\n\nwhy", RAN.metadata, True)),
    (RAN, HookOutcome(), HookOutcome(halts=True), ("ran", RAN.metadata, True)),
    (RAN, HookOutcome(report={"a": 1}), None, ("ran", '{"known": 1, "hook": {"a": 1}}', False)),
    (
        RAN,
        HookOutcome(),
        HookOutcome(report={"a": 1}),
        ("ran", '{"known": 1, "hook": 0, "post_hook": {"a": 1}}', False),
    ),
    (ToolOutcome("x", "no JSON"), HookOutcome(report={"a": 1}), None, ("x", '{"hook": {"a": 1}}', False)),
    (ToolOutcome("x", "[1]"), HookOutcome(report={"a": 1}), None, ("x", '{"hook": {"a": 1}}', False)),
    (ToolOutcome("x", ""), HookOutcome(report={"a": "ä"}), None, ("x", '{"hook": {"a": "ä"}}', False)),
    (ToolOutcome("", stops_turn=True), HookOutcome(), NOTE, ("note", "", True)),
]


def check_outputs() -> None:
    for outcome, before, after, expected in OUTPUTS:
        found = add_hook_output(outcome, before, after)
        assert (found.content, found.metadata, found.stops_turn) == expected, (outcome, before, after)


def test_every_part_of_a_ruling_has_its_effect_on_the_result() -> None:
    check_outputs()
    assert_every_clause_decides(add_hook_output, check_outputs)


REFUSALS: list[tuple[HookOutcome, tuple[str, bool] | None]] = [
    (HookOutcome(), None),
    (HookOutcome("allow"), None),
    (HookOutcome("ask", reason="why"), None),
    (HookOutcome("deny", reason="why"), ("why", False)),
    (HookOutcome(halts=True, reason="why"), ("why", True)),
    (HookOutcome("deny", halts=True, reason="why"), ("why", True)),
]


def test_a_ruling_that_refuses_and_halts_stops_the_turn() -> None:
    for ruling, expected in REFUSALS:
        found = refusal(ruling)
        assert (None if found is None else (found.content, found.stops_turn)) == expected, ruling
    assert all(found.content for ruling in (HookOutcome("deny"), HookOutcome(halts=True)) if (found := refusal(ruling)))


@pytest.mark.parametrize(
    ("name", "given", "path", "command"),
    [
        ("bash", {"command": "ls"}, "/a", "ls"),
        ("bash", {"command": "ls", "working_dir": ""}, "/a", "ls"),
        ("bash", {"command": "ls", "working_dir": 1}, "/a", "ls"),
        ("bash", {"command": "ls", "working_dir": "../b/."}, "/b", "ls"),
        ("bash", {"command": "ls", "working_dir": "/c"}, "/c", "ls"),
        ("bash", {"command": 1, "working_dir": "/c"}, "/a", ""),
        ("other", {"command": "ls", "working_dir": "/c"}, "/a", ""),
    ],
)
def test_the_request_of_a_hook_is_about_the_directory_of_the_command(
    name: str, given: dict[str, object], path: str, command: str
) -> None:
    use = ToolUse(SessionId("s"), RunId("r"), ToolCallId("c"), name, given)
    permit = permit_for_hook(use, HookOutcome("ask"), "/a")
    assert (permit.path, permit.command, permit.params) == (path, command, given)


async def test_a_cancel_during_a_hook_ends_it_and_the_run() -> None:
    """The tool is never started, and the hook is cancelled at once."""
    seen: list[dict[str, object]] = []
    hooks = FakeHooks()
    hooks.holds = "before"
    model = ScriptedModel([Step((Call("tool", '{"n":1}'),)), DONE])
    harness = await Harness.open(model, tools=[recording_tool(seen)], hooks=hooks, settings=PATIENT)
    await harness.prompt("go", "r1")
    await hooks.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert (hooks.left, seen) == (1, [])
    assert harness.end_of("r1").outcome == "cancelled"
    await harness.assert_valid()
    assert hooks.calls[-1] == ("end", "cancelled")


async def test_a_cancel_after_the_tool_has_run_keeps_its_result() -> None:
    hooks = FakeHooks()
    hooks.holds = "after"
    model = ScriptedModel([Step((Call("tool", '{"n":1}'), Call("tool", '{"n":2}'))), DONE])
    seen: list[dict[str, object]] = []
    harness = await Harness.open(model, tools=[recording_tool(seen)], hooks=hooks, settings=PATIENT)
    await harness.prompt("go", "r1")
    await hooks.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    first, second = results_of(await harness.messages())
    assert (first.content, second.is_error, seen) == ("ran", True, [{"n": 1}])
    assert harness.end_of("r1").outcome == "cancelled"
    await harness.assert_valid()


async def test_hooks_add_text_for_the_model_to_a_prompt() -> None:
    model = ScriptedModel([DONE, DONE])
    hooks = FakeHooks(prompt=HookOutcome(context="the build is red"))
    harness = await Harness.open(model, hooks=hooks)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    await harness.prompt("on", "r2")
    await harness.wait_until_idle()
    assert text_of(model.requests[0].messages[0]) == "go\n\nthe build is red"
    assert [about for when, about in hooks.calls if when == "prompt"] == [("go", True), ("on", False)]
    shown = [text_of(message) for message in await harness.messages() if message.role == "user"]
    assert shown == ["go", "on"]


async def test_a_hook_refuses_a_prompt() -> None:
    """The run fails with the hook's message, and no model request is made."""
    model = ScriptedModel([DONE])
    hooks = FakeHooks(prompt=HookOutcome("deny", reason="there is a key in it"))
    harness = await Harness.open(model, hooks=hooks)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    end = harness.end_of("r1")
    assert (end.outcome, end.error, model.requests) == ("failed", "there is a key in it", [])
    assert (await harness.outline())[0] == "user:go"
    await harness.assert_valid()


async def test_cancel_before_the_first_model_request() -> None:
    hooks = FakeHooks()
    hooks.holds = "prompt"
    model = ScriptedModel([DONE])
    harness = await Harness.open(model, hooks=hooks, settings=PATIENT)
    await harness.prompt("go", "r1")
    await hooks.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert (harness.end_of("r1").outcome, hooks.left, model.requests) == ("cancelled", 1, [])
    assert (await harness.outline())[0] == "user:go"
    await harness.assert_valid()


@pytest.mark.parametrize("meant", ["", "what it stands for"])
@pytest.mark.parametrize(
    "ruling",
    [HookOutcome(context="more"), HookOutcome("deny", reason="a secret"), HookOutcome(halts=True, reason="a secret")],
)
async def test_folded_prompts_pass_hooks_too(ruling: HookOutcome, meant: str) -> None:
    """In that turn, and whenever the conversation is read again."""
    model = GatedModel(ScriptedModel([Step((Call("tool", "{}"),)), DONE, DONE]))
    model.before.shut()
    hooks = FakeHooks()
    harness = await Harness.open(model, tools=[recording_tool([])], hooks=hooks)
    await harness.prompt("go", "r1")
    await model.before.reached.wait()
    brief = PromptExpansion(meant) if meant else None
    await harness.workspace.inputs.submit(Prompt(harness.session, "and this", delivery="steer", brief=brief))
    hooks.says["prompt"] = ruling
    model.before.open()
    await harness.wait_until_idle()
    read = model.requests[-1].messages[-1]
    last = text_of(read)
    assert last == f"{meant or 'and this'}\n\nmore" if ruling.context else "a secret" in last and "this" not in last
    assert [about for when, about in hooks.calls if when == "end"] == ["completed"] * 2, "the host and the run in it"
    hooks.says["prompt"] = HookOutcome()
    await harness.prompt("again", "r3")
    await harness.wait_until_idle()
    assert [text_of(item) for item in model.requests[-1].messages if item.role == "user"] == ["go", last, "again"]
    assert "user:and this" in await harness.outline()
    await harness.assert_valid(model.requests)


async def test_hooks_are_notified_after_an_end_is_stored() -> None:
    """Completed, failed, cancelled while waiting: each once, and never before the end can be read."""

    class Late(FakeHooks):
        def after_run(self, end: RunComplete) -> None:
            super().after_run(end)
            self.calls.append(("seen", [item.run_id for item in harness.ends()]))

    hooks = Late()
    model = GatedModel(ScriptedModel([DONE]))
    harness = await Harness.open(model, hooks=hooks)
    model.before.shut()
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    await harness.prompt("two", "r2")
    await harness.workspace.inputs.clear(harness.session)
    model.before.open()
    await harness.wait_until_idle()
    await harness.prompt("three", "r3")
    await harness.wait_until_idle()
    assert [about for when, about in hooks.calls if when == "end"] == ["cancelled", "completed", "failed"]
    assert [about for when, about in hooks.calls if when == "seen"] == [["r2"], ["r2", "r1"], ["r2", "r1", "r3"]]


async def test_the_model_reads_the_expansion_and_screens_show_the_prompt() -> None:
    model = ScriptedModel([DONE, DONE])
    harness = await Harness.open(model)
    brief = PromptExpansion("Look at src with care.", "review")
    await harness.workspace.inputs.submit(Prompt(harness.session, "/review src", brief=brief))
    await harness.wait_until_idle()
    await harness.prompt("and now", "r2")
    await harness.wait_until_idle()
    assert [text_of(message) for message in model.requests[1].messages] == ["Look at src with care.", "done", "and now"]
    first = (await harness.messages())[0]
    assert text_of(first) == "/review src"
    assert [part.data.meant for part in first.parts if isinstance(part, TextPart)] == ["Look at src with care."]


async def test_expansion_survives_a_restart() -> None:
    """A queued prompt keeps its expansion."""
    model = GatedModel(ScriptedModel([DONE]))
    model.before.shut()
    harness = await Harness.open(model)
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    await harness.workspace.inputs.submit(
        Prompt(harness.session, "/x", run_id=RunId("r2"), brief=PromptExpansion("all of x"))
    )
    await harness.close()
    again = ScriptedModel([DONE])
    later = await Harness.open(again, ledger=harness.ledger, ids="later")
    await later.workspace.engine.wait_until_idle(harness.session)
    assert text_of(again.requests[0].messages[-1]).endswith("all of x")


async def test_expansion_sets_model_and_allowed_tools_for_its_run_only() -> None:
    seen: list[dict[str, object]] = []
    script = [Step((Call("tool", "{}"),)), DONE]
    usual, other = ScriptedModel(script), ScriptedModel(script)

    async def model_named(name: str) -> ScriptedModel:
        assert name == "other"
        return other

    harness = await Harness.open(
        usual,
        tools=[recording_tool(seen)],
        judge=lambda _: Verdict("ask"),
        rules_allow=lambda rules, permit: permit.tool in rules,
        named_model=model_named,
    )
    prompt = Prompt(harness.session, "/x", brief=PromptExpansion("do x", model="other", allow=("tool",)))
    await harness.workspace.inputs.submit(prompt)
    await harness.wait_until_idle()
    assert (len(seen), len(other.requests), usual.requests) == (1, 2, [])
    await harness.prompt("again", "r2")
    await until(lambda: bool(harness.workspace.approvals.permissions))
    assert len(usual.requests) == 1, "the next run uses the usual model and requests permission"
    await harness.cancel()
    await harness.wait_until_idle()
    assert not [notice for notice in harness.notices() if notice.type == "fallback"]


async def test_an_unusable_model_is_replaced_with_a_notice() -> None:
    async def model_named(name: str) -> ScriptedModel:
        raise ProviderError(f"There is no model {name}.")

    harness = await Harness.open(ScriptedModel([DONE]), named_model=model_named)
    await harness.workspace.inputs.submit(
        Prompt(harness.session, "/x", run_id=RunId("r1"), brief=PromptExpansion("x", model="gone"))
    )
    await harness.wait_until_idle()
    assert harness.end_of("r1").text == "done"
    (notice,) = [notice for notice in harness.notices() if notice.type == "fallback"]
    assert (notice.run_id, notice.session_id) == ("r1", harness.session)
    assert notice.error == "There is no model gone. demo/scripted is used instead."
