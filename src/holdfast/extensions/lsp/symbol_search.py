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
from holdfast.extensions.lsp.lsp_types import Capabilities, DocumentSymbol, Link, Location, Position, path_of, uri_of
from holdfast.extensions.lsp.positions import Text
from holdfast.extensions.lsp.server_session import ANSWER, ServerSession
from holdfast.tools.grep import search_environment, searched
from holdfast.workspace.files.file_paths import display_path, is_within
from holdfast.workspace.search.search import GrepRequest, Match, Search, Searcher

__all__ = ["Symbol", "SymbolLocation", "SymbolLocator", "places", "symbols_of"]

_MOST_TRIED = 8
_SEARCH = 5.0
_DEFINING = (
    r"(?:\b(?:def|class|func|fn|function|struct|enum|trait|interface|type|const|let|var|val|module|mod|namespace|impl"
    r"|record|object|protocol|macro|sub|proc|union)\s+(?:\([^)]*\)\s*)?|^\s*|\s[*&]?)$"
)


class SymbolLocation(msgspec.Struct, frozen=True):
    """A position in a document of a server."""

    talk: ServerSession
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

    def __init__(self, fleet: LspManager) -> None:
        self._fleet = fleet
        self._searcher = Searcher(partial(fleet.ground.spawn, is_real=True), fleet.ground.git)

    async def talks(self, path: str, can: Callable[[Capabilities], object]) -> list[ServerSession]:
        """Open the file in its servers and return those with the capability `can`. Raises
        `ToolError` if there is none.
        """
        servers = await self._fleet.servers_for(path)
        text = await self._fleet.read(path) if servers else None
        name = display_path(self._fleet.root, path)
        if text is None:
            raise ToolError(f"There is no language server for {name}. Use grep and view instead.")
        ready = await asyncio.gather(*(server.until_ready(ANSWER) for server in servers), return_exceptions=True)
        talks = [talk for talk in ready if isinstance(talk, ServerSession)]
        if not talks:
            raise next(item for item in ready if isinstance(item, BaseException))
        await self._fleet.catch_up()
        for talk in talks:
            talk.documents.sync(path, text)
        able = [talk for talk in talks if can(talk.capabilities) not in (None, False)]
        if not able:
            names = ", ".join(talk.plan.name for talk in talks)
            raise ToolError(f"{names} cannot do that for {name}. Use grep and view instead.")
        return able

    async def spots(
        self, context: ToolContext, tool: str, symbol: str, given: str, can: Callable[[Capabilities], object]
    ) -> list[SymbolLocation]:
        """Return positions of the symbol, the most likely definition first. Raises `ToolError` if there is none."""
        *around, name = re.split(r"::|[.#]", symbol.strip().removesuffix("()"))
        if not name:
            raise ToolError("The symbol is empty: give the name of a function, class or variable.")
        place, is_folder = await searched(context, tool, given or ".", {"symbol": symbol})
        where = Search(place.root, place.path, search_environment(context), _SEARCH, most=400, is_file=not is_folder)
        word = r"\b" if name[0].isalnum() or name[0] == "_" else ""
        found = await self._searcher.grep(where, GrepRequest(f"{word}{re.escape(name)}\\b"))
        matches = [
            msgspec.structs.replace(item, path=posixpath.join(where.folder, item.path)) for item in found.matches
        ]
        matches = [item for item in matches if self._fleet.knows(item.path)]
        if not matches:
            raise ToolError(f"{name} was not found in {place.name}, in files that a language server is for. Use grep.")
        if around and (exact := await self._named((*around, name), matches, can)):
            return exact
        return await self._asked(_likeliest(matches), can)

    async def _named(
        self, wanted: tuple[str, ...], matches: Sequence[Match], can: Callable[[Capabilities], object]
    ) -> list[SymbolLocation]:
        """Find a qualified name among the document symbols of the server."""
        for path in list(dict.fromkeys(match.path for match in matches))[:_MOST_TRIED]:
            for talk in await self._able(path, can):
                if talk.capabilities.document_symbol_provider in (None, False):
                    continue
                for symbol in await symbols_of(talk, path):
                    if symbol.path[-len(wanted) :] == wanted:
                        return [SymbolLocation(talk, path, symbol.start)]
        return []

    async def _asked(self, matches: Sequence[Match], can: Callable[[Capabilities], object]) -> list[SymbolLocation]:
        spots: list[SymbolLocation] = []
        trouble: ToolError | None = None
        for match in matches[:_MOST_TRIED]:
            try:
                talks = await self.talks(match.path, can)
            except ToolError as error:
                trouble = trouble or error
                continue
            for talk in talks:
                text = Text(talk.documents.open[match.path].text, talk.capabilities.position_encoding)
                spots.append(SymbolLocation(talk, match.path, text.position(match.line - 1, match.column - 1)))
        if not spots and trouble is not None:
            raise trouble
        return spots

    async def _able(self, path: str, can: Callable[[Capabilities], object]) -> list[ServerSession]:
        try:
            return await self.talks(path, can)
        except ToolError:
            return []

    async def told(self, talk: ServerSession, locations: Sequence[Location]) -> list[str]:
        """Format each location with its line, in that server's position encoding. Files outside the workspace are named
        but not read.
        """
        texts: dict[str, Text | None] = {}
        lines: list[str] = []
        for location in locations:
            path, start = path_of(location.uri), location.range.start
            if path not in texts:
                text = await self._fleet.read(path) if is_within(self._fleet.root, path) else None
                texts[path] = Text(text, talk.capabilities.position_encoding) if text is not None else None
            known = texts[path]
            column = known.column(start) if known is not None else start.character
            place = f"{display_path(self._fleet.root, path)}:{start.line + 1}:{column + 1}"
            lines.append(f"{place}: {known.line(start.line).strip()[:300]}" if known is not None else place)
        return lines


def _likeliest(matches: Sequence[Match]) -> list[Match]:
    """Sort likely definitions before uses, and comments and imports last."""

    def rank(match: Match) -> int:
        before = match.text[: match.column - 1]
        if re.search(r"^\s*(#|//|\*|--|import\b|from\b)", match.text):
            return 3
        defines = re.search(_DEFINING, before)
        if defines is None:
            return 2
        return 0 if defines.group().strip() else 1

    return sorted(matches, key=rank)


async def symbols_of(talk: ServerSession, path: str) -> list[Symbol]:
    """Return the symbols of a file in document order."""
    params = {"textDocument": {"uri": uri_of(path)}}
    answer = await talk.ask("textDocument/documentSymbol", params, list[DocumentSymbol])
    return list(_flat(answer or [], ()))


def _flat(symbols: Sequence[DocumentSymbol], above: tuple[str, ...]) -> Iterator[Symbol]:
    for item in symbols:
        whole = item.range or (item.location.range if item.location is not None else None)
        name = item.selection_range or whole
        if whole is None or name is None:
            continue
        around = above or ((item.container_name,) if item.container_name else ())
        path = (*around, item.name)
        yield Symbol(path, item.kind, item.detail, name.start, whole.start.line, whole.end.line)
        yield from _flat(item.children or [], path)


async def places(method: str, spot: SymbolLocation, **more: object) -> list[Location]:
    """Request locations. The response may be a location, a list of them, or location links."""
    answer = await spot.talk.ask_at(method, spot.path, spot.position, object, **more)
    items = answer if isinstance(answer, list) else [answer] if answer else []
    try:
        return sorted({_place(item) for item in items})
    except msgspec.ValidationError as error:
        raise RequestRefused(f"The language server's answer makes no sense: {error}.") from None


def _place(item: object) -> Location:
    if isinstance(item, dict) and "targetUri" in item:
        link = msgspec.convert(item, Link)
        return Location(link.target_uri, link.target_selection_range)
    return msgspec.convert(item, Location)
