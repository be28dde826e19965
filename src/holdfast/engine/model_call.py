"""Calls a model: streams the response into the turn, retries transient errors, renews credentials once."""

import asyncio
from contextlib import aclosing
from typing import Literal

from holdfast.domain.errors import ProviderError
from holdfast.domain.events import AgentNotice
from holdfast.domain.model_requests import ModelRequest, UsagePart
from holdfast.domain.usage import cost_of
from holdfast.engine.ports import Model
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.engine.retries import retry_delay
from holdfast.engine.run_context import RunContext
from holdfast.engine.turn import Turn, TurnClosed

__all__ = ["ModelCall", "stream_into"]


_YIELD_INTERVAL = 64


async def stream_into(turn: Turn, model: Model, request: ModelRequest) -> ResponseBuilder:
    """Feed the response to the turn. The provider's connection is closed on every exit."""
    assembly = turn.open
    if assembly is None:
        raise TurnClosed
    count = 0
    charged = 0.0
    async with aclosing(model.stream(request)) as stream:
        async for part in stream:
            turn.feed(part)
            if type(part) is UsagePart:
                # Charge at once: the response may be cut off or withdrawn. A later report replaces an earlier one.
                cost = cost_of(part.usage, model.info.price)
                turn.charge(cost - charged)
                charged = cost
            count += 1
            if count % _YIELD_INTERVAL == 0:
                # Yield to the event loop: a provider whose data is always available would block other tasks.
                await asyncio.sleep(0)
    if assembly.finish is None:
        raise ProviderError(
            "The provider's response ended before it was complete.", title="Answer cut off", trouble="cut"
        )
    return assembly


class ModelCall:
    """The model of one turn. `model` is replaced when its credentials are renewed."""

    def __init__(self, turn: Turn, run_context: RunContext, model: Model) -> None:
        self.model = model
        self._turn = turn
        self._run_context = run_context

    async def answer(self, request: ModelRequest) -> ResponseBuilder:
        """Return the complete response to a request. The output of a failed attempt is withdrawn before the next
        one.
        """
        failures = 0
        may_renew = True
        while True:
            try:
                return await stream_into(self._turn, self.model, request)
            except ProviderError as error:
                if error.trouble == "credentials" and may_renew and await self._renew_credentials(error):
                    may_renew = False
                    failures = 0
                    wait = 0.0
                else:
                    failures += 1
                    wait = self._wait(error, failures)
                # Before the pause: clients must not show the partial text of a failed attempt while the next one waits.
                await self._turn.withdraw()
                await asyncio.sleep(wait)

    async def _renew_credentials(self, error: ProviderError) -> bool:
        """Replace the model by one with new credentials. Return False if there are none."""
        model = await self._run_context.models.renewed(self.model)
        if model is None:
            self._notify("re_authenticate", str(error))
            return False
        self.model = model
        return True

    def _wait(self, error: ProviderError, failures: int) -> float:
        policy = self._run_context.settings.retries
        wait = retry_delay(policy, error, failures)
        if wait is None:
            raise error
        most = policy.attempts(error.trouble)
        self._notify("retrying", f"{error} Trying again in {wait:.0f} s ({failures} of {most}).")
        return wait

    def _notify(self, kind: Literal["retrying", "re_authenticate"], text: str) -> None:
        run = self._turn.run
        self._turn.notify(AgentNotice(kind, error=text, run_id=run.run_id, session_id=run.session_id))
