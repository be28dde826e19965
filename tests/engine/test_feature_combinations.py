"""Features combined in one run, in pairs and all at once: each has its effect independently of the others."""

from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import combinations

import msgspec
import pytest

from engine.helpers import results_of, sleep_virtual
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import RunId, is_subagent_session
from holdfast.domain.messages import Message, ReasoningPart, ShellCommand, Text, TextPart, text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.runs import Prompt, PromptExpansion, Run
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.domain.usage import Price, Usage
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.run_context import NoHooks, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import Gate, SimpleTool
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.seeded_loop import in_virtual_time

FEATURES = (
    *("summary", "command", "fallback", "credentials", "rename", "steer", "queue"),
    *("sub-agent", "hooks", "retry", "cancel", "shell", "title", "reasoning"),
)
INFO = ModelInfo("test", "large", context_window=1_000, price=Price(input=1_000_000.0))
ORDINARY, FULL = Usage(input_tokens=7), Usage(input_tokens=900)


class Hooks(NoHooks):
    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        return HookOutcome(context=f"a hook has read: {prompt}")

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        return HookOutcome(input={"n": 7}) if use.name == "tool" else HookOutcome()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        return HookOutcome(context="a hook was there")


class FeatureRun:
    """One run with some features, in two steps: a tool that waits for the test, and the last response."""

    def __init__(self, features: tuple[str, ...]) -> None:
        self.has = frozenset(features)
        self.tool_gate, self.last_gate = Gate(), Gate(is_open="cancel" not in features)
        self.arguments: list[object] = []
        self.reported = 0.0
        self.failures = [name for name in ("retry", "credentials") if name in features]
        self.old, self.new = (ScriptedModel(self._script, info=INFO) for _ in range(2))
        self.harness: Harness

    @property
    def requests(self) -> list[ModelRequest]:
        """Return the requests of the run itself, without those for its summary and its sub-agent; the last ones of each
        step.
        """
        both = [*self.old.requests, *self.new.requests]
        return [item for item in both if item.tools and not is_subagent_session(item.session_id)]

    def _script(self, request: ModelRequest) -> Step:
        if is_subagent_session(request.session_id):
            return self._step_with_usage(Step((Say("the sub-agent was here"),), ORDINARY))
        if not request.tools:
            return self._step_with_usage(Step((Say("in short"),), ORDINARY))
        acts = [Call("tool", '{"n":1}'), *([Call("agent")] if "sub-agent" in self.has else [])]
        is_first = len(self.requests) == 1
        if is_first:
            thoughts = [Think("let me see", "signed")] if "reasoning" in self.has else []
            return self._step_with_usage(Step((*thoughts, *acts), FULL if "summary" in self.has else ORDINARY))
        if self.failures:
            trouble = {"retry": "busy", "credentials": "credentials"}[self.failures.pop(0)]
            return Step((Say("half an answer"), Fail(trouble=trouble)))  # type: ignore[arg-type]
        return self._step_with_usage(Step((Say("done"),), ORDINARY))

    def _step_with_usage(self, step: Step) -> Step:
        self.reported += step.usage.input_tokens
        return step

    async def _act(self, _: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        self.arguments.append(arguments)
        await self.tool_gate()
        return ToolOutcome("the tool was here")

    async def _run_subagent(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))

    async def _model_named(self, name: str) -> ScriptedModel:
        raise ProviderError(f"{name} is gone.")

    async def play(self) -> None:
        has = self.has
        tools = [SimpleTool("tool", self._act), SimpleTool("agent", self._run_subagent)]
        models = FixedModels(self.old, renewed=self.new if "credentials" in has else None)
        harness = self.harness = await Harness.open(
            models,
            tools=tools,
            settings=EngineSettings(titles="title" in has, retries=RetryPolicy(most=1, first=1.0)),
            hooks=Hooks() if "hooks" in has else NoHooks(),
            named_model=self._model_named,
        )
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools()))
        self._hold_the_last_answer()
        brief = PromptExpansion("expanded words", "fix") if "command" in has else None
        if "fallback" in has:
            brief = PromptExpansion(brief.text if brief else "plain words", model="test/gone")
        await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId("r1"), brief=brief))
        await self.tool_gate.reached.wait()
        await self._act_during_tool()
        self.tool_gate.open()
        if "cancel" in has:
            await self.last_gate.reached.wait()
            await harness.cancel()
        await harness.wait_until_idle()
        await sleep_virtual(10)

    def _hold_the_last_answer(self) -> None:
        """Hold the last response, so that a cancel arrives during it."""
        for model in (self.old, self.new):
            stream = model.stream

            async def held(
                request: ModelRequest, stream: Callable[[ModelRequest], AsyncGenerator[StreamPart, None]] = stream
            ) -> AsyncGenerator[StreamPart, None]:
                is_last = request.tools and len(self.requests) > 0 and not self.failures
                if is_last and not is_subagent_session(request.session_id):
                    await self.last_gate()
                async for part in stream(request):
                    yield part

            model.stream = held  # type: ignore[method-assign]

    async def _act_during_tool(self) -> None:
        harness = self.harness
        if "rename" in self.has:
            await sleep_virtual(1)
            await harness.workspace.sessions.rename(harness.session, "Renamed")
        if "shell" in self.has:
            await harness.workspace.sessions.note_shell(harness.session, ShellCommand("make", "it is made", 0))
        if "steer" in self.has:
            await harness.prompt("also this", "s1", delivery="steer")
        if "queue" in self.has:
            await harness.prompt("later that", "q1", delivery="queue")

    # Checks.

    async def check(self) -> None:
        harness, has = self.harness, self.has
        end = harness.end_of("r1")
        assert end.outcome == ("cancelled" if "cancel" in has else "completed")
        if "cancel" not in has:
            assert end.text == "done"
        messages = await harness.messages()
        session = await harness.ledger.session(harness.workspace.record.id, harness.session)
        assert session is not None
        assert session.cost == pytest.approx(self.reported)
        title = "Renamed" if "rename" in has else "A title" if "title" in has else "Test"
        assert session.title == title
        assert bool(session.summary_message_id) == ("summary" in has)
        assert [message.is_summary_message for message in messages].count(True) == ("summary" in has)
        assert not any("half an answer" in text_of(message) for message in messages)
        self._check_tools(messages)
        self._check_notices()
        self._check_others(end)
        self._check_requests(messages)
        await harness.assert_valid(self.requests)
        await harness.close()

    def _check_tools(self, messages: Sequence[Message]) -> None:
        n = 7 if "hooks" in self.has else 1
        assert self.arguments == [{"n": n}]
        calls = [call for message in messages for call in message.tool_calls]
        assert [msgspec.json.decode(call.input) for call in calls if call.name == "tool"] == [{"n": n}]
        contents = [result.content for result in results_of(messages)]
        assert contents[0] == "the tool was here" + ("\n\na hook was there" if "hooks" in self.has else "")
        assert [content for content in contents if "the sub-agent was here" in content] == contents[1:]
        assert len(contents) == (2 if "sub-agent" in self.has else 1)

    def _check_notices(self) -> None:
        published = [notice.type for notice in self.harness.notices()]
        for notice in self.harness.notices():
            if notice.type in ("retrying", "fallback"):
                assert (notice.run_id, notice.session_id) == ("r1", self.harness.session)
        assert published.count("retrying") == ("retry" in self.has)
        assert published.count("fallback") == ("fallback" in self.has)
        assert published.count("re_authenticate") == 0
        assert published.count("error") == 0

    def _check_others(self, end: RunComplete) -> None:
        if "steer" in self.has:
            folded = self.harness.end_of("s1")
            assert (folded.outcome, folded.folded_into, folded.text) == (end.outcome, "r1", end.text)
        if "queue" in self.has:
            assert self.harness.end_of("q1").outcome == end.outcome, "a cancel covers all that waits"

    def _check_requests(self, messages: Sequence[Message]) -> None:
        """Check the requests: each text once in the first one, and in the last one the texts added meanwhile."""
        has = self.has
        own = [item for item in self.requests if "later that" not in _texts_of(item)]
        first, last = own[0], own[-1]
        meant = "expanded words" if "command" in has else "plain words" if "fallback" in has else "go"
        typed = next(part.data for message in messages for part in message.parts if isinstance(part, TextPart))
        assert isinstance(typed, Text)
        assert typed.text == "go", "the typed text is shown"
        hook_text = "\n\na hook has read: go" if "hooks" in has else ""
        assert _texts_of(first) == meant + hook_text
        if "cancel" in has:
            return
        assert len(own) == 2 + len(has & {"retry", "credentials"})
        assert ("the tool was here" in _texts_of(last)) == ("summary" not in has)
        if "summary" in has:
            assert _texts_of(last).startswith("in short")
            assert f"the user's request was:\n\n{meant}" in _texts_of(last)
        for feature, words in (("shell", "$ make\nit is made"), ("steer", "also this")):
            assert (words in _texts_of(last)) == (feature in has), feature
        parts = [part for item in last.messages for part in item.parts]
        signed = [part.data.signature for part in parts if isinstance(part, ReasoningPart)]
        assert signed == (["signed"] if "reasoning" in has and "summary" not in has else [])
        answered = self.new if "credentials" in has else self.old
        assert answered.requests, "the renewed model answers"
        if "credentials" in has:
            assert "done" in text_of(messages[-1]) or "queue" in has


def _texts_of(request: ModelRequest) -> str:
    pieces = []
    for message in request.messages:
        pieces += [text_of(message), *(result.content for result in message.tool_results)]
    return "\n".join(piece for piece in pieces if piece)


def play(features: tuple[str, ...]) -> None:
    async def scenario() -> None:
        meeting = FeatureRun(features)
        await meeting.play()
        await meeting.check()

    in_virtual_time(scenario)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_alone(feature: str) -> None:
    play((feature,))


@pytest.mark.parametrize("first", FEATURES[:-1])
def test_a_feature_with_each_other_one(first: str) -> None:
    for pair in combinations(FEATURES, 2):
        if pair[0] == first:
            play(pair)


@pytest.mark.parametrize("left_out", ["cancel", *(name for name in FEATURES if name != "cancel")])
def test_all_features_but_one_at_once(left_out: str) -> None:
    play(tuple(name for name in FEATURES if name not in (left_out, "cancel")))


def test_all_features_at_once() -> None:
    play(FEATURES)
