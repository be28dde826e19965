"""Client capabilities, and answers to configuration requests. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import __version__
from holdfast.extensions.lsp.positions import ENCODINGS
from holdfast.extensions.lsp.shapes import uri_of

__all__ = ["configured", "folders", "greeting"]

_WATCHING = {"dynamicRegistration": True, "relativePatternSupport": True}
_CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": list(ENCODINGS)},
    "window": {"workDoneProgress": True},
    "workspace": {
        "applyEdit": False,
        "configuration": True,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": _WATCHING,
        "workspaceFolders": True,
        "workspaceEdit": {"documentChanges": True},
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {"versionSupport": True, "tagSupport": {"valueSet": [1, 2]}},
        "diagnostic": {"dynamicRegistration": True, "relatedDocumentSupport": True},
        "definition": {"linkSupport": True},
        "references": {},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "rename": {"prepareSupport": True},
        "callHierarchy": {},
    },
}


def greeting(root: str, init_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `initialize`. The process id is omitted: it may be meaningless in the server's
    namespace, and the server process ends with ours anyway.
    """
    params: dict[str, Any] = {
        "processId": None,
        "clientInfo": {"name": "holdfast", "version": __version__},
        "rootPath": root,
        "rootUri": uri_of(root),
        "workspaceFolders": folders([root]),
        "capabilities": _CAPABILITIES,
    }
    return params | ({"initializationOptions": dict(init_options)} if init_options else {})


def folders(roots: Sequence[str]) -> list[dict[str, str]]:
    """Return workspace folders for these directories."""
    return [{"uri": uri_of(root), "name": root.rpartition("/")[2] or root} for root in roots]


def configured(options: Mapping[str, Any], section: str) -> object:
    """Return a section of the options by its dotted name, or all options for an empty name. None if nothing is set."""
    if not section:
        return dict(options) or None
    if section in options:
        return options[section]
    value: object = options
    for name in section.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value
