"""Read-only tools of language servers: definitions, references, calls, diagnostics, document symbols; the tool that
restarts servers, and the list of all LSP tools.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.extensions.lsp.diagnostics_wait import ON_REQUEST
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.extensions.lsp.lsp_types import CallHierarchyItem, Location, ServerCapabilities
from holdfast.extensions.lsp.refactoring_tools import Rename, ReplaceSymbol
from holdfast.extensions.lsp.symbol_search import (
    Symbol,
    SymbolLocation,
    SymbolLocator,
    document_symbols,
    request_locations,
)
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import resolve_location

__all__ = ["CallHierarchy", "Definition", "Diagnostics", "References", "RestartServers", "Symbols", "create_lsp_tools"]

_MAX_LOCATIONS = 100
_MAX_SYMBOLS = 400
_KINDS = (
    "", "file", "module", "namespace", "package", "class", "method", "property", "field", "constructor", "enum",
    "interface", "function", "variable", "constant", "string", "number", "boolean", "array", "object", "key", "null",
    "enum member", "struct", "event", "operator", "type parameter",
)  # fmt: skip


class SymbolArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description='A name, such as "parse" or "Parser.parse".')]
    path: Annotated[str, Meta(description="The file or directory to search; default: the workspace.")] = "."


class _NavigationTool(BaseTool[SymbolArguments]):
    """Requests locations for each position of a name until one of them has a result."""

    arguments = SymbolArguments
    is_parallel = True
    noun: ClassVar[str]
    method: ClassVar[str]
    extra_params: ClassVar[dict[str, object]] = {}

    def __init__(self, locator: SymbolLocator) -> None:
        super().__init__()
        self._locator = locator

    @staticmethod
    @abstractmethod
    def capability(capabilities: ServerCapabilities) -> object:
        """Return the capability of the server for this request."""

    async def act(self, context: ToolContext, arguments: SymbolArguments) -> ToolOutcome:
        """Find the symbol and return its locations."""
        symbol, noun = arguments.symbol, self.noun
        found: list[Location] = []
        lines: list[str] = []
        for location in await self._locator.locate(context, self.name, symbol, arguments.path, self.capability):
            if found := await request_locations(self.method, location, **self.extra_params):
                lines = await self._locator.format_locations(location.session, found[:_MAX_LOCATIONS])
                break
        files = len({location.uri for location in found})
        details = metadata(
            **{f"number_of_{noun}s": len(found), "number_of_files": files, "truncated": len(found) > _MAX_LOCATIONS}
        )
        if not found:
            return ToolOutcome(f"No {noun} of {symbol} was found.", details)
        heading = f"{len(found)} {noun}{'s' * (len(found) > 1)} of {symbol} in {files} file{'s' * (files > 1)}:"
        rest = [f"({len(found) - _MAX_LOCATIONS} more)"] if len(found) > _MAX_LOCATIONS else []
        return ToolOutcome("\n".join([heading, *lines, *rest]), details)


class References(_NavigationTool):
    """Finds the references to a symbol."""

    name = "lsp_references"
    noun = "reference"
    method = "textDocument/references"
    extra_params: ClassVar[dict[str, object]] = {"context": {"includeDeclaration": True}}

    @staticmethod
    def capability(capabilities: ServerCapabilities) -> object:
        """Return the references capability."""
        return capabilities.references_provider


class Definition(_NavigationTool):
    """Finds the definition of a symbol."""

    name = "lsp_definition"
    noun = "definition"
    method = "textDocument/definition"

    @staticmethod
    def capability(capabilities: ServerCapabilities) -> object:
        """Return the definition capability."""
        return capabilities.definition_provider


class CallArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description="The name of a function or method.")]
    direction: Annotated[Literal["incoming", "outgoing"], Meta(description="List its callers or its callees.")]
    path: Annotated[str, Meta(description="The file or directory to search; default: the workspace.")] = "."


class _Call(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    source: CallHierarchyItem | None = None
    target: CallHierarchyItem | None = None


class CallHierarchy(BaseTool[CallArguments]):
    """Finds the callers or callees of a function."""

    name = "lsp_call_hierarchy"
    arguments = CallArguments
    is_parallel = True

    def __init__(self, locator: SymbolLocator) -> None:
        super().__init__()
        self._locator = locator

    async def act(self, context: ToolContext, arguments: CallArguments) -> ToolOutcome:
        """Find the function and return its calls."""
        symbol = arguments.symbol
        locations = await self._locator.locate(
            context, self.name, symbol, arguments.path, lambda capability: capability.call_hierarchy_provider
        )
        for location in locations:
            if (found := await self._request_calls(location, arguments.direction)) is not None:
                break
        else:
            raise ToolError(f"The language server knows no function {symbol}. Use grep.")
        verb = "calls it" if arguments.direction == "incoming" else "is called by it"
        details = metadata(number_of_calls=len(found))
        if not found:
            return ToolOutcome(f"Nothing {verb}.", details)
        items = [Location(item.uri, item.selection_range) for item in found[:_MAX_LOCATIONS]]
        lines = await self._locator.format_locations(location.session, items)
        named_lines = [f"{item.name}  {line}" for item, line in zip(found, lines, strict=False)]
        return ToolOutcome("\n".join([f"What {verb}:", *named_lines]), details)

    async def _request_calls(self, location: SymbolLocation, direction: str) -> list[CallHierarchyItem] | None:
        prepare = "textDocument/prepareCallHierarchy"
        items = await location.session.request_at(prepare, location.path, location.position, list[dict[str, object]])
        if not items:
            return None
        answer = await location.session.request(f"callHierarchy/{direction}Calls", {"item": items[0]}, list[_Call])
        found = [call.source or call.target for call in answer or []]
        return [item for item in found if item is not None]


class DiagnosticsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The file to check; default: all known diagnostics.")] = ""


class Diagnostics(BaseTool[DiagnosticsArguments]):
    """Returns the diagnostics of a file, or all known ones."""

    name = "lsp_diagnostics"
    arguments = DiagnosticsArguments
    is_parallel = True

    def __init__(self, manager: LspManager) -> None:
        super().__init__()
        self._manager = manager

    async def act(self, context: ToolContext, arguments: DiagnosticsArguments) -> ToolOutcome:
        """Request permission, wait for diagnostics, and format them."""
        path = ""
        if arguments.file_path:
            place = await resolve_location(context, arguments.file_path)
            params = {"file_path": place.path}
            await context.permit(Permit(self.name, "read", place.path, f"Check file {place.path}", params))
            path = place.path
            responses = await self._manager.request_diagnostics(path, ON_REQUEST)
            if not responses:
                raise ToolError(f"There is no language server for {place.name}. {self._server_errors()}".strip())
        else:
            await self._manager.sync_file_changes()
            responses = {}
        here, elsewhere = self._manager.diagnostics(path)
        details = self._manager.format_report(path, responses, is_brief=False) or self._no_diagnostics(path)
        numbers = metadata(file_diagnostics=len(here), project_diagnostics=len(elsewhere))
        return ToolOutcome("\n".join(filter(None, [details, self._server_errors()])), numbers)

    def _no_diagnostics(self, path: str) -> str:
        names = ", ".join(server.name for server in self._manager.servers if server.session is not None)
        if not names:
            return "No language server is running yet. Name a file to start the one for it."
        return f"No problems in {'the file' if path else 'the known files'}, according to {names}."

    def _server_errors(self) -> str:
        failed = [server for server in self._manager.servers if server.status.error]
        return "\n".join(f"({server.name} does not run: {server.status.error})" for server in failed)


class SymbolsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The path of the file, absolute or relative to the workspace.")]


class Symbols(BaseTool[SymbolsArguments]):
    """Lists the symbols of a file."""

    name = "lsp_symbols"
    arguments = SymbolsArguments
    is_parallel = True

    def __init__(self, locator: SymbolLocator) -> None:
        super().__init__()
        self._locator = locator

    async def act(self, context: ToolContext, arguments: SymbolsArguments) -> ToolOutcome:
        """Request permission and return one line for each symbol."""
        place = await resolve_location(context, arguments.file_path)
        await context.permit(Permit(self.name, "read", place.path, f"Read {place.path}", {"file_path": place.path}))
        session, *_ = await self._locator.sessions(place.path, lambda capability: capability.document_symbol_provider)
        symbols = await document_symbols(session, place.path)
        details = metadata(file_path=place.path, number_of_symbols=len(symbols), truncated=len(symbols) > _MAX_SYMBOLS)
        if not symbols:
            return ToolOutcome(f"{place.name} has no symbols.", details)
        lines = [_symbol_line(symbol) for symbol in symbols[:_MAX_SYMBOLS]]
        more = len(symbols) - len(lines)
        return ToolOutcome("\n".join([*lines, *([f"({more} more)"] if more else [])]), details)


def _symbol_line(symbol: Symbol) -> str:
    kind = _KINDS[symbol.kind] if 0 < symbol.kind < len(_KINDS) else "symbol"
    detail = f" {symbol.detail}" if symbol.detail else ""
    lines = f"{symbol.first + 1}" if symbol.first == symbol.last else f"{symbol.first + 1}-{symbol.last + 1}"
    return f"{'  ' * (len(symbol.path) - 1)}{kind} {symbol.path[-1]}{detail} (line {lines})"


class RestartArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="The server; default: all running servers.")] = ""


class RestartServers(BaseTool[RestartArguments]):
    """Restarts language servers."""

    name = "lsp_restart"
    arguments = RestartArguments

    def __init__(self, manager: LspManager) -> None:
        super().__init__()
        self._manager = manager

    async def act(self, context: ToolContext, arguments: RestartArguments) -> ToolOutcome:
        """Restart the servers and return their names."""
        names = self._manager.restart(arguments.name)
        if not names:
            return ToolOutcome("No language server is running: one starts with the first file of its language.")
        return ToolOutcome(f"Restarting {', '.join(names)}.", metadata(servers=names))


def create_lsp_tools(manager: LspManager) -> Sequence[Tool]:
    """Return all LSP tools."""
    locator = SymbolLocator(manager)
    return (
        CallHierarchy(locator),
        Definition(locator),
        Diagnostics(manager),
        References(locator),
        Rename(manager, locator),
        ReplaceSymbol(manager, locator),
        RestartServers(manager),
        Symbols(locator),
    )
