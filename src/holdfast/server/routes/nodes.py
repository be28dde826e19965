"""Handlers for the servers of a cluster: list, drain, evict."""

import logging
from typing import TYPE_CHECKING, Literal

from holdfast.domain.errors import Conflict, NotFound
from holdfast.domain.ids import NodeId
from holdfast.protocol.bodies import NodeBody, NodeList
from holdfast.server.http.request import Request

if TYPE_CHECKING:
    from holdfast.cluster.ports import NodeInfo
    from holdfast.runtime.workspace_host import WorkspaceHost

__all__ = ["drain_node", "evict_node", "list_nodes"]

_ALONE = "This server stores in SQLite: it is the only node. Stop it with holdfast server stop."
_log = logging.getLogger("holdfast.server")


async def list_nodes(request: Request) -> NodeList:
    """Return the servers of the cluster."""
    host = request.manager.host
    if host is None:
        return NodeList(is_cluster=False)
    me = host.membership.view.node
    return NodeList(is_cluster=True, nodes=tuple(_body(node, me) for node in await host.cluster.list_nodes()))


async def drain_node(request: Request) -> None:
    """Mark a node as draining. It reads the mark within a second."""
    host, node = _host(request), NodeId(request.params["node"])
    if not await host.drain_node(node):
        raise _unknown(node)
    _log_request("drain", node, request)


async def evict_node(request: Request) -> None:
    """Evict a node."""
    host, node = _host(request), NodeId(request.params["node"])
    if not await host.evict_node(node):
        raise _unknown(node)
    _log_request("evict", node, request)


def _host(request: Request) -> "WorkspaceHost":
    if request.manager.host is None:
        raise Conflict(_ALONE)
    return request.manager.host


def _unknown(node: NodeId) -> NotFound:
    return NotFound(f"There is no node {node[:40]}: holdfast nodes lists them.")


def _log_request(action: str, node: NodeId, request: Request) -> None:
    """Log the requested action and its origin. The id is that of an existing node."""
    source = "the unix socket" if request.over_socket else "TCP"
    _log.warning("%s of node %s was requested over %s", action, node, source)


def _body(node: "NodeInfo", me: NodeId | None) -> NodeBody:
    state: Literal["ready", "draining", "silent"] = "draining" if node.is_draining else "ready"
    return NodeBody(
        id=node.node,
        state=state if node.listens else "silent",
        uptime=round(node.since, 1),
        places=node.places,
        version=node.version,
        address=node.address,
        workspaces=node.workspaces,
        runs=node.runs,
        clients=node.clients,
        is_self=node.node == me,
    )
