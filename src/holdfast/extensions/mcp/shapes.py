"""Types shared by the MCP modules. Imports nothing slow, in particular not `mcp`."""

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
"""Maximum size of a message in bytes. Parsing a message blocks the event loop."""


class Progress(Protocol):
    """Callback that receives the progress of a call."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Ask(Protocol):
    """Callback that forwards an elicitation to the user and returns the answer, both in protocol form."""

    def __call__(self, wanted: Mapping[str, Any], /) -> Coroutine[Any, Any, dict[str, Any]]: ...


class Spawn(Protocol):
    """Starts a child process with pipes."""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> GuardedChild: ...


class Plan(msgspec.Struct, frozen=True):
    """Connection parameters with all variables expanded. `said` receives stderr output, `changed` is called when a list
    has changed, and `faltered` when the connection may have been lost without notice.
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
