"""What is known of a server before anything is loaded to speak with it. Imports nothing that takes long."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.extensions.mcp.tokens import Tokens
from holdfast.workspace.process_child import GuardedChild

__all__ = ["LARGEST", "LISTS", "Ask", "ListName", "Plan", "Progress", "Spawn", "Way"]

Way: TypeAlias = Literal["stdio", "http", "sse"]
ListName: TypeAlias = Literal["tools", "prompts", "resources"]
LISTS: tuple[ListName, ...] = ("tools", "prompts", "resources")
LARGEST = 16 * 1024 * 1024
"""Bytes of one message. To read one stops everything else for as long as it takes."""


class Progress(Protocol):
    """Told how far a call has come."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Ask(Protocol):
    """Asks the person: what a server wants to know, and what it is answered, as the protocol has them."""

    def __call__(self, wanted: Mapping[str, Any], /) -> Coroutine[Any, Any, dict[str, Any]]: ...


class Spawn(Protocol):
    """Starts a program with pipes."""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> GuardedChild: ...


class Plan(msgspec.Struct, frozen=True):
    """How a server is reached, with everything filled in. `said` gets what it prints, `changed` hears of its
    lists, `faltered` that it may have gone unseen.
    """

    type: Way
    directory: str
    spawn: Spawn
    said: Callable[[bytes], None]
    changed: Callable[[ListName], None]
    faltered: Callable[[], None]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}
    tokens: Tokens | None = None
