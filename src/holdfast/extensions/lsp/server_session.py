"""Session with one process of a language server: capabilities, open documents and diagnostics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import __version__
from holdfast.extensions.lsp.diagnostics import DiagnosticStore
from holdfast.extensions.lsp.file_changes import Change, Pattern, of_interest, pattern_of
from holdfast.extensions.lsp.lsp_connection import Incoming, LspConnection, RequestRefused
from holdfast.extensions.lsp.lsp_types import Capabilities, Diagnostic, Position, uri_of
from holdfast.extensions.lsp.positions import ENCODINGS
from holdfast.extensions.lsp.server_config import ServerConfig, language_of
from holdfast.workspace.files.file_paths import is_within

__all__ = ["ANSWER", "Document", "Documents", "ServerSession", "configured", "folders", "greeting"]


# Open documents of a language server. Pure: notifications are passed to a callback.

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


# Client capabilities, and answers to configuration requests. Pure.

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


# Session with one process of a language server: capabilities, open documents and diagnostics.

T = TypeVar("T")

ANSWER = 15.0
"""Default time limit for requests other than diagnostics, in seconds."""
_DIAGNOSTIC = "textDocument/diagnostic"
_MOST_OTHERS = 8
_MOST_TOKENS = 64
_MOST_ANSWERS = 256
_MOST_REGISTERED = 512


class _Published(msgspec.Struct, frozen=True):
    uri: str
    diagnostics: list[Diagnostic]
    version: int | None = None


class _Report(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    items: list[Diagnostic] = []
    related_documents: dict[str, "_Report"] | None = None


class _Value(msgspec.Struct, frozen=True):
    kind: str = ""


class _Progress(msgspec.Struct, frozen=True):
    token: int | str
    value: _Value = _Value()


class _Registration(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    method: str
    register_options: Any = None


class _Registrations(msgspec.Struct, frozen=True):
    registrations: list[_Registration] = []
    unregisterations: list[_Registration] = []


class _Item(msgspec.Struct, frozen=True):
    section: str | None = None


class _Items(msgspec.Struct, frozen=True):
    items: list[_Item] = []


class _Message(msgspec.Struct, frozen=True):
    message: str


class _Greeted(msgspec.Struct, frozen=True):
    capabilities: Capabilities = Capabilities()


class ServerSession:
    """The session. `news` is called when diagnostics or the progress state have changed, `printed`
    with log messages.
    """

    def __init__(
        self,
        plan: ServerConfig,
        root: str,
        news: Callable[[str], None],
        printed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.roots = [root]
        self.capabilities = Capabilities()
        self.findings = DiagnosticStore()
        self.documents = Documents(lambda _method, _params: None)
        self.has_spoken = False
        """True if diagnostics of any file were received."""
        self._answered: dict[str, int] = {}
        self._peer: LspConnection | None = None
        self._news = news
        self._printed = printed
        self._works: set[int | str] = set()
        self._registered: dict[str, _Registration] = {}
        self._patterns: dict[str, list[Pattern]] = {}

    @property
    def is_busy(self) -> bool:
        """True if the server reports work in progress."""
        return bool(self._works)

    @property
    def answers_for_files(self) -> bool:
        """True if the server supports pull diagnostics."""
        dynamic = any(item.method == _DIAGNOSTIC for item in self._registered.values())
        return self.capabilities.diagnostic_provider not in (None, False) or dynamic

    def others(self, path: str) -> list[str]:
        """Return recently used open files that may be affected by another file, if diagnostics
        depend on other files.
        """
        given = [self.capabilities.diagnostic_provider]
        given += [item.register_options for item in self._registered.values() if item.method == _DIAGNOSTIC]
        if not any(isinstance(item, dict) and item.get("interFileDependencies") for item in given):
            return []
        return [other for other in self.documents.open if other != path][-_MOST_OTHERS:]

    # Requests

    async def greet(self, peer: LspConnection, seconds: float) -> None:
        """Perform the `initialize` handshake."""
        self._peer = peer
        raw = await peer.ask("initialize", greeting(self.roots[0], self.plan.init_options), seconds)
        self.capabilities = _read(raw, _Greeted).capabilities
        saves = self.capabilities.wants_saves
        self.documents = Documents(peer.tell, saves=saves, saves_text=self.capabilities.saves_with_text)
        peer.tell("initialized", {})
        if self.plan.options and self.plan.care != "python":
            # Python servers request their configuration, and would restart their analysis after this notification.
            peer.tell("workspace/didChangeConfiguration", {"settings": self.plan.options})

    async def ask(self, method: str, params: object, kind: type[T], seconds: float = ANSWER) -> T | None:
        """Send a request and return the decoded result, or None for null. Raises `Gone`, `Late` or `RequestRefused`."""
        assert self._peer is not None, "who has not been greeted is not asked"
        raw = await self._peer.ask(method, params, seconds)
        return None if bytes(raw) == b"null" else _read(raw, kind)

    async def ask_at(self, method: str, path: str, position: Position, kind: type[T], **more: object) -> T | None:
        """Send a request about a position in a file."""
        params = {"textDocument": {"uri": uri_of(path)}, "position": position, **more}
        return await self.ask(method, params, kind)

    async def pull(self, path: str, seconds: float) -> None:
        """Request the diagnostics of a file and store them."""
        params = {"textDocument": {"uri": uri_of(path)}}
        report = await self.ask(_DIAGNOSTIC, params, _Report, seconds) or _Report("unchanged")
        for uri, part in {**(report.related_documents or {}), uri_of(path): report}.items():
            if part.kind != "unchanged":
                self.findings.put("pulled", uri, part.items)
        if (document := self.documents.open.get(path)) is not None:
            self._spoke(uri_of(path), document.version)

    def add_root(self, root: str) -> None:
        """Add a workspace folder, if the server supports that and the directory is not covered yet."""
        if self._peer is None or not self.capabilities.takes_folders or any(is_within(old, root) for old in self.roots):
            return
        self.roots.append(root)
        event = {"added": folders([root]), "removed": []}
        self._peer.tell("workspace/didChangeWorkspaceFolders", {"event": event})

    def tell_of_files(self, found: Sequence[Change]) -> None:
        """Notify the server of files that have changed on disk. The caller sends the text of open documents."""
        for change in found:
            if change.kind == 3:
                self.documents.close(change.path)
                self.findings.forget(uri_of(change.path))
        wanted = of_interest(found, (pattern for patterns in self._patterns.values() for pattern in patterns))
        if wanted and self._peer is not None:
            told = [{"uri": uri_of(change.path), "type": change.kind} for change in wanted]
            self._peer.tell("workspace/didChangeWatchedFiles", {"changes": told})

    # Incoming messages

    def hear(self, heard: Incoming) -> object:
        """Handle a message. Returns the result of a request, or `NotImplemented` for an unknown method."""
        try:
            return self._hear(heard)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError):
            # Ignore one malformed message; later ones may be valid.
            return None

    def _hear(self, heard: Incoming) -> object:
        match heard.method:
            case "textDocument/publishDiagnostics":
                self._published(msgspec.json.decode(heard.params, type=_Published))
            case "$/progress":
                self._progressed(msgspec.json.decode(heard.params, type=_Progress))
            case "client/registerCapability" | "client/unregisterCapability":
                self._register(msgspec.json.decode(heard.params, type=_Registrations))
            case "workspace/configuration":
                items = msgspec.json.decode(heard.params, type=_Items).items
                return [configured(self.plan.options, item.section or "") for item in items]
            case "window/logMessage" | "window/showMessage":
                self._printed(msgspec.json.decode(heard.params, type=_Message).message)
            case "workspace/workspaceFolders":
                return folders(self.roots)
            case "workspace/applyEdit":
                return {"applied": False, "failureReason": "Files are changed by tools only."}
            case "window/showDocument":
                return {"success": False}
            case "workspace/diagnostic/refresh" | "window/showMessageRequest" | "window/workDoneProgress/create":
                return None
            case _:
                return NotImplemented
        return None

    def _published(self, said: _Published) -> None:
        self.findings.put("pushed", said.uri, said.diagnostics)
        known = self._known_version(said.uri)
        if known is not None and (said.version is None or said.version >= known):
            self._spoke(said.uri, known)
        else:
            self._news("")

    def _known_version(self, uri: str) -> int | None:
        document = next((item for path, item in self.documents.open.items() if uri_of(path) == uri), None)
        return document.version if document is not None else None

    def _spoke(self, uri: str, version: int) -> None:
        self.has_spoken = True
        if len(self._answered) > _MOST_ANSWERS:
            self._answered.clear()
        self._answered[uri] = version
        self._news(uri)

    def has_answered(self, path: str) -> bool:
        """Return whether diagnostics were received for the current version of a file."""
        document = self.documents.open.get(path)
        return document is not None and self._answered.get(uri_of(path)) == document.version

    def _progressed(self, said: _Progress) -> None:
        if said.value.kind == "begin" and len(self._works) < _MOST_TOKENS:
            self._works.add(said.token)
        elif said.value.kind == "end":
            self._works.discard(said.token)
        self._news("")

    def _register(self, said: _Registrations) -> None:
        for item in said.registrations[: _MOST_REGISTERED - len(self._registered)]:
            self._registered[item.id] = item
            if item.method == "workspace/didChangeWatchedFiles" and isinstance(item.register_options, dict):
                self._patterns[item.id] = list(_patterns(item.register_options.get("watchers"), self.roots[0]))
        for item in said.unregisterations:
            self._registered.pop(item.id, None)
            self._patterns.pop(item.id, None)
        self._news("")


def _patterns(watchers: object, root: str) -> Iterable[Pattern]:
    for watcher in watchers if isinstance(watchers, list) else ():
        given = watcher.get("globPattern") if isinstance(watcher, dict) else None
        if (pattern := pattern_of(given, root)) is not None:
            yield pattern


def _read(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(f"The language server's answer makes no sense: {error}.") from None
