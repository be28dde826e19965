"""The services that the workspaces of one server share.

`ServerServices` opens and closes the workspaces. The modules that only an open workspace needs (engine, tools,
extensions, models) are imported with the first one: they are about half of the server's code, and a new server answers
its first request before it needs them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.atomic_files import FILES
from holdfast.domain.documents import Documents
from holdfast.domain.errors import BadRequest, HoldfastError, WorkspaceClosing
from holdfast.domain.events import LiveEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.engine.settings import EngineSettings
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.providers.shared_http_clients import close_connections
from holdfast.storage.postgres.store_address import VARIABLE as STORE_VARIABLE
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.tasks import TaskOwner, is_cancelled
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.web_client import WebClient

if TYPE_CHECKING:
    from holdfast.engine.ports import Models, Outlet, Tools
    from holdfast.runtime.open_store import ServerLedger, SharedState
    from holdfast.runtime.workspace import Workspace
    from holdfast.runtime.workspace_host import WorkspaceHost
    from holdfast.runtime.workspace_services import WorkspaceServices

__all__ = ["MissingCredentials", "ServerServices", "ServiceOverrides", "close_each"]

_log = logging.getLogger("holdfast.server")


class MissingCredentials(HoldfastError):
    """No model can be used until a client supplies credentials; then the queued prompts continue."""


class ServiceOverrides(msgspec.Struct, frozen=True):
    """Options of the server, and replacements for parts of it: `models` replaces model selection, `tools` all tools."""

    settings: EngineSettings = EngineSettings()
    models: "Models | None" = None
    tools: "Tools | None" = None
    observe: "Callable[[str, Outlet], Outlet] | None" = None
    """Wraps the outlet of the workspace of a directory, for metrics and tracing."""
    socket: Path | None = None
    """The socket of the server, which sandboxed commands must not reach."""
    warms_guard: bool = True
    """Start the process guard with the first workspace instead of the first command."""


class ServerServices:
    """What the workspaces of one server share, and the workspaces that are open. One for each data directory.

    Without a `ledger` the store is SQLite in the data directory. `shared` is the state that the servers of a cluster
    share beside it; without it, it is in files.
    """

    def __init__(
        self,
        data_dir: Path,
        overrides: ServiceOverrides | None = None,
        *,
        ledger: "ServerLedger | None" = None,
        shared: "SharedState | None" = None,
    ) -> None:
        self.data_dir = data_dir
        self.shared = shared
        self.documents: Documents = FILES if shared is None else shared.documents
        self.output_root = (shared and shared.directory) or data_dir
        """The directory below which outputs of commands are stored."""
        self.overrides = overrides or ServiceOverrides()
        self.guard = Guard()
        self.discovery = ModelDiscovery()
        self.web = WebClient()
        self.git = PrivateGit(str(data_dir / "git"))
        # Last: it locks the data directory, and an error after it would have to release the lock.
        self.ledger: ServerLedger = SqliteLedger(data_dir) if ledger is None else ledger
        self.host: WorkspaceHost | None = None
        """Set for a server of a cluster before it is used: opens and closes the workspaces then."""
        self._tasks = TaskOwner()
        self._open: dict[str, asyncio.Task[Workspace]] = {}

    def workspace_services(
        self,
        record: WorkspaceRecord,
        environment: Mapping[str, str],
        publish: Callable[[LiveEvent], None],
        on_busy: Callable[[bool], None],
    ) -> "WorkspaceServices":
        """Return the services of a workspace that a client with this environment opens."""
        from holdfast.runtime.workspace_services import WorkspaceServices  # noqa: PLC0415 - late, see above

        if self.overrides.warms_guard:
            self.guard.ensure_started()
        # The address of the store may contain a password, and commands of the workspace do not need it.
        environment = {name: value for name, value in environment.items() if name != STORE_VARIABLE}
        return WorkspaceServices(self, record, environment, publish, on_busy)

    async def open_workspace(
        self,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        *,
        unattended: bool = False,
        on_busy: Callable[[WorkspaceId], None] = lambda _: None,
    ) -> "Workspace":
        """Return the workspace of a directory, identified by its real path. Concurrent callers get the same one.

        `unattended`: no client is attached. Raises `MissingCredentials` if queued prompts could not be answered then.
        `on_busy` is called when runs or jobs become active, and when the last of them has ended.
        """
        path = _real_directory(directory)
        opening = self._open.get(path)
        if opening is None or (opening.done() and not _is_open(opening)):
            work = self._open_workspace(path, environment or {}, on_busy, unattended=unattended)
            opening = self._open[path] = self._tasks.start(work, name=f"open {path}", done=_is_open)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and not is_cancelled():
                raise WorkspaceClosing from None
            raise

    async def _open_workspace(
        self, path: str, environment: Mapping[str, str], on_busy: Callable[[WorkspaceId], None], *, unattended: bool
    ) -> "Workspace":
        from holdfast.runtime.workspace_services import open_workspace  # noqa: PLC0415 - late, see above

        return await open_workspace(self, path, environment, on_busy, unattended=unattended)

    async def close_workspace(self, workspace: "Workspace") -> None:
        """Close a workspace. Its directory can be opened again afterwards, even if closing fails."""
        try:
            await workspace.close()
        finally:
            self._open.pop(workspace.path, None)

    async def close(self) -> None:
        """Close the open workspaces, the shared parts and the store, each even if another cannot be closed. A
        workspace that is being opened is given up.
        """
        for opening in self._open.values():
            opening.cancel()
        opened = await asyncio.gather(*self._open.values(), return_exceptions=True)
        self._open.clear()
        try:
            await _close_all(item for item in opened if not isinstance(item, BaseException))
        finally:
            try:
                await self.close_parts()
            finally:
                await self.ledger.close()

    async def close_parts(self) -> None:
        """Close the shared parts, each even if another cannot be closed."""
        parts = (self.guard.close, self.discovery.close, close_connections, lambda: asyncio.to_thread(self.git.close))
        await close_each(parts, None)


def _is_open(opening: "asyncio.Task[Workspace]") -> bool:
    """Return whether a workspace was opened. Retrieves the exception of a failed opening, so that it is not logged."""
    return not opening.cancelled() and opening.exception() is None


async def _close_all(workspaces: "Iterable[Workspace]") -> None:
    """Close all workspaces, then raise the first error, if any."""
    for end in await asyncio.gather(*(workspace.close() for workspace in workspaces), return_exceptions=True):
        if isinstance(end, BaseException):
            raise end


def _real_directory(directory: Path) -> str:
    path = directory.resolve()
    if not path.is_dir():
        raise BadRequest(f"{directory} is not a directory: name one that exists.")
    return str(path)


async def close_each(parts: Iterable[Callable[[], Awaitable[object]]], seconds: float | None) -> None:
    """Close one part after the other, each within `seconds`; then raise the first error, if any."""
    errors: list[Exception] = []
    for close in parts:
        try:
            async with asyncio.timeout(seconds):
                await close()
        except TimeoutError:
            _log.warning("%s did not end within %s seconds", getattr(close, "__qualname__", close), seconds)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
