"""Tool that replaces, extends or deletes a function, class or method by its name."""

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.extensions.lsp.fleet import Fleet
from holdfast.extensions.lsp.locating import Locator, Symbol, symbols_of
from holdfast.extensions.lsp.settling import AFTER_A_CHANGE
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import change, current
from holdfast.workspace.text import line_end, with_line_end

__all__ = ["ReplaceSymbol", "ReplaceSymbolArguments"]

Action = Literal["replace", "add_before", "add_after", "delete"]


class ReplaceSymbolArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description='The name, such as "parse" or "Parser.parse".')]
    file_path: Annotated[str, Meta(description="The file in which it is defined.")]
    replacement: Annotated[str, Meta(description="Whole lines, indented as in the file.")] = ""
    action: Annotated[Action, Meta(description="What to do; replace if left out.")] = "replace"


class ReplaceSymbol(BaseTool[ReplaceSymbolArguments]):
    """Changes a symbol as a whole."""

    name = "lsp_replace_symbol"
    arguments = ReplaceSymbolArguments

    def __init__(self, fleet: Fleet, locator: Locator) -> None:
        super().__init__()
        self._fleet = fleet
        self._locator = locator

    async def act(self, context: ToolContext, arguments: ReplaceSymbolArguments) -> ToolOutcome:
        """Find the symbol, request permission, and write the file."""
        now = await current(context, arguments.file_path)
        if now.text is None:
            raise ToolError(f"There is no file {now.place.name}.")
        if not arguments.replacement and arguments.action != "delete":
            raise ToolError("The replacement is empty: give its lines, or use the action delete.")
        path = now.place.path
        talk, *_ = await self._locator.talks(path, lambda can: can.document_symbol_provider)
        symbol = _only(await symbols_of(talk, path), arguments.symbol, now.place.name)
        if talk.documents.open[path].text != now.text:
            raise ToolError(f"{now.place.name} has changed meanwhile. Use view again.")
        text = await asyncio.to_thread(_changed, now.text, symbol, arguments)
        difference, before, after = await change(context, self.name, now, text)
        told = metadata(
            file_path=path,
            old_content=before,
            new_content=after,
            action=arguments.action,
            additions=difference.additions,
            removals=difference.removals,
        )
        words = {"replace": "Replaced", "delete": "Removed", "add_before": "Added before", "add_after": "Added after"}
        counts = f"({difference.counts})"
        done = f"{words[arguments.action]} {'.'.join(symbol.path)} in {now.place.name} {counts}."
        answered = await self._fleet.ask_about(path, AFTER_A_CHANGE)
        remark = self._fleet.report(path, answered, is_brief=True)
        return ToolOutcome("\n".join(filter(None, [done, remark])), told)


def _only(symbols: list[Symbol], wanted: str, file: str) -> Symbol:
    names = tuple(wanted.replace("::", ".").replace("#", ".").removesuffix("()").split("."))
    found = [symbol for symbol in symbols if symbol.path[-len(names) :] == names]
    if not found:
        raise ToolError(f"{file} has no symbol {wanted}. lsp_symbols lists those it has.")
    if len(found) > 1:
        places = ", ".join(f"{'.'.join(symbol.path)} (line {symbol.first + 1})" for symbol in found[:10])
        raise ToolError(
            f"{wanted} is not the only one of that name: {places}. Name it with what it stands in, or use edit."
        )
    return found[0]


def _changed(text: str, symbol: Symbol, arguments: ReplaceSymbolArguments) -> str:
    """Return the changed text. Whole lines are replaced, including any other code on them."""
    end = line_end(text)
    lines = text.splitlines(keepends=True)
    new = with_line_end(arguments.replacement, end)
    if new and not new.endswith("\n"):
        new += end
    before, own, after = lines[: symbol.first], lines[symbol.first : symbol.last + 1], lines[symbol.last + 1 :]
    if own and not own[-1].endswith("\n"):
        own[-1] += end
    kept: dict[Action, list[str]] = {
        "replace": [new],
        "delete": [],
        "add_before": [new, *own],
        "add_after": [*own, new],
    }
    return "".join([*before, *kept[arguments.action], *after])
