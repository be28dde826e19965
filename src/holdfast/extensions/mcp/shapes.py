"""What is known of a server before anything is loaded to speak with it. Imports nothing that takes long."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from holdfast.extensions.mcp.tokens import Tokens
from holdfast.workspace.process_child import GuardedChild

__all__ = ["LISTS", "ListName", "Plan", "Progress", "Spawn", "Way"]

Way: TypeAlias = Literal["stdio", "http", "sse"]
ListName: TypeAlias = Literal["tools", "prompts", "resources"]
LISTS: tuple[ListName, ...] = ("tools", "prompts", "resources")


class Progress(Protocol):
    """Told how far a call has come."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Spawn(Protocol):
    """Starts a program with pipes."""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> GuardedChild: ...


class Plan(msgspec.Struct, frozen=True):
    """How a server is reached, with everything filled in. `said` gets what it prints, `changed` hears of its
    lists, `ended` of its end.
    """

    type: Way
    directory: str
    spawn: Spawn
    said: Callable[[bytes], None]
    changed: Callable[[ListName], None]
    ended: Callable[[], None]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}
    tokens: Tokens | None = None
