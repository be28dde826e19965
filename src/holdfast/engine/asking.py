"""Ask a model until it has answered: wait and try again where that helps, fetch new credentials once."""

import asyncio
from typing import Literal

from holdfast.domain.errors import ProviderError
from holdfast.domain.events import AgentNotice
from holdfast.domain.models import ModelRequest
from holdfast.engine.assembly import Assembly
from holdfast.engine.kit import Kit
from holdfast.engine.ports import Model
from holdfast.engine.retries import wait_before_retry
from holdfast.engine.streaming import stream_into
from holdfast.engine.turn import Turn

__all__ = ["Asking"]


class Asking:
    """A model for the length of one turn. `model` is the current one: new credentials make a new object of it."""

    def __init__(self, turn: Turn, kit: Kit, model: Model) -> None:
        self.model = model
        self._turn = turn
        self._kit = kit

    async def answer(self, request: ModelRequest) -> Assembly:
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
        model = await self._kit.models.renewed(self.model)
        if model is None:
            self._tell("re_authenticate", str(error))
            return False
        self.model = model
        return True

    def _wait(self, error: ProviderError, failures: int) -> float:
        policy = self._kit.settings.retries
        wait = wait_before_retry(policy, error, failures)
        if wait is None:
            raise error
        most = policy.attempts(error.trouble)
        self._tell("retrying", f"{error} Trying again in {wait:.0f} s ({failures} of {most}).")
        return wait

    def _tell(self, kind: Literal["retrying", "re_authenticate"], text: str) -> None:
        run = self._turn.run
        self._turn.tell(AgentNotice(kind, error=text, run_id=run.run_id, session_id=run.session_id))
