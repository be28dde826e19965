"""An open workspace with the state that the server keeps for it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.domain.errors import BadRequest, StorageUnavailable
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.server.presence import ClientId
from holdfast.server.streams.frame_cache import FrameCache

if TYPE_CHECKING:
    from holdfast.runtime.node_workspace import AnyWorkspace, NodeWorkspace
    from holdfast.runtime.workspace import Workspace
    from holdfast.runtime.workspace_services import WorkspaceServices

__all__ = ["WorkspaceHandle", "directory_of"]


class WorkspaceHandle:
    """An open workspace. The options of the client that opened it first apply; later clients share them.

    With a `node` the server belongs to a cluster: the workspace is then open in the form that applies to this node, and
    `use_current_form` follows a change of the owner.
    """

    def __init__(self, workspace: "AnyWorkspace", services: "WorkspaceServices", body: WorkspaceBody) -> None:
        self.workspace = workspace
        self.services = services
        self.node: NodeWorkspace | None = None
        self.id: WorkspaceId = workspace.id
        self.path = workspace.path
        self.data_dir = services.data_dir
        self.frame_cache = FrameCache()
        self.debug = body.debug
        self.env = body.env
        self.channels = body.channels
        self.mcp_lenders: set[ClientId] = set()
        """Clients that have added MCP servers of their own, which are removed when the client leaves."""
        self.was_busy = False
        self.is_visited = False
        """True for a while after a request for a workspace that no client of this server had opened."""
        self.jobs_are_late = False
        """Set when jobs have kept the workspace open for as long as they may without a client."""
        self.viewers: dict[SessionId, int] = {}
        """The numbers of viewing clients that were published."""
        self._readers = 0
        self._skips = False
        self.yolo = body.yolo

    @property
    def is_local(self) -> bool:
        """True if this server owns the workspace: its processes and its engine are here."""
        return self.node is None or self.node.is_local

    @property
    def owned(self) -> "Workspace":
        """The workspace of this server. Raises `StorageUnavailable` if another one owns it."""
        owned = cast("Workspace", self.workspace) if self.node is None else self.node.owned
        if owned is None:
            raise StorageUnavailable("Another server owns this workspace now: try again in a moment.")
        return owned

    @property
    def is_busy(self) -> bool:
        """True while runs, or jobs within their time limit, or clients of other servers, keep the workspace open."""
        if self.is_visited:
            return True
        if self.node is not None and (not self.node.is_local or self.node.clients):
            return self.node.is_local
        return self.workspace.is_busy() or (self.services.jobs.is_busy and not self.jobs_are_late)

    @property
    def yolo(self) -> bool:
        """True if permission requests are granted automatically."""
        return self.owned.approvals.skips if self.is_local else self._skips

    @yolo.setter
    def yolo(self, skips: bool) -> None:
        self._skips = skips
        if self.is_local:
            self.owned.approvals.skips = skips

    def use_current_form(self) -> None:
        """Use the workspace in the form that it is open in now."""
        opened = self.node.opened if self.node is not None else None
        if opened is None or opened.workspace is self.workspace:
            return
        self.workspace, self.services = opened.workspace, opened.services
        if self.is_local:
            self.yolo = self._skips
            for _ in range(self._readers):
                self.owned.approvals.client_attached()

    def client_attached(self) -> None:
        """Count a stream. Requests for approval expire only without one."""
        self._readers += 1
        if self.is_local:
            self.owned.approvals.client_attached()

    def client_detached(self) -> None:
        """End the count of a stream."""
        self._readers -= 1
        if self.is_local:
            self.owned.approvals.client_detached()


def directory_of(body: WorkspaceBody) -> str:
    """Return the real directory. A relative path is resolved against PWD of the client's environment."""
    if not body.path:
        raise BadRequest("path is required")
    path = Path(body.path)
    if not path.is_absolute():
        there = dict(item.partition("=")[::2] for item in body.env).get("PWD", "")
        if not Path(there).is_absolute():
            raise BadRequest("The path is relative and no base directory was sent: use an absolute path.")
        path = Path(there) / path
    try:
        real = Path(os.path.realpath(path))
        is_directory = real.is_dir()
    except (OSError, ValueError):
        is_directory = False
    if not is_directory:
        raise BadRequest("The path is not a directory that exists.")
    return str(real)
