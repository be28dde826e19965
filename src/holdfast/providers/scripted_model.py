"""The built-in scripted model: plays back a script.

It needs no key and no network, and is always labelled as scripted. A script is a list of steps; each provider request
plays the next one. Words are streamed one by one, with an optional pause between them. The demo model, for
installations without a model, chooses its steps by keywords in the prompt.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import TextPart
from holdfast.domain.model_requests import (
    FinishedPart,
    ModelInfo,
    ModelRequest,
    ReasoningDelta,
    ReasoningSignature,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsagePart,
)
from holdfast.domain.usage import Price, Usage

__all__ = [
    "TOUR",
    "Act",
    "Call",
    "DemoModel",
    "Fail",
    "Say",
    "ScriptedModel",
    "ScriptedModels",
    "Step",
    "Think",
    "tokens_of",
    "tour_titles",
]
_INFO = ModelInfo(provider="demo", model="scripted", context_window=200_000, max_output_tokens=4_096, price=Price())
TOUR = ModelInfo(
    provider="demo",
    model="tour",
    context_window=200_000,
    max_output_tokens=4_096,
    name="Scripted tour (no model)",
    can_reason=True,
    is_scripted=True,
)
_MAX_WORDS = 100_000
_NUMBER = re.compile(r"\b(words|pause)=(\d{1,6})\b")
_TOOL = re.compile(r"\btool=(\w+)\s*")
_HELLO = (
    "This is Holdfast's built-in scripted model: no language model is configured, so its answers are fixed texts. "
    "Everything around it is real. Say tour to see what it can do, or try words=200 pause=50, and cancel it. "
    "For a real model set a key (holdfast login), or start Ollama; holdfast models lists the available ones."
)
_END = (
    "That was the tour. You saw reasoning, streamed text, a tool, and a question before anything was changed. "
    "While something runs you may steer it with another prompt, cancel it, or close the terminal: it goes on."
)


class Say(msgspec.Struct, frozen=True):
    """Stream this text, word by word."""

    text: str


class Think(msgspec.Struct, frozen=True):
    """Stream this text as reasoning, followed by its signature if there is one."""

    text: str
    signature: str = ""


class Call(msgspec.Struct, frozen=True):
    """Request a tool call. `arguments` is JSON text, sent unchanged even if it is invalid."""

    name: str
    arguments: str = "{}"
    id: ToolCallId | None = None


class Fail(msgspec.Struct, frozen=True):
    """Fail at this point: raise an error, or end the stream without a finish part."""

    message: str = "The scripted model was told to fail."
    hangs_up: bool = False
    trouble: Trouble = "other"
    retry_after: float | None = None


Act: TypeAlias = Say | Think | Call | Fail


class Step(msgspec.Struct, frozen=True):
    """One response. Without `finish`, the finish reason is `tool_calls` if it calls a tool, else `stop`."""

    acts: tuple[Act, ...]
    usage: Usage = Usage()
    finish: StepFinish | None = None


Script: TypeAlias = Callable[[ModelRequest], Step]


def tokens_of(text: str) -> Iterator[str]:
    """Split text into words, each with its preceding space, as models stream them."""
    start = 0
    for index, character in enumerate(text):
        if character == " " and index > start:
            yield text[start:index]
            start = index
    if start < len(text):
        yield text[start:]


class ScriptedModel:
    """Responds to each request with the step returned by its script. With `remembers=False` requests are not
    recorded, so that memory stays constant in a long-lived server.
    """

    def __init__(
        self,
        script: Script | Iterable[Step],
        *,
        info: ModelInfo = _INFO,
        pause: Callable[[], float] = lambda: 0.0,
        remembers: bool = True,
    ) -> None:
        self._script = script if callable(script) else _in_order(script)
        self._info = info
        self._pause = pause
        self.requests: list[ModelRequest] = []
        """Requests received so far, for tests."""
        self._remembers = remembers
        self._request_count = 0
        self.open_streams = 0

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Play the next step of the script."""
        self._request_count += 1
        if self._remembers:
            self.requests.append(request)
        self.open_streams += 1
        try:
            for part in self._stream_step(self._script(request)):
                yield part
                await asyncio.sleep(self._pause())
        finally:
            self.open_streams -= 1

    def _stream_step(self, step: Step) -> Iterator[StreamPart]:
        for number, act in enumerate(step.acts):
            match act:
                case Say(text=text):
                    yield from map(TextDelta, tokens_of(text))
                case Think(text=text, signature=signature):
                    yield from map(ReasoningDelta, tokens_of(text))
                    if signature:
                        yield ReasoningSignature(signature)
                case Call():
                    yield from _call(act, ToolCallId(f"call_{self._request_count}_{number}"))
                case Fail(hangs_up=True):
                    return
                case Fail(message=message, trouble=trouble, retry_after=wait):
                    raise ProviderError(message, title="Scripted failure", trouble=trouble, retry_after=wait)
        if step.usage.is_reported:
            yield UsagePart(step.usage)
        calls = any(isinstance(act, Call) for act in step.acts)
        yield FinishedPart(step.finish or ("tool_calls" if calls else "stop"))


class ScriptedModels:
    """Provides the same two models to every run."""

    def __init__(self, large: ScriptedModel, small: ScriptedModel | None = None) -> None:
        self._large = large
        self._small = small or ScriptedModel(lambda _: Step((Say("A scripted conversation"),)))

    async def large(self) -> ScriptedModel:
        """Return the large model."""
        return self._large

    async def small(self) -> ScriptedModel:
        """Return the small model."""
        return self._small

    async def renewed(self, _: object) -> None:
        """Return None: scripted models have no credentials to renew."""
        return None


def _call(act: Call, id: ToolCallId) -> Iterator[StreamPart]:
    id = act.id or id
    yield ToolCallStart(id, act.name)
    half = len(act.arguments) // 2
    yield ToolCallDelta(id, act.arguments[:half])
    yield ToolCallDelta(id, act.arguments[half:])
    yield ToolCallEnd(id)


def _in_order(steps: Iterable[Step]) -> Script:
    rest = iter(steps)

    def script(_: ModelRequest) -> Step:
        step = next(rest, None)
        if step is None:
            raise ProviderError("The script is over.", title="Scripted failure")
        return step

    return script


_APPROVAL_CALL = Call(
    "write",
    '{"file_path": "holdfast-tour.txt", "content": "The scripted tour of Holdfast wrote this. Delete it freely.\\n"}',
)


class DemoModel:
    """Plays one step per request, selected by the last prompt.

    `fallback_reason` is the reason for its use if it was not selected explicitly.
    """

    def __init__(self, fallback_reason: str = "") -> None:
        self._info = msgspec.structs.replace(TOUR, fallback_reason=fallback_reason)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Play the step for the last prompt of the request."""
        prompt = _last_prompt(request)
        numbers = {name: int(value) for name, value in _NUMBER.findall(prompt)}
        pause = min(numbers.get("pause", 0), 10_000) / 1000
        model = ScriptedModel([_step(request, prompt, numbers.get("words", 0))], info=self._info)
        async with aclosing(model.stream(request)) as parts:
            async for part in parts:
                yield part
                if pause:
                    await asyncio.sleep(pause)


def tour_titles() -> ScriptedModel:
    """Return the small model of the tour."""
    return ScriptedModel(lambda _: Step((Say("A scripted conversation"),)), info=TOUR, remembers=False)


def _last_prompt(request: ModelRequest) -> str:
    """Return the last user text. Prompts without a response are merged with the next one, as separate parts."""
    texts = [
        part.data.text
        for item in request.messages
        if item.role == "user"
        for part in item.parts
        if isinstance(part, TextPart)
    ]
    return texts[-1] if texts else ""


def _step(request: ModelRequest, prompt: str, words: int) -> Step:
    called = _steps_taken(request)
    usage = Usage(len(prompt) // 4 + 1, 20)
    if request.tools and prompt.strip().lower() in _SHOWS:
        return Step(_SHOWS[prompt.strip().lower()](called), usage)
    acts: list[Act] = []
    if re.search(r"\bthink\b", prompt):
        acts.append(Think("I pretend to think about it."))
    calls = list(_calls(prompt)) if request.tools else []
    if re.search(r"\bfail\b", prompt):
        acts.append(Fail("The scripted model was asked to fail."))
    elif called < len(calls):
        acts.append(calls[called])
    elif words:
        acts.append(Say(" ".join(f"word{number}" for number in range(1, min(words, _MAX_WORDS) + 1))))
    else:
        acts.append(Say(_HELLO))
    return Step(tuple(acts), usage)


def _steps_taken(request: ModelRequest) -> int:
    """Return the number of tool results since the last prompt."""
    steps_taken = 0
    for item in reversed(request.messages):
        if item.role == "user":
            break
        steps_taken += item.role == "tool"
    return steps_taken


def _calls(prompt: str) -> list[Call]:
    """Return the tool calls in a prompt, each with the JSON that follows it."""
    calls: list[Call] = []
    for found in _TOOL.finditer(prompt):
        rest = prompt[found.end() :]
        arguments = "{}"
        if rest.startswith("{"):
            try:
                arguments = rest[: json.JSONDecoder().raw_decode(rest)[1]]
            except (ValueError, RecursionError):
                # Invalid JSON is passed on unchanged, to exercise the error handling of tools.
                arguments = rest[: rest.find("}") + 1] or rest
        calls.append(Call(found[1], arguments))
    return calls


def _tour_step(steps_taken: int) -> tuple[Act, ...]:
    match steps_taken:
        case 0:
            return (
                Think("I pretend to think: first I look around, then I ask before I change anything."),
                Say("I am a script, and this is a short tour. First I look at your files."),
                Call("ls"),
            )
        case 1:
            return (Say("Now I want to write a file called holdfast-tour.txt. You are asked first."), _APPROVAL_CALL)
        case _:
            return (Say(_END),)


def _ask(steps_taken: int) -> tuple[Act, ...]:
    return (Say("May I?"), _APPROVAL_CALL) if steps_taken == 0 else (Say("Thank you. That was all."),)


_SHOWS = {"tour": _tour_step, "ask": _ask}
