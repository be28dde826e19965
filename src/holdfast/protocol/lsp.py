"""The routes of language servers, and what goes over them."""

from typing import Any

import msgspec

from holdfast.domain.languages import LspInfo
from holdfast.protocol.route import Query, Route, get, post

__all__ = ["LSP_ROUTES", "LspLog", "LspName", "LspPath", "LspRestarted"]


class LspPath(msgspec.Struct, frozen=True):
    """The file that servers are wanted for."""

    path: str


class LspName(msgspec.Struct, frozen=True):
    """Which server is meant; all that run, if it is empty."""

    name: str


class LspRestarted(msgspec.Struct, frozen=True):
    """Those that are being started again."""

    names: tuple[str, ...]


class LspLog(msgspec.Struct, frozen=True):
    """What has become of a server, and what it has printed for people. `file`: where all that is said is written."""

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
