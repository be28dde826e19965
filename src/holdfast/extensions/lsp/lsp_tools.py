"""Tools for diagnostics, document symbols and restarts, and the list of all LSP tools."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.extensions.lsp.diagnostics_wait import WHEN_ASKED
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.extensions.lsp.lsp_types import CallItem, Capabilities, Location
from holdfast.extensions.lsp.refactoring_tools import Rename, ReplaceSymbol
from holdfast.extensions.lsp.symbol_search import Symbol, SymbolLocation, SymbolLocator, places, symbols_of
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import resolve_location

__all__ = ["CallHierarchy", "Definition", "Diagnostics", "References", "Restart", "Symbols", "tools_of"]


# Tools that find definitions, references and calls with language servers.

_MOST = 100


class SymbolArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description='A name, such as "parse" or "Parser.parse".')]
    path: Annotated[str, Meta(description="The file or directory to look for it; the workspace if left out.")] = "."


class _Navigating(BaseTool[SymbolArguments]):
    """Requests locations for each position of a name until one of them has a result."""

    arguments = SymbolArguments
    is_parallel = True
    word: ClassVar[str]
    method: ClassVar[str]
    more: ClassVar[dict[str, object]] = {}

    def __init__(self, locator: SymbolLocator) -> None:
        super().__init__()
        self._locator = locator

    @staticmethod
    @abstractmethod
    def can(capabilities: Capabilities) -> object:
        """Return the capability of the server for this request."""

    async def act(self, context: ToolContext, arguments: SymbolArguments) -> ToolOutcome:
        """Find the symbol and return its locations."""
        symbol, word = arguments.symbol, self.word
        found: list[Location] = []
        lines: list[str] = []
        for spot in await self._locator.spots(context, self.name, symbol, arguments.path, self.can):
            if found := await places(self.method, spot, **self.more):
                lines = await self._locator.told(spot.talk, found[:_MOST])
                break
        files = len({location.uri for location in found})
        told = metadata(**{f"number_of_{word}s": len(found), "number_of_files": files, "truncated": len(found) > _MOST})
        if not found:
            return ToolOutcome(f"No {word} of {symbol} was found.", told)
        head = f"{len(found)} {word}{'s' * (len(found) > 1)} of {symbol} in {files} file{'s' * (files > 1)}:"
        rest = [f"({len(found) - _MOST} more)"] if len(found) > _MOST else []
        return ToolOutcome("\n".join([head, *lines, *rest]), told)


class References(_Navigating):
    """Finds the references to a symbol."""

    name = "lsp_references"
    word = "reference"
    method = "textDocument/references"
    more: ClassVar[dict[str, object]] = {"context": {"includeDeclaration": True}}

    @staticmethod
    def can(capabilities: Capabilities) -> object:
        """Return the references capability."""
        return capabilities.references_provider


class Definition(_Navigating):
    """Finds the definition of a symbol."""

    name = "lsp_definition"
    word = "definition"
    method = "textDocument/definition"

    @staticmethod
    def can(capabilities: Capabilities) -> object:
        """Return the definition capability."""
        return capabilities.definition_provider


class CallArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description="The name of a function or method.")]
    direction: Annotated[Literal["incoming", "outgoing"], Meta(description="Who calls it, or whom it calls.")]
    path: Annotated[str, Meta(description="The file or directory to look for it; the workspace if left out.")] = "."


class _Call(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    source: CallItem | None = None
    target: CallItem | None = None


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
        spots = await self._locator.spots(
            context, self.name, symbol, arguments.path, lambda can: can.call_hierarchy_provider
        )
        for spot in spots:
            if (found := await self._calls(spot, arguments.direction)) is not None:
                break
        else:
            raise ToolError(f"{symbol} is no function that the language server knows. Use grep.")
        verb = "calls it" if arguments.direction == "incoming" else "is called by it"
        told = metadata(number_of_calls=len(found))
        if not found:
            return ToolOutcome(f"Nothing {verb}.", told)
        items = [Location(item.uri, item.selection_range) for item in found[:_MOST]]
        lines = await self._locator.told(spot.talk, items)
        named = [f"{item.name}  {line}" for item, line in zip(found, lines, strict=False)]
        return ToolOutcome("\n".join([f"What {verb}:", *named]), told)

    async def _calls(self, spot: SymbolLocation, direction: str) -> list[CallItem] | None:
        prepare = "textDocument/prepareCallHierarchy"
        items = await spot.talk.ask_at(prepare, spot.path, spot.position, list[dict[str, object]])
        if not items:
            return None
        answer = await spot.talk.ask(f"callHierarchy/{direction}Calls", {"item": items[0]}, list[_Call])
        found = [call.source or call.target for call in answer or []]
        return [item for item in found if item is not None]


# Tools for diagnostics, document symbols and restarts, and the list of all LSP tools.

_MOST_SYMBOLS = 400
_KINDS = (
    "", "file", "module", "namespace", "package", "class", "method", "property", "field", "constructor", "enum",
    "interface", "function", "variable", "constant", "string", "number", "boolean", "array", "object", "key", "null",
    "enum member", "struct", "event", "operator", "type parameter",
)  # fmt: skip


class DiagnosticsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The file to check; all that is known if left out.")] = ""


class Diagnostics(BaseTool[DiagnosticsArguments]):
    """Returns the diagnostics of a file, or all known ones."""

    name = "lsp_diagnostics"
    arguments = DiagnosticsArguments
    is_parallel = True

    def __init__(self, fleet: LspManager) -> None:
        super().__init__()
        self._fleet = fleet

    async def act(self, context: ToolContext, arguments: DiagnosticsArguments) -> ToolOutcome:
        """Request permission, wait for diagnostics, and format them."""
        path = ""
        if arguments.file_path:
            place = await resolve_location(context, arguments.file_path)
            params = {"file_path": place.path}
            await context.permit(Permit(self.name, "read", place.path, f"Check file {place.path}", params))
            path = place.path
            answered = await self._fleet.ask_about(path, WHEN_ASKED)
            if not answered:
                raise ToolError(f"There is no language server for {place.name}. {self._trouble()}".strip())
        else:
            await self._fleet.catch_up()
            answered = {}
        here, elsewhere = self._fleet.findings(path)
        told = self._fleet.report(path, answered, is_brief=False) or self._nothing(path)
        numbers = metadata(file_diagnostics=len(here), project_diagnostics=len(elsewhere))
        return ToolOutcome("\n".join(filter(None, [told, self._trouble()])), numbers)

    def _nothing(self, path: str) -> str:
        names = ", ".join(server.name for server in self._fleet.servers if server.talk is not None)
        if not names:
            return "No language server is running yet. Name a file to start the one for it."
        return f"Nothing is wrong with {'the file' if path else 'the files they know'}, say {names}."

    def _trouble(self) -> str:
        failed = [server for server in self._fleet.servers if server.standing.error]
        return "\n".join(f"({server.name} does not run: {server.standing.error})" for server in failed)


class SymbolsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace's directory.")]


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
        talk, *_ = await self._locator.talks(place.path, lambda can: can.document_symbol_provider)
        symbols = await symbols_of(talk, place.path)
        told = metadata(file_path=place.path, number_of_symbols=len(symbols), truncated=len(symbols) > _MOST_SYMBOLS)
        if not symbols:
            return ToolOutcome(f"{place.name} has no symbols.", told)
        lines = [_line(symbol) for symbol in symbols[:_MOST_SYMBOLS]]
        more = len(symbols) - len(lines)
        return ToolOutcome("\n".join([*lines, *([f"({more} more)"] if more else [])]), told)


def _line(symbol: Symbol) -> str:
    kind = _KINDS[symbol.kind] if 0 < symbol.kind < len(_KINDS) else "symbol"
    detail = f" {symbol.detail}" if symbol.detail else ""
    lines = f"{symbol.first + 1}" if symbol.first == symbol.last else f"{symbol.first + 1}-{symbol.last + 1}"
    return f"{'  ' * (len(symbol.path) - 1)}{kind} {symbol.path[-1]}{detail} (line {lines})"


class RestartArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="The server; all that run if left out.")] = ""


class Restart(BaseTool[RestartArguments]):
    """Restarts language servers."""

    name = "lsp_restart"
    arguments = RestartArguments

    def __init__(self, fleet: LspManager) -> None:
        super().__init__()
        self._fleet = fleet

    async def act(self, context: ToolContext, arguments: RestartArguments) -> ToolOutcome:
        """Restart the servers and return their names."""
        names = self._fleet.restart(arguments.name)
        if not names:
            return ToolOutcome("No language server is running: the first file of its kind starts one.")
        return ToolOutcome(f"Restarting {', '.join(names)}.", metadata(servers=names))


def tools_of(fleet: LspManager) -> Sequence[Tool]:
    """Return all LSP tools."""
    locator = SymbolLocator(fleet)
    return (
        CallHierarchy(locator),
        Definition(locator),
        Diagnostics(fleet),
        References(locator),
        Rename(fleet, locator),
        ReplaceSymbol(fleet, locator),
        Restart(fleet),
        Symbols(locator),
    )
