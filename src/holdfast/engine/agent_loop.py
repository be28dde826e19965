"""Drive one run, step after step: ask the model, run the tools it asked for, ask again.

A step is one provider request with its tools. Before each of them lies a step boundary, where prompts that
steer are folded in. The loop ends when the model has nothing more to do, when a tool stops the turn, or when
it runs in circles. Everything it says goes through the turn.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.domain.errors import HoldfastError, ProviderError
from holdfast.domain.events import AgentNotice
from holdfast.domain.ids import MessageId
from holdfast.domain.ledger import Briefing, PatchSession
from holdfast.domain.messages import Finish, FinishReason, Message
from holdfast.domain.models import ModelInfo, ModelRequest, StepFinish
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.tools import ASKS_PEOPLE, Tool
from holdfast.domain.usage import Usage, estimate_tokens
from holdfast.engine.compaction import continuation_note, is_nearly_full, summarize
from holdfast.engine.history import conversation, size_of
from holdfast.engine.model_call import ModelCall
from holdfast.engine.ports import Model, Tools
from holdfast.engine.prompt_hooks import hear_folded
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.engine.run_context import RunContext
from holdfast.engine.system_prompt import git_note, helper_instructions, system_prompt
from holdfast.engine.tool_calls import NOT_RUN, answer_without_running, run_calls
from holdfast.engine.turn import Turn

__all__ = ["WINDOW", "LimitReached", "RunFault", "drive", "drive_summary", "is_repeating", "signature"]


# Notice a model that asks for the same thing over and over. Pure.

WINDOW = 10
"""How many of the last steps are looked at; with fewer, nothing is said."""

_TOLERATED = 5


def signature(assistant: Message, results: Sequence[Message]) -> bytes | None:
    """What a step asked for and what it got, as a digest; None for a step without tool calls."""
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
    """True if one of the last steps happened more often than is sensible."""
    if len(signatures) < WINDOW:
        return False
    counts = Counter(item for item in signatures[-WINDOW:] if item is not None)
    return any(count > _TOLERATED for count in counts.values())


# Drive one run, step after step: ask the model, run the tools it asked for, ask again.

_REASONS: dict[StepFinish, FinishReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
    "other": "unknown",
}


_TOO_LONG = (
    "The conversation is longer than the model takes: {} "
    "Shorten the prompt, start a new session, or choose a model with a larger context."
)


class LimitReached(HoldfastError):
    """The run used up what it may use."""


class RunFault(HoldfastError):
    """Something that the run started is out of control."""


async def drive(
    turn: Turn, run_context: RunContext, briefing: Briefing, boundary: Callable[[], Awaitable[None] | None]
) -> None:
    """The turn of a prompt. `boundary` is asked before every provider request, and what it answers is awaited."""
    loop = await _loop_for(turn, run_context, briefing)
    while True:
        if (folds := boundary()) is not None:
            # Whoever is folded in comes after the prompt that began the turn.
            await turn.start()
            before = len(turn.messages)
            await folds
            await hear_folded(turn, run_context, turn.messages[before:])
        turn.take_later()
        _check_limits(turn, run_context)
        if not await loop.step():
            return


async def drive_summary(turn: Turn, run_context: RunContext, briefing: Briefing) -> None:
    """The turn of a summary asked for by hand. An empty conversation needs none."""
    if briefing.messages:
        asking = ModelCall(turn, run_context, await run_context.models.large())
        await summarize(turn, asking, briefing.session, briefing.messages)


async def _loop_for(turn: Turn, run_context: RunContext, briefing: Briefing) -> "_Loop":
    if run_context.extensions_ready is not None and not turn.run.interactive:
        await run_context.extensions_ready()
    place = await run_context.project_context(turn.run.session_id)
    subagent_type = run_context.subagents.type_of(turn.run.run_id)
    if subagent_type is None:
        model, trouble = await run_context.model(turn.brief.model if turn.brief is not None else "")
        if turn.run.require_model and model.info.fallback_reason:
            raise ProviderError(model.info.fallback_reason, title="No usable model", trouble="refused")
        loop = _Loop(turn, run_context, model, briefing, system_prompt(place), run_context.tools)
        loop.trouble = trouble
        return loop
    system = helper_instructions(place, subagent_type.text, subagent_type.prompt)
    # What is wrong with its model is told by the call that sent it.
    model, _ = await run_context.model(subagent_type.model)
    return _Loop(turn, run_context, model, briefing, system, subagent_type.tools)


class _Loop:
    """What lasts from step to step."""

    def __init__(
        self, turn: Turn, run_context: RunContext, model: Model, briefing: Briefing, system: str, tools: Tools
    ) -> None:
        self._turn = turn
        self._run_context = run_context
        self._asking = ModelCall(turn, run_context, model)
        self._session = briefing.session
        self._earlier = briefing.messages
        turn.follows(briefing.messages)
        self._note = ""
        self.trouble = ""
        """Why it is not the model that was wanted, until that was told."""
        self._system = system
        self._tools = tools
        self._signatures: list[bytes | None] = []
        self._made_room = False

    @property
    def _info(self) -> ModelInfo:
        return self._asking.model.info

    @property
    def _history(self) -> list[Message]:
        return [*self._earlier, *self._turn.messages]

    def _tell_trouble(self) -> None:
        """Beside an answer that is still empty: screens show it until there is something else to show."""
        if self.trouble:
            run = self._turn.run
            self._turn.tell(AgentNotice("fallback", error=self.trouble, run_id=run.run_id, session_id=run.session_id))
            self.trouble = ""

    def _offered(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Where nobody is there, none that asks. A model that knows it from before is told why when it calls it."""
        if self._turn.run.interactive:
            return tools
        return [tool for tool in tools if tool.spec.name not in ASKS_PEOPLE]

    async def step(self) -> bool:
        """One provider request and its tools. True if the model is to be asked again."""
        tools = await self._tools.current()
        request = self._request(self._offered(tools))
        await self._turn.begin_step(self._info)
        self._tell_trouble()
        try:
            assembly = await self._asking.answer(request)
        except ProviderError as error:
            await self._make_room(error)
            return True
        before = len(self._turn.messages)
        goes_on, reason = await self._act(assembly, tools)
        if fault := self._run_context.completion_error(self._turn.run.run_id):
            raise RunFault(fault)
        results = self._turn.messages[before:]
        answer = assembly.message()
        self._signatures.append(signature(answer, results))
        goes_on = goes_on and not is_repeating(self._signatures)
        usage = _usage(assembly, request, answer)
        finish, patch = Finish(reason, self._turn.now_ms() // 1000), PatchSession(self._patch(assembly, usage))
        if not goes_on and not self._is_nearly_full(usage):
            self._turn.leave(finish, patch)
            return False
        await self._turn.finish_step(finish, patch)
        if self._is_nearly_full(usage):
            await self._compact()
        return goes_on

    def _request(self, tools: Sequence[Tool]) -> ModelRequest:
        info = self._info
        summary = self._session.summary_message_id or None
        messages = conversation(self._history, info, summary=summary, note=self._note, beside=self._beside())
        specs = tuple(tool.spec for tool in tools)
        return ModelRequest(self._session.id, self._system, messages, specs, info.max_output_tokens)

    def _beside(self) -> dict[MessageId, str]:
        """The state of the work tree, always with the same message of the user: a cached prefix stays valid."""
        newest = next((item for item in reversed(self._history) if item.role == "user"), None)
        if newest is None or self._run_context.context_loader is None:
            return {}
        changes = self._run_context.context_loader.git_changes(self._session.id, newest.id)
        return {message: git_note(found) for message, found in changes.items()}

    async def _act(self, assembly: ResponseBuilder, tools: Sequence[Tool]) -> tuple[bool, FinishReason]:
        """Run the tools that were asked for. Whether to go on, and the reason to store."""
        reason = _REASONS[assembly.finish or "other"]
        if not assembly.message().tool_calls:
            return False, reason
        message = await self._turn.put_open()
        if assembly.finish in ("length", "content_filter"):
            await answer_without_running(self._turn, message, NOT_RUN)
            return False, reason
        if await run_calls(self._turn, self._run_context, message, tools):
            return False, "end_turn"
        return True, "tool_use"

    def _patch(self, assembly: ResponseBuilder, usage: Usage) -> SessionPatch:
        """Token counts are replaced: they tell the size of the context now. The turn adds the cost."""
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
        """The provider says the conversation is too long: summarise it, once. Raises any other error again."""
        if error.trouble != "overflow":
            raise error
        has_answers = any(message.role == "assistant" for message in self._history)
        if self._made_room or not has_answers or not self._run_context.settings.auto_summarize:
            raise ProviderError(_TOO_LONG.format(error), title="Context overflow", trouble="overflow")
        self._made_room = True
        await self._turn.discard()
        await self._compact()

    async def _compact(self) -> None:
        summary = await summarize(self._turn, self._asking, self._session, self._history)
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
        raise LimitReached(f"limit: the run made {turn.step} steps, as many as it may.")
    if limits.minutes and turn.minutes >= limits.minutes:
        raise LimitReached(f"limit: the run took {turn.minutes:.0f} minutes, as many as it may.")
    if limits.cost and turn.cost >= limits.cost:
        raise LimitReached(f"limit: the run cost ${turn.cost:.2f}, as much as it may.")
