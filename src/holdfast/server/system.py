"""Handlers for the server itself: health, version, control, clients."""

import os
import platform
from typing import Any

from holdfast import __version__
from holdfast.domain.errors import BadRequest, Conflict, StorageDetached
from holdfast.protocol.bodies import VersionInfo
from holdfast.protocol.number import PROTOCOL
from holdfast.protocol.openapi import document
from holdfast.server.calls import Call
from holdfast.server.hub import client_id_of
from holdfast.server.presence import Retire, Stop, is_idle

__all__ = ["control", "health", "openapi", "retire_client", "version"]


async def health(call: Call) -> None:
    """Return 200 if the server can store data, also during recovery; else 503."""
    if problem := await call.hub.check_storage():
        raise StorageDetached(problem)


async def version(call: Call) -> VersionInfo:
    """Return the version, protocol and process of the server."""
    machine = f"{platform.system().lower()}/{platform.machine()}"
    known = f"holdfast-{__version__}"
    return VersionInfo(__version__, "", known, "", machine, PROTOCOL, os.getpid(), call.hub.data_id)


async def control(call: Call) -> None:
    """Stop the server on request. A Crush client that receives 200 for its shutdown deletes the socket, so it is
    refused.
    """
    command, force = call.body.command, call.body.force
    if command in ("shutdown", "shutdown_if_idle"):
        raise Conflict("This server stays: it is Holdfast's, and stops with its own command.")
    if command == "replace":
        _give_way(call)
        return
    if command != "stop":
        raise BadRequest("unknown command: the only one is stop")
    is_working = any(desk.workspace.engine.is_busy() for desk in call.hub.desks)
    if is_working and not force and not is_idle(call.hub.presence):
        raise Conflict("The server is working. Wait for its runs, cancel them, or stop it with force.")
    call.hub.tell(Stop())


def _give_way(call: Call) -> None:
    """Stop so that a newer client can start its own version; only if a client started this server and it is idle."""
    presence = call.hub.presence
    if not presence.leaves_when_idle or not is_idle(presence):
        raise Conflict("This server is in use, or was started by hand: it stays.")
    call.hub.tell(Stop())


async def retire_client(call: Call) -> None:
    """Remove a client for good."""
    call.hub.tell(Retire(client_id_of(call.params["client_id"])))


async def openapi(_: Call) -> dict[str, Any]:
    """Return the OpenAPI document."""
    return document()
