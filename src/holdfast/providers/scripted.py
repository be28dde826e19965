"""The built-in scripted model: plays back a script.

It needs no key and no network, and is always labelled as scripted. A script is a list of steps; each provider request
plays the next one. Words are streamed one by one, with an optional pause between them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.domain.ids import ToolCallId
from holdfast.domain.models import (
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

__all__ = ["Act", "Call", "Fail", "Say", "ScriptedModel", "ScriptedModels", "Step", "Think", "tokens_of"]


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

_INFO = ModelInfo(provider="demo", model="scripted", context_window=200_000, max_output_tokens=4_096, price=Price())


def tokens_of(text: str) -> Iterator[str]:
    """Split text into words, each with its preceding space, as models stream them."""
    start = 0
    for place, character in enumerate(text):
        if character == " " and place > start:
            yield text[start:place]
            start = place
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
        self._asked = 0
        self.open_streams = 0

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Play the next step of the script."""
        self._asked += 1
        if self._remembers:
            self.requests.append(request)
        self.open_streams += 1
        try:
            for part in self._play(self._script(request)):
                yield part
                await asyncio.sleep(self._pause())
        finally:
            self.open_streams -= 1

    def _play(self, step: Step) -> Iterator[StreamPart]:
        for number, act in enumerate(step.acts):
            match act:
                case Say(text=text):
                    yield from map(TextDelta, tokens_of(text))
                case Think(text=text, signature=signature):
                    yield from map(ReasoningDelta, tokens_of(text))
                    if signature:
                        yield ReasoningSignature(signature)
                case Call():
                    yield from _call(act, ToolCallId(f"call_{self._asked}_{number}"))
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
