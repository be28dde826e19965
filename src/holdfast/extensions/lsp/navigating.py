"""Tools that find definitions, references and calls with language servers."""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.extensions.lsp.locating import Locator, Spot, places
from holdfast.extensions.lsp.shapes import CallItem, Capabilities, Location
from holdfast.tools.base import BaseTool, metadata

__all__ = ["CallHierarchy", "Definition", "References"]

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

    def __init__(self, locator: Locator) -> None:
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

    def __init__(self, locator: Locator) -> None:
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

    async def _calls(self, spot: Spot, direction: str) -> list[CallItem] | None:
        prepare = "textDocument/prepareCallHierarchy"
        items = await spot.talk.ask_at(prepare, spot.path, spot.position, list[dict[str, object]])
        if not items:
            return None
        answer = await spot.talk.ask(f"callHierarchy/{direction}Calls", {"item": items[0]}, list[_Call])
        found = [call.source or call.target for call in answer or []]
        return [item for item in found if item is not None]
