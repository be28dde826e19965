"""Models that report their cost, and a meter that adds it up."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.domain.ids import SessionId, ToolCallId
from holdfast.domain.model_requests import (
    FinishedPart,
    ModelInfo,
    ModelRequest,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCallEnd,
    ToolCallStart,
    UsagePart,
)
from holdfast.domain.usage import Price, Usage, cost_of

PRICE = Price(input=1_000_000.0, output=3_000_000.0, cache_read=500_000.0, cache_write=250_000.0)
"""Dollars per token, chosen so that every count is visible in a sum."""


class Wait:
    """The provider sends nothing more."""


Part: TypeAlias = StreamPart | ProviderError | Wait
Script: TypeAlias = Callable[[ModelRequest], Sequence[Part]]


def usage_of(number: int) -> Usage:
    """Return a different amount of every kind of token for each response."""
    return Usage(number, 2 * number, 4 * number, 8 * number)


def priced_response(number: int, finish: StepFinish | None = "stop", *, calls: Sequence[str] = ()) -> list[Part]:
    """Return a response with a first usage report before its text and the final one after it."""
    parts: list[Part] = [UsagePart(Usage(number)), TextDelta(f"answer {number}")]
    for place, name in enumerate(calls):
        call = ToolCallId(f"call-{number}-{place}")
        parts += [ToolCallStart(call, name), ToolCallEnd(call)]
    parts.append(UsagePart(usage_of(number)))
    return parts if finish is None else [*parts, FinishedPart("tool_calls" if calls else finish)]


def failing_response(number: int, trouble: Trouble, *, early: bool = False) -> list[Part]:
    """Return a response that fails after a usage report, before or after its first text."""
    report = UsagePart(usage_of(number))
    return [*([report] if early else [TextDelta("words"), report]), ProviderError("It broke.", trouble=trouble)]


class Meter:
    """Cost of all responses by session. A later report of a response replaces an earlier one."""

    def __init__(self) -> None:
        self.cost: defaultdict[SessionId, float] = defaultdict(float)
        self.is_waiting = asyncio.Event()
        self.numbers = iter(range(1, 10_000))

    @property
    def total(self) -> float:
        return sum(self.cost.values())


class MeteredModel:
    """Plays the response that its script returns for each request."""

    def __init__(self, meter: Meter, script: Script, *, name: str = "metered", window: int = 0) -> None:
        self.meter = meter
        self._script = script
        self.info = ModelInfo("test", name, context_window=window, price=PRICE)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self.requests.append(request)
        reported = 0.0
        for part in self._script(request):
            await asyncio.sleep(0)
            if isinstance(part, ProviderError):
                raise part
            if isinstance(part, Wait):
                self.meter.is_waiting.set()
                await asyncio.get_running_loop().create_future()
                continue
            if isinstance(part, UsagePart):
                cost = cost_of(part.usage, self.info.price)
                self.meter.cost[request.session_id] += cost - reported
                reported = cost
            yield part
