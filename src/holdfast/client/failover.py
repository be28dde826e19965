"""Order in which the addresses of one server or cluster are tried. Pure.

Requests go to the current address while it works. After a failure the others are tried once each, without a pause.
Only when all have failed the request fails, with the reason of each address, and only then callers wait before they
try again. So a client finds the remaining nodes at once, and does not flood a cluster that is down.
"""

from collections.abc import Sequence

from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_address import ServerAddress

__all__ = ["AllFailed", "Round", "can_move_on"]

_UNAVAILABLE = 503


class AllFailed(Unreachable):
    """No address of the list leads to a server that can be used."""

    def __init__(self, failures: Sequence[tuple[ServerAddress, ClientError]]) -> None:
        reasons = "; ".join(f"{address}: {_reason(error)}" for address, error in failures)
        super().__init__(f"No Holdfast server can be used: {reasons}.")
        self.is_temporary = any(not isinstance(error, Unreachable) for _, error in failures)
        """True if a server runs at one of the addresses and could not process the request now."""


def can_move_on(error: ClientError, *, can_repeat: bool) -> bool:
    """Return whether the request may be sent to another node after this error: it was not executed, or its repetition
    has no further effect.
    """
    if isinstance(error, ServerProblem):
        return error.status == _UNAVAILABLE
    return isinstance(error, Unreachable) or (can_repeat and isinstance(error, ConnectionLost | TimedOut))


class Round:
    """One attempt for each address, beginning with the current one."""

    def __init__(self, addresses: Sequence[ServerAddress], current: ServerAddress) -> None:
        start = addresses.index(current) if current in addresses else 0
        self._left = [*addresses[start:], *addresses[:start]]
        self._failures: list[tuple[ServerAddress, ClientError]] = []

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """The addresses that were not tried yet, in order."""
        return tuple(self._left)

    @property
    def address(self) -> ServerAddress:
        """The address to try now."""
        return self._left[0]

    def fail(self, error: ClientError) -> None:
        """Record the failure of the address, and continue with the next one. Raises `AllFailed` after the last one."""
        self._failures.append((self._left.pop(0), error))
        if not self._left:
            raise AllFailed(self._failures) from None


def _reason(error: ClientError) -> str:
    if isinstance(error, Unreachable) and error.reason:
        return error.reason
    text = error.message if isinstance(error, ServerProblem) and error.message else str(error)
    return text.rstrip(".")
