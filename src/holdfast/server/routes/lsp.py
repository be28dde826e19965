"""Handlers for language servers: state, diagnostics, start and stop; and their health check."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.config.problems import format_key
from holdfast.domain.doctor import Finding
from holdfast.domain.errors import BadRequest, NotFound, ToolError
from holdfast.domain.extensions import LspInfo, LspState
from holdfast.extensions.lsp.extension import LanguageServers
from holdfast.protocol.extension_routes import LspLog, LspRestartResponse
from holdfast.server.health.checks import place_of
from holdfast.server.http.request import Request
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.workspace.files.safe_open import locate

__all__ = ["check", "list_lsps", "lsp_diagnostics", "lsp_log", "restart_lsps", "start_lsps", "stop_lsps"]

_AREA = "language servers"


def _servers(handle: WorkspaceHandle) -> LanguageServers:
    """Return the servers after re-reading the settings and the trust in the project."""
    handle.services.configuration.snapshot()
    return handle.services.extensions.lsp


async def list_lsps(request: Request) -> dict[str, LspInfo]:
    """Return the state of each language server."""
    return _servers(request.handle).infos()


async def lsp_diagnostics(request: Request) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the diagnostics of a language server by file."""
    server = _servers(request.handle).manager.get(request.params["lsp"])
    if server is None:
        raise NotFound("LSP client not found: there is no language server of that name.")
    found = server.session.diagnostics.all() if server.session is not None else {}
    return {uri: tuple(msgspec.to_builtins(item) for item in items) for uri, items in found.items()}


async def start_lsps(request: Request) -> None:
    """Start the servers for a file in the background; events report their progress."""
    servers = _servers(request.handle)
    try:
        location = await asyncio.to_thread(locate, request.workspace.path, request.body.path)
    except ToolError as error:
        raise BadRequest(str(error)) from None
    await servers.manager.check_in_background(location.path)


async def stop_lsps(request: Request) -> None:
    """Stop all language servers."""
    _servers(request.handle).stop()


async def restart_lsps(request: Request) -> LspRestartResponse:
    """Restart one language server or all."""
    try:
        return LspRestartResponse(tuple(_servers(request.handle).manager.restart(request.body.name)))
    except ToolError as error:
        raise NotFound(str(error)) from None


async def lsp_log(request: Request) -> LspLog:
    """Return the log of a language server."""
    if not (name := request.query.get("name")):
        raise BadRequest("name is required")
    server_manager = _servers(request.handle).manager
    if (server := server_manager.get(name)) is None:
        raise NotFound("There is no language server of that name: see the list of servers.")
    file = server_manager.trace_path(name)
    is_file = await asyncio.to_thread(file.exists)
    return LspLog(name, server.log.text, str(file) if is_file else "")


async def check(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report servers that cannot work, with the line of their setting, also if no file has required them yet."""
    servers = _servers(handle)
    infos = servers.infos()
    faults = await servers.manager.launch_problems() if infos else {}
    with_faults = ((info, faults.get(info.name, "")) for info in infos.values())
    found = [finding for info, fault in with_faults if (finding := _finding(handle, info, fault)) is not None]
    if found or not infos:
        return found
    ready = sum(info.state == LspState.READY for info in infos.values())
    return (Finding(_AREA, "ok", f"{len(infos)} known, {ready} running."),)


def _finding(handle: WorkspaceHandle, info: LspInfo, fault: str) -> Finding | None:
    if not info.error and not fault:
        return None
    file, line = place_of(handle, "lsp", info.name)
    name = format_key(("lsp", info.name))
    if info.state == LspState.ERROR:
        todo = f"See its output: holdfast lsp logs {info.name}"
        return Finding(_AREA, "warning", f"{name} is not running: {info.error}", todo, file, line)
    if info.error:
        return Finding(_AREA, "note", f"{name} was not started.", info.error, file, line)
    todo = "Correct its settings, or remove it."
    return Finding(_AREA, "warning", f"{name} could not be started: {fault}", todo, file, line)
