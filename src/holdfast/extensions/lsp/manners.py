"""What a language server is told when it starts, and what it is answered when it asks. Pure."""

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
    """The parameters of `initialize`. Without a process id: ours may mean nothing where the server runs, and it ends
    with us anyway.
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
    return [{"uri": uri_of(root), "name": root.rpartition("/")[2] or root} for root in roots]


def configured(options: Mapping[str, Any], section: str) -> object:
    """A section of the settings: by its dotted name, or the whole if it has none. None if nothing is set."""
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
