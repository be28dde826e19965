"""Ask a model until it has answered: wait and try again where that helps, fetch new credentials once."""

import asyncio
from contextlib import aclosing
from typing import Literal

from holdfast.domain.errors import ProviderError
from holdfast.domain.events import AgentNotice
from holdfast.domain.models import ModelRequest, UsagePart
from holdfast.domain.usage import cost_of
from holdfast.engine.ports import Model
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.engine.retries import wait_before_retry
from holdfast.engine.run_context import RunContext
from holdfast.engine.turn import Turn, TurnClosed

__all__ = ["ModelCall", "stream_into"]


# Read one answer of a model into the turn.

_PARTS_BETWEEN_PAUSES = 64


async def stream_into(turn: Turn, model: Model, request: ModelRequest) -> ResponseBuilder:
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


# Ask a model until it has answered: wait and try again where that helps, fetch new credentials once.


class ModelCall:
    """A model for the length of one turn. `model` is the current one: new credentials make a new object of it."""

    def __init__(self, turn: Turn, run_context: RunContext, model: Model) -> None:
        self.model = model
        self._turn = turn
        self._run_context = run_context

    async def answer(self, request: ModelRequest) -> ResponseBuilder:
        """The complete answer to one request. What a failed attempt said is withdrawn before the next begins."""
        failures = 0
        may_renew = True
        while True:
            try:
                return await stream_into(self._turn, self.model, request)
            except ProviderError as error:
                if error.trouble == "credentials" and may_renew and await self._renewed(error):
                    may_renew = False
                    failures = 0
                    wait = 0.0
                else:
                    failures += 1
                    wait = self._wait(error, failures)
                await self._turn.withdraw()
                await asyncio.sleep(wait)

    async def _renewed(self, error: ProviderError) -> bool:
        """Whether there is another key or token to try."""
        model = await self._run_context.models.renewed(self.model)
        if model is None:
            self._tell("re_authenticate", str(error))
            return False
        self.model = model
        return True

    def _wait(self, error: ProviderError, failures: int) -> float:
        policy = self._run_context.settings.retries
        wait = wait_before_retry(policy, error, failures)
        if wait is None:
            raise error
        most = policy.attempts(error.trouble)
        self._tell("retrying", f"{error} Trying again in {wait:.0f} s ({failures} of {most}).")
        return wait

    def _tell(self, kind: Literal["retrying", "re_authenticate"], text: str) -> None:
        run = self._turn.run
        self._turn.tell(AgentNotice(kind, error=text, run_id=run.run_id, session_id=run.session_id))
