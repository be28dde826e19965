"""What language servers say, as far as it is read here. Names are the protocol's."""

from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

__all__ = [
    "CallItem",
    "Capabilities",
    "Diagnostic",
    "DocumentSymbol",
    "Link",
    "Location",
    "Position",
    "Range",
    "TextEdit",
    "WorkspaceEdit",
    "path_of",
    "uri_of",
]


class Position(msgspec.Struct, frozen=True, order=True):
    """Counts from 0; what a character is, the server says."""

    line: int
    character: int


class Range(msgspec.Struct, frozen=True, order=True):
    start: Position
    end: Position


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something a server finds wrong. `severity`: 1 error, 2 warning, 3 information, 4 hint; left out, an error."""

    range: Range
    message: str
    severity: int | None = None
    code: int | str | None = None
    source: str | None = None
    tags: tuple[int, ...] | None = None


class Location(msgspec.Struct, frozen=True, order=True):
    uri: str
    range: Range


class Link(msgspec.Struct, frozen=True, rename="camel"):
    """Another way to say where something is."""

    target_uri: str
    target_selection_range: Range


class DocumentSymbol(msgspec.Struct, frozen=True, rename="camel"):
    """A name in a file. Servers say where in one of two ways: nested, or as a flat list with locations."""

    name: str
    kind: int
    detail: str = ""
    container_name: str = ""
    selection_range: Range | None = None
    range: Range | None = None
    location: Location | None = None
    children: list["DocumentSymbol"] | None = None


class CallItem(msgspec.Struct, frozen=True, rename="camel"):
    """Somebody who calls or is called."""

    name: str
    kind: int
    uri: str
    selection_range: Range


class TextEdit(msgspec.Struct, frozen=True, rename="camel"):
    range: Range
    new_text: str


class _Document(msgspec.Struct, frozen=True):
    uri: str
    version: int | None = None


class _DocumentEdit(msgspec.Struct, frozen=True, rename="camel"):
    """Edits of one file, or (with a `kind`) a file to be made, moved or removed."""

    text_document: _Document | None = None
    edits: list[TextEdit] = []
    kind: str = ""


class WorkspaceEdit(msgspec.Struct, frozen=True, rename="camel"):
    """Changes of several files, said in one of two ways."""

    changes: dict[str, list[TextEdit]] | None = None
    document_changes: list[_DocumentEdit] | None = None

    @property
    def moves_files(self) -> bool:
        return any(item.kind for item in self.document_changes or ())

    def by_uri(self) -> dict[str, list[TextEdit]]:
        if self.document_changes is None:
            return self.changes or {}
        edits: dict[str, list[TextEdit]] = {}
        for item in self.document_changes:
            if item.text_document is not None:
                edits.setdefault(item.text_document.uri, []).extend(item.edits)
        return edits


class Capabilities(msgspec.Struct, frozen=True, rename="camel"):
    """What a server says it can do. Whatever is neither left out, nor null or false, is a yes."""

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
        sync = self.text_document_sync
        return isinstance(sync, dict) and sync.get("save") not in (None, False)

    @property
    def saves_with_text(self) -> bool:
        sync = self.text_document_sync
        save = sync.get("save") if isinstance(sync, dict) else None
        return isinstance(save, dict) and bool(save.get("includeText"))

    @property
    def takes_folders(self) -> bool:
        """Whether it wants to hear of folders that come later."""
        folders = self.workspace.get("workspaceFolders") if isinstance(self.workspace, dict) else None
        return isinstance(folders, dict) and bool(folders.get("supported")) and bool(folders.get("changeNotifications"))


def uri_of(path: str) -> str:
    return "file://" + quote(path.encode("utf-8", "surrogateescape"))


def path_of(uri: str) -> str:
    """The path of a file, or nothing for what is no file of this machine."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return ""
    # A drive letter or a query has no place here.
    return unquote(uri.partition("://")[2].removeprefix(parts.netloc), errors="surrogateescape")
