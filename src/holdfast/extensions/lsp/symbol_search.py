"""Symbol lookup: finds a name by text search, then resolves it with the language server."""

import asyncio
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext
from holdfast.extensions.lsp.lsp_connection import RequestRefused
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.extensions.lsp.lsp_types import (
    DocumentSymbol,
    Location,
    LocationLink,
    Position,
    ServerCapabilities,
    file_uri,
    path_from_uri,
)
from holdfast.extensions.lsp.positions import TextLines
from holdfast.extensions.lsp.server_session import REQUEST_TIMEOUT, ServerSession
from holdfast.tools.grep import search_environment, searched
from holdfast.workspace.files.path_strings import display_path, is_within
from holdfast.workspace.search.search import GrepRequest, Match, Searcher, SearchScope

__all__ = ["Symbol", "SymbolLocation", "SymbolLocator", "document_symbols", "request_locations"]

_MAX_MATCHES_TRIED = 8
_SEARCH_TIMEOUT = 5.0
_DEFINITION_PREFIX = (
    r"(?:\b(?:def|class|func|fn|function|struct|enum|trait|interface|type|const|let|var|val|module|mod|namespace|impl"
    r"|record|object|protocol|macro|sub|proc|union)\s+(?:\([^)]*\)\s*)?|^\s*|\s[*&]?)$"
)


class SymbolLocation(msgspec.Struct, frozen=True):
    """A position in a document of a server."""

    session: ServerSession
    path: str
    position: Position


class Symbol(msgspec.Struct, frozen=True):
    """A symbol of a document, with the names of its enclosing symbols."""

    path: tuple[str, ...]
    kind: int
    detail: str
    start: Position
    """Start of the name."""
    first: int
    last: int
    """First and last line of the whole symbol."""


class SymbolLocator:
    """Resolves symbol names to positions."""

    def __init__(self, manager: LspManager) -> None:
        self._manager = manager
        self._searcher = Searcher(partial(manager.context.spawn, is_real=True), manager.context.git)

    async def sessions(self, path: str, capability: Callable[[ServerCapabilities], object]) -> list[ServerSession]:
        """Open the file in its servers and return those with the capability. Raises
        `ToolError` if there is none.
        """
        servers = await self._manager.servers_for(path)
        text = await self._manager.read(path) if servers else None
        name = display_path(self._manager.root, path)
        if text is None:
            raise ToolError(f"There is no language server for {name}. Use grep and view instead.")
        ready = await asyncio.gather(
            *(server.wait_until_ready(REQUEST_TIMEOUT) for server in servers), return_exceptions=True
        )
        sessions = [session for session in ready if isinstance(session, ServerSession)]
        if not sessions:
            raise next(item for item in ready if isinstance(item, BaseException))
        await self._manager.sync_file_changes()
        for session in sessions:
            session.documents.sync(path, text)
        able = [session for session in sessions if capability(session.capabilities) not in (None, False)]
        if not able:
            names = ", ".join(session.config.name for session in sessions)
            raise ToolError(f"{names} cannot do that for {name}. Use grep and view instead.")
        return able

    async def locate(
        self,
        context: ToolContext,
        tool: str,
        symbol: str,
        path: str,
        capability: Callable[[ServerCapabilities], object],
    ) -> list[SymbolLocation]:
        """Return positions of the symbol, the most likely definition first. Raises `ToolError` if there is none."""
        *qualifiers, name = re.split(r"::|[.#]", symbol.strip().removesuffix("()"))
        if not name:
            raise ToolError("The symbol is empty: give the name of a function, class or variable.")
        place, is_folder = await searched(context, tool, path or ".", {"symbol": symbol})
        where = SearchScope(
            place.root, place.path, search_environment(context), _SEARCH_TIMEOUT, limit=400, is_file=not is_folder
        )
        word = r"\b" if name[0].isalnum() or name[0] == "_" else ""
        found = await self._searcher.grep(where, GrepRequest(f"{word}{re.escape(name)}\\b"))
        matches = [
            msgspec.structs.replace(item, path=posixpath.join(where.folder, item.path)) for item in found.matches
        ]
        matches = [item for item in matches if self._manager.supports(item.path)]
        if not matches:
            raise ToolError(
                f"{name} was not found in {place.name}, in files that a language server supports. Use grep."
            )
        if qualifiers and (exact := await self._find_qualified((*qualifiers, name), matches, capability)):
            return exact
        return await self._locate_matches(_sort_by_likelihood(matches), capability)

    async def _find_qualified(
        self, wanted: tuple[str, ...], matches: Sequence[Match], capability: Callable[[ServerCapabilities], object]
    ) -> list[SymbolLocation]:
        """Find a qualified name among the document symbols of the server."""
        for path in list(dict.fromkeys(match.path for match in matches))[:_MAX_MATCHES_TRIED]:
            for session in await self._capable_sessions(path, capability):
                if session.capabilities.document_symbol_provider in (None, False):
                    continue
                for symbol in await document_symbols(session, path):
                    if symbol.path[-len(wanted) :] == wanted:
                        return [SymbolLocation(session, path, symbol.start)]
        return []

    async def _locate_matches(
        self, matches: Sequence[Match], capability: Callable[[ServerCapabilities], object]
    ) -> list[SymbolLocation]:
        locations: list[SymbolLocation] = []
        first_error: ToolError | None = None
        for match in matches[:_MAX_MATCHES_TRIED]:
            try:
                sessions = await self.sessions(match.path, capability)
            except ToolError as error:
                first_error = first_error or error
                continue
            for session in sessions:
                text = TextLines(session.documents.open[match.path].text, session.capabilities.position_encoding)
                locations.append(SymbolLocation(session, match.path, text.position(match.line - 1, match.column - 1)))
        if not locations and first_error is not None:
            raise first_error
        return locations

    async def _capable_sessions(
        self, path: str, capability: Callable[[ServerCapabilities], object]
    ) -> list[ServerSession]:
        try:
            return await self.sessions(path, capability)
        except ToolError:
            return []

    async def format_locations(self, session: ServerSession, locations: Sequence[Location]) -> list[str]:
        """Format each location with its line, in that server's position encoding. Files outside the workspace are named
        but not read.
        """
        texts: dict[str, TextLines | None] = {}
        lines: list[str] = []
        for location in locations:
            path, start = path_from_uri(location.uri), location.range.start
            if path not in texts:
                text = await self._manager.read(path) if is_within(self._manager.root, path) else None
                texts[path] = TextLines(text, session.capabilities.position_encoding) if text is not None else None
            known = texts[path]
            column = known.column(start) if known is not None else start.character
            place = f"{display_path(self._manager.root, path)}:{start.line + 1}:{column + 1}"
            lines.append(f"{place}: {known.line(start.line).strip()[:300]}" if known is not None else place)
        return lines


def _sort_by_likelihood(matches: Sequence[Match]) -> list[Match]:
    """Sort likely definitions before uses, and comments and imports last."""

    def rank(match: Match) -> int:
        before = match.text[: match.column - 1]
        if re.search(r"^\s*(#|//|\*|--|import\b|from\b)", match.text):
            return 3
        defines = re.search(_DEFINITION_PREFIX, before)
        if defines is None:
            return 2
        return 0 if defines.group().strip() else 1

    return sorted(matches, key=rank)


async def document_symbols(session: ServerSession, path: str) -> list[Symbol]:
    """Return the symbols of a file in document order."""
    params = {"textDocument": {"uri": file_uri(path)}}
    answer = await session.request("textDocument/documentSymbol", params, list[DocumentSymbol])
    return list(_flatten(answer or [], ()))


def _flatten(symbols: Sequence[DocumentSymbol], enclosing: tuple[str, ...]) -> Iterator[Symbol]:
    for item in symbols:
        whole = item.range or (item.location.range if item.location is not None else None)
        name = item.selection_range or whole
        if whole is None or name is None:
            continue
        qualifiers = enclosing or ((item.container_name,) if item.container_name else ())
        path = (*qualifiers, item.name)
        yield Symbol(path, item.kind, item.detail, name.start, whole.start.line, whole.end.line)
        yield from _flatten(item.children or [], path)


async def request_locations(method: str, location: SymbolLocation, **extra: object) -> list[Location]:
    """Request locations. The response may be a location, a list of them, or location links."""
    answer = await location.session.request_at(method, location.path, location.position, object, **extra)
    items = answer if isinstance(answer, list) else [answer] if answer else []
    try:
        return sorted({_to_location(item) for item in items})
    except msgspec.ValidationError as error:
        raise RequestRefused(f"The response of the language server is not valid: {error}.") from None


def _to_location(item: object) -> Location:
    if isinstance(item, dict) and "targetUri" in item:
        link = msgspec.convert(item, LocationLink)
        return Location(link.target_uri, link.target_selection_range)
    return msgspec.convert(item, Location)
