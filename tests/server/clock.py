"""The clock of the running loop, moved forward by the test, so that timers fire without waiting."""

import asyncio

from holdfast.client.server_address import ServerAddress
from holdfast.testing.gates import settle_down
from server.helpers import exchange, raw_request

__all__ = ["Clock"]


_SLOWDOWN = 20
"""Real seconds per second of the clock. Tests move it to a second before a timer is due; on a busy machine, more than a
second may pass until the test has looked.
"""


class Clock:
    """Clock of the loop in which it is created. It is slowed down, not stopped, so that short timers still fire."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real, start = loop.time, loop.time()
        self._ahead = 0.0
        loop.time = lambda: start + (real() - start) / _SLOWDOWN + self._ahead  # type: ignore[method-assign]

    async def forward(self, seconds: float, address: ServerAddress | None = None) -> None:
        """Move the clock forward.

        Returns when the due callbacks have run and a server at `address` has answered a later request.
        """
        self._ahead += seconds
        await settle_down()
        if address is not None:
            await exchange(address, raw_request("/v1/health"))
            await settle_down()
