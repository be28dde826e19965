"""The parsed request that a handler receives, and the type of handlers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol.routes import Route
from holdfast.server.http.connection import RequestCycle
from holdfast.server.telemetry.observers import Observers
from holdfast.server.web.listener import WebListener
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import WorkspaceManager

if TYPE_CHECKING:
    from holdfast.cluster.remote_workspace import RemoteWorkspace
    from holdfast.engine.ports import Ledger, Models
    from holdfast.extensions.extensions import Extensions
    from holdfast.runtime.node_workspace import AnyWorkspace
    from holdfast.runtime.workspace import Workspace
    from holdfast.runtime.workspace_services import WorkspaceServices
    from holdfast.server.relay.relay import OwnerAnswer, Relay

if TYPE_CHECKING:
    from holdfast.server.web.web_auth import Page

__all__ = ["Handler", "Request"]


class Request(msgspec.Struct, frozen=True):
    """A parsed request, with the parts of the server that handlers use. `body` is decoded to the route's type."""

    manager: WorkspaceManager
    web: WebListener
    observers: Observers
    route: Route
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    over_socket: bool
    """True for a request over the unix socket, which only the server's own user can connect to."""
    open_handle: WorkspaceHandle | None = None
    page: "Page | None" = None
    """The web page that sent the request, if any."""
    exchange: RequestCycle | None = None
    """The connection's side of the request, for streams; None outside a connection."""
    relay: "Relay | None" = None
    """What sends requests to the owner of a workspace; None without a cluster."""
    relayed_by: str | None = None
    """The node that has relayed the request to this one, None for a request of a client."""

    @property
    def handle(self) -> WorkspaceHandle:
        """The open workspace of the route, with the state that the server keeps for it."""
        assert self.open_handle is not None, "only handlers of routes below a workspace use it"
        return self.open_handle

    @property
    def workspace(self) -> "AnyWorkspace":
        """The workspace of the route: its runs, sessions and approvals."""
        return self.handle.workspace

    @property
    def owned(self) -> "Workspace":
        """The workspace of the route as its owner runs it. Raises `StorageUnavailable` on another server."""
        return self.handle.owned

    @property
    def remote(self) -> "RemoteWorkspace":
        """The workspace of the route on a server that does not own it."""
        return cast("RemoteWorkspace", self.handle.workspace)

    @property
    def models(self) -> "Models":
        """The selected models."""
        return self.services.models

    @property
    def services(self) -> "WorkspaceServices":
        """The services of the workspace: its settings, processes and extensions."""
        return self.handle.services

    @property
    def extensions(self) -> "Extensions":
        """The extensions of the workspace: skills, commands, agents, hooks, MCP and language servers."""
        return self.services.extensions

    @property
    def ledger(self) -> "Ledger":
        """The store of the workspace."""
        return self.workspace.ledger

    @property
    def session(self) -> SessionId:
        """The session id in the path."""
        return SessionId(self.params["sid"])

    @property
    def run(self) -> RunId:
        """The run id in the path."""
        return RunId(self.params["run_id"])

    async def fetch_from_owner(
        self, route: str, body: bytes = b"", handle: WorkspaceHandle | None = None
    ) -> "OwnerAnswer | None":
        """Return the response of the owner to a route of the workspace, if another node owns it and answers at once.
        Without a response the caller uses what this node knows.
        """
        handle = handle or self.handle
        if self.relay is None or self.relayed_by is not None or handle.is_local:
            return None
        return await self.relay.fetch(handle, route, {**self.params, "id": handle.id}, body)

    def number(self, name: str, default: int) -> int:
        """Return a query parameter as a non-negative integer. Raises `BadRequest`."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise BadRequest(f"{name} must be an integer that is not negative.")
        return int(text)


Handler: TypeAlias = Callable[[Request], Awaitable[Any]]
