"""LSP types, limited to the fields that are used here. Names follow the protocol."""

from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

__all__ = [
    "CallHierarchyItem",
    "Diagnostic",
    "DocumentSymbol",
    "Location",
    "LocationLink",
    "Position",
    "Range",
    "ServerCapabilities",
    "TextEdit",
    "WorkspaceEdit",
    "file_uri",
    "path_from_uri",
]


class Position(msgspec.Struct, frozen=True, order=True):
    """A position, from 0. The unit of `character` is the negotiated position encoding."""

    line: int
    character: int


class Range(msgspec.Struct, frozen=True, order=True):
    """A range of positions; the end is exclusive."""

    start: Position
    end: Position


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A diagnostic. `severity`: 1 error, 2 warning, 3 information, 4 hint; an error if omitted."""

    range: Range
    message: str
    severity: int | None = None
    code: int | str | None = None
    source: str | None = None
    tags: tuple[int, ...] | None = None


class Location(msgspec.Struct, frozen=True, order=True):
    """A range in a document."""

    uri: str
    range: Range


class LocationLink(msgspec.Struct, frozen=True, rename="camel"):
    """A location link, the alternative form of a location."""

    target_uri: str
    target_selection_range: Range


class DocumentSymbol(msgspec.Struct, frozen=True, rename="camel"):
    """A symbol of a document. Servers return nested symbols with ranges, or a flat list with locations."""

    name: str
    kind: int
    detail: str = ""
    container_name: str = ""
    selection_range: Range | None = None
    range: Range | None = None
    location: Location | None = None
    children: list["DocumentSymbol"] | None = None


class CallHierarchyItem(msgspec.Struct, frozen=True, rename="camel"):
    """A caller or callee in a call hierarchy."""

    name: str
    kind: int
    uri: str
    selection_range: Range


class TextEdit(msgspec.Struct, frozen=True, rename="camel"):
    """A replacement of a range."""

    range: Range
    new_text: str


class _Document(msgspec.Struct, frozen=True):
    uri: str
    version: int | None = None


class _DocumentEdit(msgspec.Struct, frozen=True, rename="camel"):
    """Edits of one file or, with a `kind`, a file to create, rename or delete."""

    text_document: _Document | None = None
    edits: list[TextEdit] = []
    kind: str = ""


class WorkspaceEdit(msgspec.Struct, frozen=True, rename="camel"):
    """Edits of several files, in one of the two forms of the protocol."""

    changes: dict[str, list[TextEdit]] | None = None
    document_changes: list[_DocumentEdit] | None = None

    @property
    def moves_files(self) -> bool:
        """True if files are to be created, renamed or deleted."""
        return any(item.kind for item in self.document_changes or ())

    def by_uri(self) -> dict[str, list[TextEdit]]:
        """Return the edits of each document."""
        if self.document_changes is None:
            return self.changes or {}
        edits: dict[str, list[TextEdit]] = {}
        for item in self.document_changes:
            if item.text_document is not None:
                edits.setdefault(item.text_document.uri, []).extend(item.edits)
        return edits


class ServerCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """Server capabilities. A capability is present unless it is omitted, null or false."""

    position_encoding: str = "utf-16"
    text_document_sync: Any = None
    diagnostic_provider: Any = None
    references_provider: Any = None
    definition_provider: Any = None
    document_symbol_provider: Any = None
    rename_provider: Any = None
    call_hierarchy_provider: Any = None
    workspace: Any = None

    @property
    def wants_saves(self) -> bool:
        """True if the server requests save notifications."""
        sync = self.text_document_sync
        return isinstance(sync, dict) and sync.get("save") not in (None, False)

    @property
    def saves_with_text(self) -> bool:
        """True if save notifications include the text."""
        sync = self.text_document_sync
        save = sync.get("save") if isinstance(sync, dict) else None
        return isinstance(save, dict) and bool(save.get("includeText"))

    @property
    def accepts_folder_changes(self) -> bool:
        """True if the server accepts changes of workspace folders."""
        folders = self.workspace.get("workspaceFolders") if isinstance(self.workspace, dict) else None
        return isinstance(folders, dict) and bool(folders.get("supported")) and bool(folders.get("changeNotifications"))


def file_uri(path: str) -> str:
    """Return the file URI of a path."""
    return "file://" + quote(path.encode("utf-8", "surrogateescape"))


def path_from_uri(uri: str) -> str:
    """Return the path of a file URI, or an empty string for other URIs."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    # Only POSIX paths are supported: no drive letters, and `?` and `#` are part of the path.
    return unquote(uri.partition("://")[2].removeprefix(parts.netloc), errors="surrogateescape")
