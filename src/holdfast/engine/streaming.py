"""Read one answer of a model into the turn."""

import asyncio
from contextlib import aclosing

from holdfast.domain.errors import ProviderError
from holdfast.domain.models import ModelRequest, UsagePart
from holdfast.domain.usage import cost_of
from holdfast.engine.assembly import Assembly
from holdfast.engine.ports import Model
from holdfast.engine.turn import Turn, TurnClosed

__all__ = ["stream_into"]

_PARTS_BETWEEN_PAUSES = 64


async def stream_into(turn: Turn, model: Model, request: ModelRequest) -> Assembly:
    """Feed the answer to the turn, part by part. However this is left, the provider's connection is closed."""
    assembly = turn.open
    if assembly is None:
        raise TurnClosed
    count = 0
    charged = 0.0
    async with aclosing(model.stream(request)) as stream:
        async for part in stream:
            turn.feed(part)
            if type(part) is UsagePart:
                # At once, because the answer may be cut off or withdrawn. A later report replaces an earlier one.
                cost = cost_of(part.usage, model.info.price)
                turn.charge(cost - charged)
                charged = cost
            count += 1
            if count % _PARTS_BETWEEN_PAUSES == 0:
                # A provider that always has something ready must not keep everybody else waiting.
                await asyncio.sleep(0)
    if assembly.finish is None:
        raise ProviderError(
            "The provider's answer ended before it was complete.", title="Answer cut off", trouble="cut"
        )
    return assembly
