"""Handlers for the server itself: health, version, control, clients, statistics, metrics, API documentation."""

import asyncio
import os
import platform
from typing import Any

from holdfast import __version__
from holdfast.domain.errors import BadRequest, Conflict, NotFound, StorageDetached, StorageUnavailable
from holdfast.domain.usage import Stats
from holdfast.protocol import PROTOCOL
from holdfast.protocol.bodies import VersionInfo
from holdfast.protocol.openapi import document, page
from holdfast.server.http.request import Request
from holdfast.server.presence import Retire, Stop, is_idle
from holdfast.server.workspace_manager import client_id_of

__all__ = ["all_stats", "control", "docs", "health", "metrics", "openapi", "retire_client", "stats", "version"]
_HEALTH_SECONDS = 2.0
"""A load balancer must get an answer before its own time limit ends, also while PostgreSQL does not answer."""
_MAX_OFFSET_MINUTES = 14 * 60
"""No time zone is further from UTC, in minutes."""


async def health(request: Request) -> None:
    """Return 200 if the server can store data, also during recovery; else 503, and while it leaves a cluster."""
    if request.manager.is_draining:
        raise StorageUnavailable("This server leaves the cluster: send requests to another one.")
    try:
        async with asyncio.timeout(_HEALTH_SECONDS if request.manager.host is not None else None):
            problem = await request.manager.check_storage()
    except TimeoutError:
        raise StorageUnavailable(f"The store has not answered within {_HEALTH_SECONDS:g} seconds.") from None
    if problem:
        raise StorageDetached(problem)


async def version(request: Request) -> VersionInfo:
    """Return the version, protocol and process of the server."""
    machine = f"{platform.system().lower()}/{platform.machine()}"
    known = f"holdfast-{__version__}"
    return VersionInfo(__version__, "", known, "", machine, PROTOCOL, os.getpid(), request.manager.data_id)


async def control(request: Request) -> None:
    """Stop the server on request. A Crush client that receives 200 for its shutdown deletes the socket, so it is
    refused.
    """
    command, force = request.body.command, request.body.force
    if command in ("shutdown", "shutdown_if_idle"):
        raise Conflict("This server belongs to Holdfast: stop it with holdfast server stop.")
    if command == "replace":
        _stop_for_newer_client(request)
        return
    if command != "stop":
        raise BadRequest("unknown command: the only one is stop")
    is_working = any(handle.workspace.is_busy() for handle in request.manager.handles)
    if is_working and not force and not is_idle(request.manager.presence):
        raise Conflict("The server is busy. Wait for its runs, cancel them, or stop it with force.")
    request.manager.apply(Stop())


def _stop_for_newer_client(request: Request) -> None:
    """Stop so that a newer client can start its own version; only if a client started this server and it is idle."""
    presence = request.manager.presence
    if not presence.leaves_when_idle or not is_idle(presence):
        raise Conflict("This server is in use, or was not started by a client: it keeps running.")
    request.manager.apply(Stop())


async def retire_client(request: Request) -> None:
    """Remove a client for good."""
    request.manager.apply(Retire(client_id_of(request.params["client_id"])))


async def openapi(_: Request) -> dict[str, Any]:
    """Return the OpenAPI document."""
    return document()


async def docs(_: Request) -> str:
    """Return the API documentation as a page."""
    return page()


async def metrics(request: Request) -> str:
    """Return the metrics for Prometheus."""
    counted = request.observers.metrics
    if counted is None:
        raise NotFound("Metrics are disabled: set options.metrics to true, and restart the server.")
    return counted.render_all(request.manager)


async def stats(request: Request) -> Stats:
    """Return the statistics of a workspace."""
    return await request.manager.ledger.stats(request.workspace.id, _zone(request))


async def all_stats(request: Request) -> Stats:
    """Return the statistics of all workspaces."""
    return await request.manager.ledger.stats(None, _zone(request))


def _zone(request: Request) -> int:
    text = request.query.get("zone", "0")
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 4 or int(digits) > _MAX_OFFSET_MINUTES:
        raise BadRequest("zone is the offset from UTC in minutes, from -840 to 840.")
    return int(text)
