"""Which files a language server has open, and what it knows of them. Pure: what is to be said goes to whoever made it.

Files are told whole, with a number that grows. The one that was not used for longest is closed when there are too many.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.extensions.lsp.catalogue import language_of
from holdfast.extensions.lsp.shapes import uri_of

__all__ = ["Document", "Documents"]

_MOST_OPEN = 64
_MOST_TEXT = 16 << 20


class Document(msgspec.Struct, frozen=True):
    """A file as the server has it."""

    version: int
    text: str


class Documents:
    """`tell` sends a notice. Saves are told to who wants to hear of them."""

    def __init__(self, tell: Callable[[str, object], None], *, saves: bool = False, saves_text: bool = False) -> None:
        self._tell = tell
        self._saves = saves
        self._saves_text = saves_text
        self._open: dict[str, Document] = {}

    @property
    def open(self) -> Mapping[str, Document]:
        return self._open

    def sync(self, path: str, text: str) -> bool:
        """Let the server have this text. False if it has it already."""
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
        if self._open.pop(path, None) is not None:
            self._tell("textDocument/didClose", {"textDocument": {"uri": uri_of(path)}})

    def _make_room(self) -> None:
        while len(self._open) > _MOST_OPEN or (len(self._open) > 1 and self._size() > _MOST_TEXT):
            self.close(next(iter(self._open)))

    def _size(self) -> int:
        return sum(len(document.text) for document in self._open.values())
