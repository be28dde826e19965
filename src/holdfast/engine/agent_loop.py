"""The agent loop: call the model, run its tool calls, repeat.

A step is one provider request with the tool calls in its response. Each step begins with a step boundary, where
steering prompts are folded into the turn. The loop ends when a response has no tool calls, when a tool stops the turn,
or when the model repeats itself. All output is recorded and published by the turn.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.domain.errors import HoldfastError, ProviderError
from holdfast.domain.events import AgentNotice
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import Finish, FinishReason, Message
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StepFinish
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Briefing, PatchSession
from holdfast.domain.tools import INTERACTIVE_TOOLS, Tool
from holdfast.domain.usage import Usage, estimate_tokens
from holdfast.engine.compaction import continuation_note, is_nearly_full, summarize
from holdfast.engine.history import conversation, size_of
from holdfast.engine.model_call import ModelCall
from holdfast.engine.ports import Model, Tools
from holdfast.engine.prompt_preparation import apply_hooks_to_folded
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.engine.run_context import RunContext
from holdfast.engine.system_prompt import git_note, subagent_prompt, system_prompt
from holdfast.engine.tool_calls import NOT_RUN, reject_calls, run_calls
from holdfast.engine.turn import Turn

__all__ = ["WINDOW", "LimitReached", "RunFault", "is_repeating", "run_summary_turn", "run_turn", "signature"]


# Loop detection. Pure.

WINDOW = 10
"""Number of last steps that are compared. A shorter run is never considered repeating."""

_MAX_REPEATS = 5


def signature(assistant: Message, results: Sequence[Message]) -> bytes | None:
    """Return a digest of the tool calls of a step and their results; None for a step without tool calls."""
    if not assistant.tool_calls:
        return None
    answers = {result.tool_call_id: result.content for message in results for result in message.tool_results}
    digest = hashlib.sha256()
    for call in assistant.tool_calls:
        for text in (call.name, call.input, answers.get(call.id, "")):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


def is_repeating(signatures: Sequence[bytes | None]) -> bool:
    """Return whether the same step occurs more than `_MAX_REPEATS` times among the last steps."""
    if len(signatures) < WINDOW:
        return False
    counts = Counter(item for item in signatures[-WINDOW:] if item is not None)
    return any(count > _MAX_REPEATS for count in counts.values())


# The loop.

_REASONS: dict[StepFinish, FinishReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
    "other": "unknown",
}


_CONTEXT_OVERFLOW = (
    "The conversation exceeds the context window of the model: {} "
    "Shorten the prompt, start a new session, or choose a model with a larger context."
)


class LimitReached(HoldfastError):
    """The run reached its limit of steps, minutes or cost."""


class RunFault(HoldfastError):
    """The run must not complete because a process that it started cannot be controlled any more."""


async def run_turn(
    turn: Turn, run_context: RunContext, briefing: Briefing, boundary: Callable[[], Awaitable[None] | None]
) -> None:
    """Run the turn of a prompt. `boundary` is called before every provider request; if it returns an awaitable, folded
    prompts are being stored, and the request waits for it.
    """
    loop = await _loop_for(turn, run_context, briefing)
    while True:
        if (folds := boundary()) is not None:
            # Folded prompts are stored after the prompt that started the turn.
            await turn.start()
            before = len(turn.messages)
            await folds
            await apply_hooks_to_folded(turn, run_context, turn.messages[before:])
        turn.add_queued_messages()
        _check_limits(turn, run_context)
        if not await loop.step():
            return


async def run_summary_turn(turn: Turn, run_context: RunContext, briefing: Briefing) -> None:
    """Run the turn of a manual summary. An empty conversation is left unchanged."""
    if briefing.messages:
        model, _ = await run_context.model("large")
        model_call = ModelCall(turn, run_context, model)
        await summarize(turn, model_call, briefing.session, briefing.messages)


async def _loop_for(turn: Turn, run_context: RunContext, briefing: Briefing) -> "_Loop":
    # A prompt must not wait for MCP servers (decision 16); only unattended runs do, for a bounded time.
    if run_context.extensions_ready is not None and not turn.run.interactive:
        await run_context.extensions_ready()
    place = await run_context.project_context(turn.run.session_id)
    subagent_type = run_context.subagents.type_of(turn.run.run_id)
    if subagent_type is None:
        name = turn.brief.model if turn.brief is not None else ""
        model, trouble = await run_context.model(name, allows_fallback=not turn.run.require_model)
        loop = _Loop(turn, run_context, model, briefing, system_prompt(place), run_context.tools)
        loop.trouble = trouble
        return loop
    system = subagent_prompt(place, subagent_type.text, subagent_type.prompt)
    # The tool call that started the sub-agent reports an unusable model.
    model, _ = await run_context.model(subagent_type.model)
    return _Loop(turn, run_context, model, briefing, system, subagent_type.tools)


class _Loop:
    """State that is kept from step to step."""

    def __init__(
        self, turn: Turn, run_context: RunContext, model: Model, briefing: Briefing, system: str, tools: Tools
    ) -> None:
        self._turn = turn
        self._run_context = run_context
        self._model_call = ModelCall(turn, run_context, model)
        self._session = briefing.session
        self._earlier = briefing.messages
        turn.reserve_call_ids(briefing.messages)
        self._note = ""
        self.trouble = ""
        """Why another model than the selected one is used; empty once it is published."""
        self._system = system
        self._tools = tools
        self._signatures: list[bytes | None] = []
        self._made_room = False

    @property
    def _info(self) -> ModelInfo:
        return self._model_call.model.info

    @property
    def _history(self) -> list[Message]:
        return [*self._earlier, *self._turn.messages]

    def _publish_fallback(self) -> None:
        """Publish why another model is used, once, while the response is still empty: screens show it until text
        arrives.
        """
        if self.trouble:
            run = self._turn.run
            self._turn.notify(AgentNotice("fallback", error=self.trouble, run_id=run.run_id, session_id=run.session_id))
            self.trouble = ""

    def _available_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Return the tools to offer. Non-interactive runs are offered none that requests input; if the model calls one
        that it knows from earlier turns, the result explains why it cannot be used.
        """
        if self._turn.run.interactive:
            return tools
        return [tool for tool in tools if tool.spec.name not in INTERACTIVE_TOOLS]

    async def step(self) -> bool:
        """Make one provider request and run its tool calls. Return whether another step follows."""
        tools = await self._tools.current()
        request = self._request(self._available_tools(tools))
        # The empty message is stored before the request, so that every streamed part belongs to a stored message.
        await self._turn.begin_step(self._info)
        self._publish_fallback()
        try:
            assembly = await self._model_call.answer(request)
        except ProviderError as error:
            await self._make_room(error)
            return True
        before = len(self._turn.messages)
        continues, reason = await self._run_tool_calls(assembly, tools)
        if fault := self._run_context.completion_error(self._turn.run.run_id):
            raise RunFault(fault)
        results = self._turn.messages[before:]
        answer = assembly.message()
        self._signatures.append(signature(answer, results))
        # A model that repeats the same calls with the same results would continue until a limit ends the run.
        continues = continues and not is_repeating(self._signatures)
        usage = _usage(assembly, request, answer)
        finish, patch = Finish(reason, self._turn.now_ms() // 1000), PatchSession(self._patch(assembly, usage))
        # The last response is stored with the end of the run, in one write instead of two.
        if not continues and not self._is_nearly_full(usage):
            self._turn.finish_last_step(finish, patch)
            return False
        await self._turn.finish_step(finish, patch)
        if self._is_nearly_full(usage):
            await self._compact()
        return continues

    def _request(self, tools: Sequence[Tool]) -> ModelRequest:
        info = self._info
        summary = self._session.summary_message_id or None
        messages = conversation(self._history, info, summary=summary, note=self._note, beside=self._git_notes())
        specs = tuple(tool.spec for tool in tools)
        return ModelRequest(self._session.id, self._system, messages, specs, info.max_output_tokens)

    def _git_notes(self) -> dict[MessageId, str]:
        """Return the state of the work tree by the user message that it is sent with. A state stays with its message,
        so that the prefix cached by the provider stays valid.
        """
        newest = next((item for item in reversed(self._history) if item.role == "user"), None)
        if newest is None or self._run_context.context_loader is None:
            return {}
        changes = self._run_context.context_loader.git_changes(self._session.id, newest.id)
        return {message: git_note(found) for message, found in changes.items()}

    async def _run_tool_calls(self, assembly: ResponseBuilder, tools: Sequence[Tool]) -> tuple[bool, FinishReason]:
        """Run the tool calls of a response. Return whether another step follows, and the finish reason to store."""
        reason = _REASONS[assembly.finish or "other"]
        if not assembly.message().tool_calls:
            return False, reason
        message = await self._turn.store_open_message()
        # The arguments of a response that was cut off may be incomplete, even if they can be parsed.
        if assembly.finish in ("length", "content_filter"):
            await reject_calls(self._turn, message, NOT_RUN)
            return False, reason
        if await run_calls(self._turn, self._run_context, message, tools):
            return False, "end_turn"
        return True, "tool_use"

    def _patch(self, assembly: ResponseBuilder, usage: Usage) -> SessionPatch:
        """Return the patch of the session. Token counts are the current size of the context; the turn adds the cost."""
        return SessionPatch(
            self._session.id,
            self._turn.now_ms() // 1000,
            prompt_tokens=(usage.input_tokens + usage.cache_read_tokens) or None,
            completion_tokens=usage.output_tokens or None,
            estimated_usage=not assembly.usage.is_reported,
        )

    def _is_nearly_full(self, usage: Usage) -> bool:
        used = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens + usage.output_tokens
        return self._run_context.settings.auto_summarize and is_nearly_full(self._info.context_window, used)

    async def _make_room(self, error: ProviderError) -> None:
        """Summarise a conversation that exceeds the context window, once. Reraises every other error."""
        if error.trouble != "overflow":
            raise error
        has_answers = any(message.role == "assistant" for message in self._history)
        if self._made_room or not has_answers or not self._run_context.settings.auto_summarize:
            raise ProviderError(_CONTEXT_OVERFLOW.format(error), title="Context overflow", trouble="overflow")
        self._made_room = True
        await self._turn.discard()
        await self._compact()

    async def _compact(self) -> None:
        summary = await summarize(self._turn, self._model_call, self._session, self._history)
        self._session = msgspec.structs.replace(self._session, summary_message_id=summary.id)
        brief = self._turn.brief
        self._note = continuation_note(brief.text if brief is not None else self._turn.run.prompt)


def _usage(assembly: ResponseBuilder, request: ModelRequest, answer: Message) -> Usage:
    if assembly.usage.is_reported:
        return assembly.usage
    return Usage(
        input_tokens=estimate_tokens(size_of(request.messages) + len(request.system)),
        output_tokens=estimate_tokens(size_of((answer,))),
    )


def _check_limits(turn: Turn, run_context: RunContext) -> None:
    limits = run_context.settings.limits
    if limits.steps and turn.step >= limits.steps:
        raise LimitReached(f"limit: the run made {turn.step} steps, which is its limit.")
    if limits.minutes and turn.minutes >= limits.minutes:
        raise LimitReached(f"limit: the run took {turn.minutes:.0f} minutes, which is its limit.")
    if limits.cost and turn.cost >= limits.cost:
        raise LimitReached(f"limit: the run cost ${turn.cost:.2f}, which is its limit.")
