"""Session with one process of a language server: the `initialize` handshake, open documents and diagnostics.

A `ServerSession` holds the protocol state of one process and is discarded with it. Processes, restarts and waiting
belong to `server_supervisor`. Document synchronization and the `initialize` parameters are pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import __version__
from holdfast.extensions.lsp.changed_file_scan import FileChange, Pattern, matching_changes, parse_glob
from holdfast.extensions.lsp.diagnostics import DiagnosticStore
from holdfast.extensions.lsp.lsp_connection import Incoming, LspConnection, RequestRefused
from holdfast.extensions.lsp.lsp_types import Diagnostic, Position, ServerCapabilities, file_uri
from holdfast.extensions.lsp.positions import ENCODINGS
from holdfast.extensions.lsp.server_config import ServerConfig, language_id
from holdfast.workspace.files.path_strings import is_within

__all__ = [
    "REQUEST_TIMEOUT",
    "Document",
    "Documents",
    "ServerSession",
    "configuration_section",
    "initialize_params",
    "workspace_folders",
]

_MAX_OPEN = 64
_MAX_TEXT = 16 << 20
_WATCHED_FILES = {"dynamicRegistration": True, "relativePatternSupport": True}
_CLIENT_CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": list(ENCODINGS)},
    "window": {"workDoneProgress": True},
    "workspace": {
        "applyEdit": False,
        "configuration": True,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": _WATCHED_FILES,
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
T = TypeVar("T")
REQUEST_TIMEOUT = 15.0
"""Default time limit for requests other than diagnostics, in seconds."""
_DIAGNOSTIC = "textDocument/diagnostic"
_MAX_DEPENDENT_FILES = 8
_MAX_PROGRESS_TOKENS = 64
_MAX_DIAGNOSED_VERSIONS = 256
_MAX_REGISTRATIONS = 512


class Document(msgspec.Struct, frozen=True):
    """A document as the server knows it."""

    version: int
    text: str


class Documents:
    """The open documents of one server. `notify` sends a notification. Saves are sent if the server requested them."""

    def __init__(self, notify: Callable[[str, object], None], *, saves: bool = False, saves_text: bool = False) -> None:
        self._notify = notify
        self._saves = saves
        self._saves_text = saves_text
        self._open: dict[str, Document] = {}

    @property
    def open(self) -> Mapping[str, Document]:
        """Open documents by path, the least recently used first."""
        return self._open

    def sync(self, path: str, text: str) -> bool:
        """Send this text if it differs from the server's version. Returns whether it was sent."""
        uri = file_uri(path)
        known = self._open.pop(path, None)
        if known is not None and known.text == text:
            self._open[path] = known
            return False
        version = known.version + 1 if known is not None else 1
        self._open[path] = Document(version, text)
        if known is None:
            name = path.rpartition("/")[2]
            item = {"uri": uri, "languageId": language_id(name), "version": version, "text": text}
            self._notify("textDocument/didOpen", {"textDocument": item})
            self._evict()
            return True
        change = {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]}
        self._notify("textDocument/didChange", change)
        if self._saves:
            saved: dict[str, object] = {"textDocument": {"uri": uri}}
            self._notify("textDocument/didSave", saved | ({"text": text} if self._saves_text else {}))
        return True

    def close(self, path: str) -> None:
        """Close a document, if it is open."""
        if self._open.pop(path, None) is not None:
            self._notify("textDocument/didClose", {"textDocument": {"uri": file_uri(path)}})

    def _evict(self) -> None:
        while len(self._open) > _MAX_OPEN or (len(self._open) > 1 and self._total_size() > _MAX_TEXT):
            self.close(next(iter(self._open)))

    def _total_size(self) -> int:
        return sum(len(document.text) for document in self._open.values())


def initialize_params(root: str, init_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `initialize`. The process id is omitted: it may be meaningless in the server's
    namespace, and the server process ends with ours anyway.
    """
    params: dict[str, Any] = {
        "processId": None,
        "clientInfo": {"name": "holdfast", "version": __version__},
        "rootPath": root,
        "rootUri": file_uri(root),
        "workspaceFolders": workspace_folders([root]),
        "capabilities": _CLIENT_CAPABILITIES,
    }
    return params | ({"initializationOptions": dict(init_options)} if init_options else {})


def workspace_folders(roots: Sequence[str]) -> list[dict[str, str]]:
    """Return workspace folders for these directories."""
    return [{"uri": file_uri(root), "name": root.rpartition("/")[2] or root} for root in roots]


def configuration_section(options: Mapping[str, Any], section: str) -> object:
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


class _PublishDiagnostics(msgspec.Struct, frozen=True):
    uri: str
    diagnostics: list[Diagnostic]
    version: int | None = None


class _DiagnosticReport(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    items: list[Diagnostic] = []
    related_documents: dict[str, "_DiagnosticReport"] | None = None


class _ProgressValue(msgspec.Struct, frozen=True):
    kind: str = ""


class _Progress(msgspec.Struct, frozen=True):
    token: int | str
    value: _ProgressValue = _ProgressValue()


class _Registration(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    method: str
    register_options: Any = None


class _Registrations(msgspec.Struct, frozen=True):
    registrations: list[_Registration] = []
    unregisterations: list[_Registration] = []


class _ConfigurationItem(msgspec.Struct, frozen=True):
    section: str | None = None


class _ConfigurationParams(msgspec.Struct, frozen=True):
    items: list[_ConfigurationItem] = []


class _LogMessage(msgspec.Struct, frozen=True):
    message: str


class _InitializeResult(msgspec.Struct, frozen=True):
    capabilities: ServerCapabilities = ServerCapabilities()


class ServerSession:
    """The session. `on_change` is called when diagnostics or the progress state have changed, `on_log`
    with log messages.
    """

    def __init__(
        self,
        config: ServerConfig,
        root: str,
        on_change: Callable[[str], None],
        on_log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.roots = [root]
        self.capabilities = ServerCapabilities()
        self.diagnostics = DiagnosticStore()
        self.documents = Documents(lambda _method, _params: None)
        self.has_responded = False
        """True if diagnostics of any file were received."""
        self._diagnosed_versions: dict[str, int] = {}
        self._connection: LspConnection | None = None
        self._on_change = on_change
        self._on_log = on_log
        self._progress_tokens: set[int | str] = set()
        self._registrations: dict[str, _Registration] = {}
        self._watch_patterns: dict[str, list[Pattern]] = {}

    @property
    def is_busy(self) -> bool:
        """True if the server reports work in progress."""
        return bool(self._progress_tokens)

    @property
    def supports_pull(self) -> bool:
        """True if the server supports pull diagnostics."""
        dynamic = any(item.method == _DIAGNOSTIC for item in self._registrations.values())
        return self.capabilities.diagnostic_provider not in (None, False) or dynamic

    def dependent_files(self, path: str) -> list[str]:
        """Return recently used open files that may be affected by another file, if diagnostics
        depend on other files.
        """
        options = [self.capabilities.diagnostic_provider]
        options += [item.register_options for item in self._registrations.values() if item.method == _DIAGNOSTIC]
        if not any(isinstance(item, dict) and item.get("interFileDependencies") for item in options):
            return []
        return [other for other in self.documents.open if other != path][-_MAX_DEPENDENT_FILES:]

    # Requests

    async def initialize(self, connection: LspConnection, seconds: float) -> None:
        """Perform the `initialize` handshake."""
        self._connection = connection
        params = initialize_params(self.roots[0], self.config.init_options)
        raw = await connection.request("initialize", params, seconds)
        self.capabilities = _decode(raw, _InitializeResult).capabilities
        saves = self.capabilities.wants_saves
        self.documents = Documents(connection.notify, saves=saves, saves_text=self.capabilities.saves_with_text)
        connection.notify("initialized", {})
        if self.config.options and self.config.project_code != "python":
            # Python servers request their configuration, and would restart their analysis after this notification.
            connection.notify("workspace/didChangeConfiguration", {"settings": self.config.options})

    async def request(
        self, method: str, params: object, result_type: type[T], seconds: float = REQUEST_TIMEOUT
    ) -> T | None:
        """Send a request and return the decoded result, or None for null. Raises `ConnectionClosed`, `RequestTimeout`
        or `RequestRefused`.
        """
        assert self._connection is not None, "requests require an initialized session"
        raw = await self._connection.request(method, params, seconds)
        return None if bytes(raw) == b"null" else _decode(raw, result_type)

    async def request_at(
        self, method: str, path: str, position: Position, result_type: type[T], **extra: object
    ) -> T | None:
        """Send a request about a position in a file."""
        params = {"textDocument": {"uri": file_uri(path)}, "position": position, **extra}
        return await self.request(method, params, result_type)

    async def pull_diagnostics(self, path: str, seconds: float) -> None:
        """Request the diagnostics of a file and store them."""
        params = {"textDocument": {"uri": file_uri(path)}}
        report = await self.request(_DIAGNOSTIC, params, _DiagnosticReport, seconds) or _DiagnosticReport("unchanged")
        for uri, part in {**(report.related_documents or {}), file_uri(path): report}.items():
            if part.kind != "unchanged":
                self.diagnostics.replace("pulled", uri, part.items)
        if (document := self.documents.open.get(path)) is not None:
            self._on_diagnostics(file_uri(path), document.version)

    def add_workspace_folder(self, root: str) -> None:
        """Add a workspace folder, if the server supports that and the directory is not covered yet."""
        if (
            self._connection is None
            or not self.capabilities.accepts_folder_changes
            or any(is_within(old, root) for old in self.roots)
        ):
            return
        self.roots.append(root)
        event = {"added": workspace_folders([root]), "removed": []}
        self._connection.notify("workspace/didChangeWorkspaceFolders", {"event": event})

    def notify_file_changes(self, changes: Sequence[FileChange]) -> None:
        """Notify the server of files that have changed on disk. The caller sends the text of open documents."""
        for change in changes:
            if change.kind == 3:
                self.documents.close(change.path)
                self.diagnostics.remove(file_uri(change.path))
        watched = matching_changes(
            changes, (pattern for patterns in self._watch_patterns.values() for pattern in patterns)
        )
        if watched and self._connection is not None:
            events = [{"uri": file_uri(change.path), "type": change.kind} for change in watched]
            self._connection.notify("workspace/didChangeWatchedFiles", {"changes": events})

    # Incoming messages

    def handle(self, message: Incoming) -> object:
        """Handle a message. Returns the result of a request, or `NotImplemented` for an unknown method."""
        try:
            return self._dispatch(message)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError):
            # Ignore one malformed message; later ones may be valid.
            return None

    def _dispatch(self, message: Incoming) -> object:
        match message.method:
            case "textDocument/publishDiagnostics":
                self._on_publish_diagnostics(msgspec.json.decode(message.params, type=_PublishDiagnostics))
            case "$/progress":
                self._on_progress(msgspec.json.decode(message.params, type=_Progress))
            case "client/registerCapability" | "client/unregisterCapability":
                self._register(msgspec.json.decode(message.params, type=_Registrations))
            case "workspace/configuration":
                items = msgspec.json.decode(message.params, type=_ConfigurationParams).items
                return [configuration_section(self.config.options, item.section or "") for item in items]
            case "window/logMessage" | "window/showMessage":
                self._on_log(msgspec.json.decode(message.params, type=_LogMessage).message)
            case "workspace/workspaceFolders":
                return workspace_folders(self.roots)
            case "workspace/applyEdit":
                return {"applied": False, "failureReason": "Files are changed by tools only."}
            case "window/showDocument":
                return {"success": False}
            case "workspace/diagnostic/refresh" | "window/showMessageRequest" | "window/workDoneProgress/create":
                return None
            case _:
                return NotImplemented
        return None

    def _on_publish_diagnostics(self, params: _PublishDiagnostics) -> None:
        self.diagnostics.replace("pushed", params.uri, params.diagnostics)
        known = self._document_version(params.uri)
        if known is not None and (params.version is None or params.version >= known):
            self._on_diagnostics(params.uri, known)
        else:
            self._on_change("")

    def _document_version(self, uri: str) -> int | None:
        document = next((item for path, item in self.documents.open.items() if file_uri(path) == uri), None)
        return document.version if document is not None else None

    def _on_diagnostics(self, uri: str, version: int) -> None:
        self.has_responded = True
        if len(self._diagnosed_versions) > _MAX_DIAGNOSED_VERSIONS:
            self._diagnosed_versions.clear()
        self._diagnosed_versions[uri] = version
        self._on_change(uri)

    def document(self, path: str) -> Document | None:
        """Return an open document as the server knows it, or None."""
        return self.documents.open.get(path)

    def has_current_diagnostics(self, path: str) -> bool:
        """Return whether diagnostics were received for the current version of a file."""
        document = self.documents.open.get(path)
        return document is not None and self._diagnosed_versions.get(file_uri(path)) == document.version

    def _on_progress(self, params: _Progress) -> None:
        if params.value.kind == "begin" and len(self._progress_tokens) < _MAX_PROGRESS_TOKENS:
            self._progress_tokens.add(params.token)
        elif params.value.kind == "end":
            self._progress_tokens.discard(params.token)
        self._on_change("")

    def _register(self, params: _Registrations) -> None:
        for item in params.registrations[: _MAX_REGISTRATIONS - len(self._registrations)]:
            self._registrations[item.id] = item
            if item.method == "workspace/didChangeWatchedFiles" and isinstance(item.register_options, dict):
                self._watch_patterns[item.id] = list(
                    _parse_watchers(item.register_options.get("watchers"), self.roots[0])
                )
        for item in params.unregisterations:
            self._registrations.pop(item.id, None)
            self._watch_patterns.pop(item.id, None)
        self._on_change("")


def _parse_watchers(watchers: object, root: str) -> Iterable[Pattern]:
    for watcher in watchers if isinstance(watchers, list) else ():
        given = watcher.get("globPattern") if isinstance(watcher, dict) else None
        if (pattern := parse_glob(given, root)) is not None:
            yield pattern


def _decode(raw: msgspec.Raw, result_type: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=result_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(f"The response of the language server is not valid: {error}.") from None
