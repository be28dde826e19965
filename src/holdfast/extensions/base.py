"""The interface between a workspace and its extensions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.domain.events import LiveEvent
from holdfast.domain.tools import Tool
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import GuardedSpawn

__all__ = ["Extension", "ExtensionContext"]


class ExtensionContext(msgspec.Struct, frozen=True):
    """The workspace services available to extensions.

    Settings change, so they are read whenever they are needed (`configuration.current()`). Project settings that
    execute programs take effect only when their files are trusted; until then the configuration withholds them.
    """

    path: str
    data_dir: Path
    configuration: Configuration
    credentials: Credentials
    spawn: GuardedSpawn
    """Starts programs under the process guard, so that they end with the server in every case."""
    environment: Mapping[str, str]
    """The environment of the client."""
    publish: Callable[[LiveEvent], None]
    """Publishes to all attached clients. Never blocks; has no effect before the workspace is open."""
    secrets: Callable[[], tuple[Sequence[str], Sequence[str]]] = lambda: ((), ())
    """Names of variables, and values, that contain model credentials. They are withheld from child processes by
    default.
    """
    git: PrivateGit | None = None
    """Used for searches when ripgrep is not installed."""


class Extension(Protocol):
    """One kind of extension. It must not delay a prompt or the start of the server."""

    def start(self) -> None:
        """Start in the background. Called once, when the workspace is open."""

    def refresh(self) -> None:
        """Apply changed settings or trust. Never blocks."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools that are currently available to models. Called before every step."""

    async def close(self) -> None:
        """Stop all processes and tasks."""
