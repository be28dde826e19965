"""The parsed request that a handler receives, and the type of handlers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.domain.errors import BadRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol.routes import Route
from holdfast.server.workspace_manager import WorkspaceHandle, WorkspaceManager

if TYPE_CHECKING:
    from holdfast.server.web.web_auth import Page

__all__ = ["Handler", "Request"]


class Request(msgspec.Struct, frozen=True):
    """A parsed request. `handle` is set for routes below a workspace; `body` is decoded to the route's type."""

    manager: WorkspaceManager
    route: Route
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    over_socket: bool
    open_handle: WorkspaceHandle | None = None
    page: "Page | None" = None
    """The web page that sent the request, if any."""

    @property
    def handle(self) -> WorkspaceHandle:
        """The workspace of the route."""
        assert self.open_handle is not None, "only routes below a workspace ask for it"
        return self.open_handle

    @property
    def session(self) -> SessionId:
        """The session id in the path."""
        return SessionId(self.params["sid"])

    @property
    def run(self) -> RunId:
        """The run id in the path."""
        return RunId(self.params["run_id"])

    def number(self, name: str, default: int) -> int:
        """Return a query parameter as a non-negative integer. Raises `BadRequest`."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise BadRequest(f"{name} must be a whole number that is not negative.")
        return int(text)


Handler: TypeAlias = Callable[[Request], Awaitable[Any]]
