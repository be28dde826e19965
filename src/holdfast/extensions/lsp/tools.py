"""Tools for diagnostics, document symbols and restarts, and the list of all LSP tools."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Permit, Tool, ToolContext, ToolOutcome
from holdfast.extensions.lsp.fleet import Fleet
from holdfast.extensions.lsp.locating import Locator, Symbol, symbols_of
from holdfast.extensions.lsp.navigating import CallHierarchy, Definition, References
from holdfast.extensions.lsp.rename import Rename
from holdfast.extensions.lsp.replacing import ReplaceSymbol
from holdfast.extensions.lsp.settling import WHEN_ASKED
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import place_of

__all__ = ["Diagnostics", "Restart", "Symbols", "tools_of"]

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

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    async def act(self, context: ToolContext, arguments: DiagnosticsArguments) -> ToolOutcome:
        """Request permission, wait for diagnostics, and format them."""
        path = ""
        if arguments.file_path:
            place = await place_of(context, arguments.file_path)
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

    def __init__(self, locator: Locator) -> None:
        super().__init__()
        self._locator = locator

    async def act(self, context: ToolContext, arguments: SymbolsArguments) -> ToolOutcome:
        """Request permission and return one line for each symbol."""
        place = await place_of(context, arguments.file_path)
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

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    async def act(self, context: ToolContext, arguments: RestartArguments) -> ToolOutcome:
        """Restart the servers and return their names."""
        names = self._fleet.restart(arguments.name)
        if not names:
            return ToolOutcome("No language server is running: the first file of its kind starts one.")
        return ToolOutcome(f"Restarting {', '.join(names)}.", metadata(servers=names))


def tools_of(fleet: Fleet) -> Sequence[Tool]:
    """Return all LSP tools."""
    locator = Locator(fleet)
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
