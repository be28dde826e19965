"""Open documents of a language server. Pure: notifications are passed to a callback.

Each change sends the full text with an increasing version. When too many documents are open, the least recently used
one is closed.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.extensions.lsp.catalogue import language_of
from holdfast.extensions.lsp.shapes import uri_of

__all__ = ["Document", "Documents"]

_MOST_OPEN = 64
_MOST_TEXT = 16 << 20


class Document(msgspec.Struct, frozen=True):
    """A document as the server knows it."""

    version: int
    text: str


class Documents:
    """The open documents of one server. `tell` sends a notification. Saves are sent if the server requested them."""

    def __init__(self, tell: Callable[[str, object], None], *, saves: bool = False, saves_text: bool = False) -> None:
        self._tell = tell
        self._saves = saves
        self._saves_text = saves_text
        self._open: dict[str, Document] = {}

    @property
    def open(self) -> Mapping[str, Document]:
        """Open documents by path, the least recently used first."""
        return self._open

    def sync(self, path: str, text: str) -> bool:
        """Send this text if it differs from the server's version. Returns whether it was sent."""
        uri = uri_of(path)
        known = self._open.pop(path, None)
        if known is not None and known.text == text:
            self._open[path] = known
            return False
        version = known.version + 1 if known is not None else 1
        self._open[path] = Document(version, text)
        if known is None:
            name = path.rpartition("/")[2]
            item = {"uri": uri, "languageId": language_of(name), "version": version, "text": text}
            self._tell("textDocument/didOpen", {"textDocument": item})
            self._make_room()
            return True
        changed = {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]}
        self._tell("textDocument/didChange", changed)
        if self._saves:
            saved: dict[str, object] = {"textDocument": {"uri": uri}}
            self._tell("textDocument/didSave", saved | ({"text": text} if self._saves_text else {}))
        return True

    def close(self, path: str) -> None:
        """Close a document, if it is open."""
        if self._open.pop(path, None) is not None:
            self._tell("textDocument/didClose", {"textDocument": {"uri": uri_of(path)}})

    def _make_room(self) -> None:
        while len(self._open) > _MOST_OPEN or (len(self._open) > 1 and self._size() > _MOST_TEXT):
            self.close(next(iter(self._open)))

    def _size(self) -> int:
        return sum(len(document.text) for document in self._open.values())
