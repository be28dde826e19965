"""What an extension gets from its workspace, and what a workspace asks of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.config.credentials import Credentials
from holdfast.domain.events import LiveEvent
from holdfast.domain.tools import Tool
from holdfast.workspace.git import PrivateGit
from holdfast.workspace.process_child import GuardedSpawn

__all__ = ["Extension", "Ground"]


class Ground(msgspec.Struct, frozen=True):
    """Where extensions stand: the workspace as far as they may know it.

    The settings are asked for whenever they are needed (`configuration.current()`), since they change. What a project
    wants to run counts only when its files are trusted: the configuration holds it back until then.
    """

    path: str
    data_dir: Path
    configuration: Configuration
    credentials: Credentials
    spawn: GuardedSpawn
    """Starts programs under the guard: they end with the server, however it ends."""
    environment: Mapping[str, str]
    """The client's."""
    publish: Callable[[LiveEvent], None]
    """To everybody who is attached. Never waits; before the workspace is open it says nothing."""
    secrets: Callable[[], tuple[Sequence[str], Sequence[str]]] = lambda: ((), ())
    """Names of variables, and values, that belong to models: no program gets them unasked."""
    git: PrivateGit | None = None
    """For searches where there is no ripgrep."""


class Extension(Protocol):
    """One kind of them. Nothing of it may delay a prompt or the start of the server."""

    def start(self) -> None:
        """Begin in the background. Called once, when the workspace is open."""

    def refresh(self) -> None:
        """The settings, or the trust in the project, have become others. Never waits."""

    def tools(self) -> Sequence[Tool]:
        """What it offers to models now; asked before every step."""

    async def close(self) -> None:
        """Leave no process and no task behind."""
