"""The routes of language servers, and their bodies."""

from typing import Any

import msgspec

from holdfast.domain.languages import LspInfo
from holdfast.protocol.route import Query, Route, get, post

__all__ = ["LSP_ROUTES", "LspLog", "LspName", "LspPath", "LspRestarted"]


class LspPath(msgspec.Struct, frozen=True):
    """The file for which servers are requested."""

    path: str


class LspName(msgspec.Struct, frozen=True):
    """The name of a server; empty for all that run."""

    name: str


class LspRestarted(msgspec.Struct, frozen=True):
    """The servers that are being restarted."""

    names: tuple[str, ...]


class LspLog(msgspec.Struct, frozen=True):
    """The history of a server and its output. `file` is the path of the full log."""

    name: str
    text: str
    file: str = ""


_L = "/workspaces/{id}/lsps"

LSP_ROUTES: tuple[Route, ...] = (
    get("list_lsps", _L, "Language servers.", dict[str, LspInfo], errors=(404,)),
    get(
        "lsp_diagnostics",
        _L + "/{lsp}/diagnostics",
        "What a language server finds wrong, by file.",
        dict[str, tuple[dict[str, Any], ...]],
        errors=(404,),
    ),
    post("start_lsps", _L + "/start", "Start language servers for a file.", LspPath, errors=(400, 404)),
    post("stop_lsps", _L + "/stop", "Stop language servers, until a file is touched again.", errors=(404,)),
    post("restart_lsps", _L + "/restart", "Start one again, or all that run.", LspName, LspRestarted, errors=(404,)),
    get(
        "lsp_log",
        _L + "/log",
        "What a language server has printed.",
        LspLog,
        query=(Query("name", is_required=True),),
        errors=(400, 404),
    ),
)
