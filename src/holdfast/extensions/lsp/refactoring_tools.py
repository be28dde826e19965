"""Tools that change code by its structure: rename a symbol in all files, or replace a function, class or method."""

import asyncio
import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE
from holdfast.extensions.lsp.lsp_connection import RequestRefused
from holdfast.extensions.lsp.lsp_manager import LspManager
from holdfast.extensions.lsp.lsp_types import TextEdit, WorkspaceEdit, path_from_uri
from holdfast.extensions.lsp.positions import apply_edits
from holdfast.extensions.lsp.symbol_search import Symbol, SymbolLocation, SymbolLocator, document_symbols
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import PlannedChange, change_file, current_file, make_change, plan_change, read_current
from holdfast.workspace.files.path_strings import display_path, is_within
from holdfast.workspace.files.text_encoding import line_ending, with_line_ending

__all__ = ["Rename", "RenameArguments", "ReplaceSymbol", "ReplaceSymbolArguments"]


_MAX_FILES = 500


class RenameArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `lsp_rename`."""

    symbol: Annotated[str, Meta(min_length=1, description='The current name, such as "parse" or "Parser.parse".')]
    new_name: Annotated[str, Meta(min_length=1, description="The new name.")]
    path: Annotated[str, Meta(description="The file or directory to search; default: the workspace.")] = "."


class Rename(BaseTool[RenameArguments]):
    """Renames a symbol with the language server."""

    name = "lsp_rename"
    arguments = RenameArguments

    def __init__(self, manager: LspManager, locator: SymbolLocator) -> None:
        super().__init__()
        self._manager = manager
        self._locator = locator

    async def act(self, context: ToolContext, arguments: RenameArguments) -> ToolOutcome:
        """Compute all edits, request permission for each file, then write them."""
        symbol = arguments.symbol
        locations = await self._locator.locate(
            context, self.name, symbol, arguments.path, lambda capability: capability.rename_provider
        )
        location, edits = await self._request_edits(locations, arguments)
        # Permission for every file is requested before the first one is written.
        plans = [await self._plan_file(context, location, path, changes) for path, changes in sorted(edits.items())]
        for part, (plan, is_known) in enumerate(plans, 1):
            await make_change(context, plan, part=part, is_known=is_known)
        lines = [f"Renamed {symbol} to {arguments.new_name} in {len(plans)} file{'s' * (len(plans) > 1)}:"]
        lines += [
            f"{display_path(self._manager.root, path)}: {len(changes)}" for path, changes in sorted(edits.items())
        ]
        details = metadata(
            files=[plan.now.location.path for plan, _ in plans],
            additions=sum(plan.difference.additions for plan, _ in plans),
            removals=sum(plan.difference.removals for plan, _ in plans),
        )
        responses = await self._manager.request_diagnostics(location.path, AFTER_CHANGE)
        diagnostics = self._manager.format_report(location.path, responses, is_brief=True)
        return ToolOutcome("\n".join(filter(None, [*lines, diagnostics])), details)

    async def _request_edits(
        self, locations: list[SymbolLocation], arguments: RenameArguments
    ) -> tuple[SymbolLocation, dict[str, list[TextEdit]]]:
        """Return the edits of the first server that can rename the symbol."""
        last_error: ToolError | None = None
        for location in locations:
            try:
                edit = await location.session.request_at(
                    "textDocument/rename",
                    location.path,
                    location.position,
                    WorkspaceEdit,
                    newName=arguments.new_name,
                )
            except RequestRefused as error:
                last_error = error
                continue
            if edit is not None and (found := self._validate(edit)):
                return location, found
        raise last_error or ToolError(f"The language server cannot rename {arguments.symbol}. Use edit.")

    def _validate(self, edit: WorkspaceEdit) -> dict[str, list[TextEdit]]:
        if edit.moves_files:
            raise ToolError("The language server would also move files, which is not supported. Use bash and edit.")
        found = {path_from_uri(uri): edits for uri, edits in edit.by_uri().items() if edits}
        outside = [path for path in found if not is_within(self._manager.root, os.path.realpath(path))]
        if outside:
            raise ToolError(f"It is also used outside of the workspace ({outside[0] or 'not a file'}): not renamed.")
        if len(found) > _MAX_FILES:
            raise ToolError(f"It is used in {len(found)} files; at most {_MAX_FILES} are changed at once.")
        return found

    async def _plan_file(
        self, context: ToolContext, location: SymbolLocation, path: str, edits: list[TextEdit]
    ) -> tuple[PlannedChange, bool]:
        """Compute the new text of one file and request permission. Raises `ToolError` if the file differs from the
        server's version.
        """
        now, is_known = await read_current(context, path)
        document = location.session.document(path)
        if now.text is None or (document is not None and document.text != now.text):
            raise ToolError(f"{now.location.name} has changed meanwhile; nothing was renamed. Try again.")
        encoding = location.session.capabilities.position_encoding
        try:
            text = await asyncio.to_thread(apply_edits, now.text, edits, encoding)
        except ValueError:
            raise ToolError(f"The edits of {now.location.name} are not valid; nothing was renamed. Use edit.") from None
        return await plan_change(context, self.name, now, text), bool(is_known)


Action = Literal["replace", "add_before", "add_after", "delete"]


class ReplaceSymbolArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `lsp_replace_symbol`."""

    symbol: Annotated[str, Meta(min_length=1, description='The name, such as "parse" or "Parser.parse".')]
    file_path: Annotated[str, Meta(description="The file in which it is defined.")]
    replacement: Annotated[str, Meta(description="Whole lines, indented as in the file.")] = ""
    action: Annotated[Action, Meta(description="The action; default: replace.")] = "replace"


class ReplaceSymbol(BaseTool[ReplaceSymbolArguments]):
    """Changes a symbol as a whole."""

    name = "lsp_replace_symbol"
    arguments = ReplaceSymbolArguments

    def __init__(self, manager: LspManager, locator: SymbolLocator) -> None:
        super().__init__()
        self._manager = manager
        self._locator = locator

    async def act(self, context: ToolContext, arguments: ReplaceSymbolArguments) -> ToolOutcome:
        """Find the symbol, request permission, and write the file."""
        now = await current_file(context, arguments.file_path)
        if now.text is None:
            raise ToolError(f"There is no file {now.location.name}.")
        if not arguments.replacement and arguments.action != "delete":
            raise ToolError("The replacement is empty: give its lines, or use the action delete.")
        path = now.location.path
        session, *_ = await self._locator.sessions(path, lambda capability: capability.document_symbol_provider)
        symbol = _find_unique(await document_symbols(session, path), arguments.symbol, now.location.name)
        if session.documents.open[path].text != now.text:
            raise ToolError(f"{now.location.name} has changed meanwhile. Use view again.")
        text = await asyncio.to_thread(_apply, now.text, symbol, arguments)
        difference, before, after = await change_file(context, self.name, now, text)
        details = metadata(
            file_path=path,
            old_content=before,
            new_content=after,
            action=arguments.action,
            additions=difference.additions,
            removals=difference.removals,
        )
        verbs = {"replace": "Replaced", "delete": "Removed", "add_before": "Added before", "add_after": "Added after"}
        counts = f"({difference.counts})"
        summary = f"{verbs[arguments.action]} {'.'.join(symbol.path)} in {now.location.name} {counts}."
        responses = await self._manager.request_diagnostics(path, AFTER_CHANGE)
        diagnostics = self._manager.format_report(path, responses, is_brief=True)
        return ToolOutcome("\n".join(filter(None, [summary, diagnostics])), details)


def _find_unique(symbols: list[Symbol], wanted: str, file: str) -> Symbol:
    names = tuple(wanted.replace("::", ".").replace("#", ".").removesuffix("()").split("."))
    found = [symbol for symbol in symbols if symbol.path[-len(names) :] == names]
    if not found:
        raise ToolError(f"{file} has no symbol {wanted}. lsp_symbols lists those it has.")
    if len(found) > 1:
        places = ", ".join(f"{'.'.join(symbol.path)} (line {symbol.first + 1})" for symbol in found[:10])
        raise ToolError(f"{wanted} is ambiguous: {places}. Qualify it with its enclosing symbol, or use edit.")
    return found[0]


def _apply(text: str, symbol: Symbol, arguments: ReplaceSymbolArguments) -> str:
    """Return the changed text. Whole lines are replaced, including any other code on them."""
    end = line_ending(text)
    lines = text.splitlines(keepends=True)
    new = with_line_ending(arguments.replacement, end)
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
