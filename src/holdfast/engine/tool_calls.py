"""Carry out the tool calls of one step.

Calls are taken in order. Neighbours that may run side by side do so, a few at a time; every other call waits
for those before it and runs alone. A tool's failure is a result for the model, never the end of the turn.
"""

import asyncio
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

import msgspec

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import PermissionDenied, StorageError, ToolError
from holdfast.domain.events import ToolOutput, ToolOutputEvent
from holdfast.domain.files import ReadMark
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message, ToolCall, ToolResult, replace_surrogates
from holdfast.domain.store_operations import Operation, Receipt
from holdfast.domain.tools import TOOLS, TOOLS_WITHOUT_REQUESTS, Permit, QuestionBatch, SubagentTask, Tool, ToolOutcome
from holdfast.engine.run_context import RunContext
from holdfast.engine.turn import Turn, TurnClosed

__all__ = ["NOT_RUN", "add_hook_output", "permit_for_hook", "refusal", "reject_calls", "run_calls"]


# Effects of hook rulings on a tool call. Pure.

_REFUSED = "A hook of the user's refused this call."
_HALTED = "A hook of the user's stopped the turn."


def refusal(ruling: HookOutcome) -> ToolOutcome | None:
    """Return the result of a call that a hook refuses; None if the call is executed."""
    if ruling.halts:
        return ToolOutcome(ruling.reason or _HALTED, is_error=True, stops_turn=True)
    if ruling.decision == "deny":
        return ToolOutcome(ruling.reason or _REFUSED, is_error=True)
    return None


def permit_for_hook(use: ToolUse, ruling: HookOutcome, path: str) -> Permit:
    """Return the permission request that a hook demands."""
    command = use.input.get("command")
    line = command if use.name == "bash" and isinstance(command, str) else ""
    what = ruling.reason or f"A hook requires approval for this call of {use.name}."
    where = use.input.get("working_dir") if line else ""
    # A rule that is saved for a command is valid in the directory in which the command would run.
    directory = posixpath.normpath(posixpath.join(path, where)) if isinstance(where, str) and where else path
    return Permit(use.name, "execute", directory, what, dict(use.input), line)


def add_hook_output(outcome: ToolOutcome, before: HookOutcome, after: HookOutcome | None = None) -> ToolOutcome:
    """Return the result extended by the hooks' texts for the model and their reports for screens."""
    after = after or HookOutcome()
    notes = [before.context]
    if after.decision == "deny" or after.halts:
        notes.append(after.reason)
    notes.append(after.context)
    content = "\n\n".join(piece for piece in (outcome.content, *notes) if piece)
    reports = {"hook": before.report, "post_hook": after.report}
    present = {name: report for name, report in reports.items() if report}
    if not present and content == outcome.content and not after.halts:
        return outcome
    return msgspec.structs.replace(
        outcome,
        content=content,
        metadata=_merge_metadata(outcome.metadata, present) if present else outcome.metadata,
        stops_turn=outcome.stops_turn or after.halts,
    )


def _merge_metadata(metadata: str, present: dict[str, dict[str, object]]) -> str:
    try:
        known = json.loads(metadata) if metadata else {}
    except ValueError:
        known = {}
    return json.dumps({**known, **present} if isinstance(known, dict) else present, ensure_ascii=False)


# Execution of the tool calls of one step.

NOT_RUN = "Not run: the answer was cut off before the calls were complete."
_STOPPED = "Not run: the turn was stopped by the call before."
_MALFORMED = "Not run: the arguments were not a JSON object. Send the call again with valid JSON."


class _Context:
    """The `ToolContext` of one call."""

    def __init__(self, turn: Turn, run_context: RunContext, message: Message, call: ToolCall) -> None:
        self._turn = turn
        self._run_context = run_context
        self.workspace_path = run_context.path
        self.session_id: SessionId = turn.run.session_id
        self.run_id: RunId = turn.run.run_id
        self.message_id: MessageId = message.id
        self.tool_call_id: ToolCallId = call.id
        self.environment: Mapping[str, str] = run_context.environment
        self.takes_images = turn.takes_images
        self._is_allowed = False
        self._has_begun = False
        """Whether the call got a permission or an answer, after which it may have effects."""
        self._output_length = 0

    def now_ms(self) -> int:
        return self._turn.now_ms()

    async def record(self, *operations: Operation) -> Receipt:
        return await self._turn.record(*operations)

    async def read_mark(self, path: str) -> ReadMark | None:
        return await self._run_context.ledger.read_mark(self._run_context.workspace, self.session_id, path)

    async def permit(self, permit: Permit) -> None:
        run, brief = self._turn.run, self._turn.brief
        skips = (
            run.yolo or self._is_allowed or (brief is not None and self._run_context.rules_allow(brief.allow, permit))
        )
        permit = msgspec.structs.replace(permit, continues=self._has_begun)
        with self._waiting():
            await self._run_context.permissions.permit(self, permit, interactive=run.interactive, skips=skips)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Mark the call as not running until its first permission: a call that does not get it has had no effects."""
        if not self._has_begun:
            self._turn.running_calls.discard(self.tool_call_id)
        yield
        self._has_begun = True
        self._turn.running_calls.add(self.tool_call_id)

    async def apply_ruling(self, ruling: HookOutcome, use: ToolUse) -> None:
        """Request permission if a hook demands it; skip later requests if a hook allows the call. Raises
        `PermissionDenied`.
        """
        if ruling.decision == "ask":
            run = self._turn.run
            permit = permit_for_hook(use, ruling, self.workspace_path)
            permissions = self._run_context.permissions
            await permissions.permit(self, permit, interactive=run.interactive, skips=run.yolo, insists=True)
        self._is_allowed = ruling.decision in ("allow", "ask")

    async def check_rules(self, use: ToolUse) -> None:
        """Have the rules consulted for a tool that requests no permission itself. Raises `PermissionDenied`."""
        if use.name in TOOLS_WITHOUT_REQUESTS:
            what, action = f"Use the tool {use.name}", TOOLS[use.name][0]
            await self.permit(Permit(use.name, action, self.workspace_path, what, dict(use.input), is_agreed=True))

    async def ask_questions(self, batch: QuestionBatch) -> tuple[QuestionAnswer, ...] | None:
        if not self._turn.run.interactive:
            raise ToolError("Questions cannot be answered in this run. Decide yourself, and state your assumptions.")
        with self._waiting():
            return await self._run_context.permissions.ask_questions(self, batch)

    async def run_subagent(self, task: SubagentTask) -> str:
        return await self._run_context.start_subagent(self, task)

    def publish_output(self, text: str) -> None:
        offset, self._output_length = self._output_length, self._output_length + len(text)
        output = ToolOutput(self.session_id, self.message_id, self.tool_call_id, offset, replace_surrogates(text))
        self._turn.publish_output(ToolOutputEvent(output))


class _Step:
    """The tool calls of one response."""

    def __init__(self, turn: Turn, run_context: RunContext, message: Message, tools: Sequence[Tool]) -> None:
        self.turn = turn
        self.run_context = run_context
        self.message = message
        self.tools = {tool.spec.name: tool for tool in tools}
        self.malformed = turn.open.malformed_calls if turn.open else frozenset()
        self.is_stopped = False
        self._task = asyncio.current_task()

    def is_parallel(self, call: ToolCall) -> bool:
        tool = self.tools.get(call.name)
        return tool is not None and tool.is_parallel

    async def run(self, call: ToolCall) -> None:
        self._stop_if_cancelled()
        outcome = ToolOutcome(_STOPPED, is_error=True) if self.is_stopped else await self._outcome(call)
        self.is_stopped = self.is_stopped or outcome.stops_turn
        await self.turn.add_result(self.turn.factory.tool(_result(call, outcome)))
        # A tool may suppress its cancellation: its result is stored, but nothing follows it.
        self._stop_if_cancelled()

    def _stop_if_cancelled(self) -> None:
        """Raise `CancelledError` if the run is cancelled. Parallel calls have tasks of their own, cancelled a moment
        later.
        """
        if any(task is not None and task.cancelling() for task in (self._task, asyncio.current_task())):
            raise asyncio.CancelledError

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
        if call.id in self.malformed:
            return ToolOutcome(_MALFORMED, is_error=True)
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return ToolOutcome(f"There is no tool called {call.name}. Available: {known}.", is_error=True)
        arguments = msgspec.json.decode(call.input, type=dict[str, object])
        use = ToolUse(self.turn.run.session_id, self.turn.run.run_id, call.id, call.name, arguments)
        if self.run_context.await_tools is not None:
            await self.run_context.await_tools()
        ruling = await self.run_context.hooks.before_tool(use)
        # Before permission is requested: the user must see the arguments that are executed.
        if ruling.input is not None:
            use = msgspec.structs.replace(use, input=ruling.input)
            await self.turn.rewrite_call(call.id, msgspec.json.encode(use.input).decode())
        if (refused := refusal(ruling)) is not None:
            return add_hook_output(refused, ruling)
        context = _Context(self.turn, self.run_context, self.message, call)
        try:
            await context.apply_ruling(ruling, use)
            await context.check_rules(use)
            outcome = await self._attempt(tool, context, use)
        except PermissionDenied as error:
            return add_hook_output(ToolOutcome(str(error), is_error=True, stops_turn=error.stops_turn), ruling)
        try:
            after = await self.run_context.hooks.after_tool(use, outcome)
        except asyncio.CancelledError:
            # The result is stored nevertheless; nothing follows it.
            after = None
        return add_hook_output(outcome, ruling, after)

    async def _attempt(self, tool: Tool, context: _Context, use: ToolUse) -> ToolOutcome:
        """Run the tool and return its result or its error. Raises `PermissionDenied`."""
        self.turn.running_calls.add(use.tool_call_id)
        try:
            if self.run_context.await_tools is not None:
                # The permission may have taken hours.
                await self.run_context.await_tools()
            return await tool.run(context, use.input)
        except PermissionDenied:
            raise
        except ToolError as error:
            return ToolOutcome(str(error), is_error=True)
        # These end the run; as a tool result, the model would only try again.
        except (StorageError, TurnClosed):
            raise
        except asyncio.CancelledError:
            self._stop_if_cancelled()
            return ToolOutcome(f"{use.name} was cancelled.", is_error=True)
        except Exception as error:
            return ToolOutcome(f"{use.name} failed: {type(error).__name__}: {error}", is_error=True)


async def run_calls(turn: Turn, run_context: RunContext, message: Message, tools: Sequence[Tool]) -> bool:
    """Run the calls of `message` and store a result for each. Return whether one of them stops the turn."""
    step = _Step(turn, run_context, message, tools)
    # Consecutive calls of parallel tools run together; any other call waits for those before it.
    for is_parallel, calls in groupby(message.tool_calls, key=step.is_parallel):
        if is_parallel:
            await _run_parallel(step, calls, run_context.settings.parallel_tools)
        else:
            for call in calls:
                await step.run(call)
    return step.is_stopped


async def reject_calls(turn: Turn, message: Message, why: str) -> None:
    """Store an error result for each call of `message` without running it."""
    for call in message.tool_calls:
        await turn.add_result(turn.factory.tool(_result(call, ToolOutcome(why, is_error=True))))


async def _run_parallel(step: _Step, calls: Iterable[ToolCall], most: int) -> None:
    places = asyncio.Semaphore(most)

    async def one(call: ToolCall) -> None:
        async with places:
            await step.run(call)

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(one(call))
    except BaseExceptionGroup as errors:
        # Raise the first error only: a run has one error.
        raise errors.exceptions[0] from None


def _result(call: ToolCall, outcome: ToolOutcome) -> ToolResult:
    return ToolResult(
        tool_call_id=call.id,
        name=call.name,
        content=replace_surrogates(outcome.content),
        metadata=replace_surrogates(outcome.metadata),
        is_error=outcome.is_error,
        data=outcome.data,
        mime_type=outcome.mime_type,
    )
