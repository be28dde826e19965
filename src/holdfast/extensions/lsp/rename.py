"""Tool that renames a symbol in all files, or in none."""

import asyncio
import os
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.extensions.lsp.fleet import Fleet
from holdfast.extensions.lsp.locating import Locator, Spot
from holdfast.extensions.lsp.peer import Refused
from holdfast.extensions.lsp.positions import applied
from holdfast.extensions.lsp.settling import AFTER_A_CHANGE
from holdfast.extensions.lsp.shapes import TextEdit, WorkspaceEdit, path_of
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import Planned, as_it_is, planned, put
from holdfast.workspace.paths import is_within, shown

__all__ = ["Rename", "RenameArguments"]

_MOST_FILES = 500


class RenameArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: Annotated[str, Meta(min_length=1, description='The name as it is now, such as "parse" or "Parser.parse".')]
    new_name: Annotated[str, Meta(min_length=1, description="The name it is to have.")]
    path: Annotated[str, Meta(description="The file or directory to look for it; the workspace if left out.")] = "."


class Rename(BaseTool[RenameArguments]):
    """Renames a symbol with the language server."""

    name = "lsp_rename"
    arguments = RenameArguments

    def __init__(self, fleet: Fleet, locator: Locator) -> None:
        super().__init__()
        self._fleet = fleet
        self._locator = locator

    async def act(self, context: ToolContext, arguments: RenameArguments) -> ToolOutcome:
        """Compute all edits, request permission for each file, then write them."""
        symbol = arguments.symbol
        spots = await self._locator.spots(context, self.name, symbol, arguments.path, lambda can: can.rename_provider)
        spot, edits = await self._edits(spots, arguments)
        # Permission for every file is requested before the first one is written.
        plans = [await self._planned(context, spot, path, changes) for path, changes in sorted(edits.items())]
        for part, (plan, is_known) in enumerate(plans, 1):
            await put(context, plan, part=part, is_known=is_known)
        lines = [f"Renamed {symbol} to {arguments.new_name} in {len(plans)} file{'s' * (len(plans) > 1)}:"]
        lines += [f"{shown(self._fleet.root, path)}: {len(changes)}" for path, changes in sorted(edits.items())]
        told = metadata(
            files=[plan.now.place.path for plan, _ in plans],
            additions=sum(plan.difference.additions for plan, _ in plans),
            removals=sum(plan.difference.removals for plan, _ in plans),
        )
        answered = await self._fleet.ask_about(spot.path, AFTER_A_CHANGE)
        remark = self._fleet.report(spot.path, answered, is_brief=True)
        return ToolOutcome("\n".join(filter(None, [*lines, remark])), told)

    async def _edits(self, spots: list[Spot], arguments: RenameArguments) -> tuple[Spot, dict[str, list[TextEdit]]]:
        """Return the edits of the first server that can rename the symbol."""
        trouble: ToolError | None = None
        for spot in spots:
            try:
                edit = await spot.talk.ask_at(
                    "textDocument/rename",
                    spot.path,
                    spot.position,
                    WorkspaceEdit,
                    newName=arguments.new_name,
                )
            except Refused as error:
                trouble = error
                continue
            if edit is not None and (found := self._checked(edit)):
                return spot, found
        raise trouble or ToolError(f"The language server cannot rename {arguments.symbol}. Use edit.")

    def _checked(self, edit: WorkspaceEdit) -> dict[str, list[TextEdit]]:
        if edit.moves_files:
            raise ToolError("The language server wants to move files too, which is not done. Use bash and edit.")
        found = {path_of(uri): edits for uri, edits in edit.by_uri().items() if edits}
        outside = [path for path in found if not is_within(self._fleet.root, os.path.realpath(path))]
        if outside:
            raise ToolError(f"It is also used outside of the workspace ({outside[0] or 'not a file'}): not renamed.")
        if len(found) > _MOST_FILES:
            raise ToolError(f"It is used in {len(found)} files; at most {_MOST_FILES} are changed at once.")
        return found

    async def _planned(
        self, context: ToolContext, spot: Spot, path: str, edits: list[TextEdit]
    ) -> tuple[Planned, bool]:
        """Compute the new text of one file and request permission. Raises `ToolError` if the file differs from the
        server's version.
        """
        now, is_known = await as_it_is(context, path)
        document = spot.talk.documents.open.get(path)
        if now.text is None or (document is not None and document.text != now.text):
            raise ToolError(f"{now.place.name} has changed meanwhile; nothing was renamed. Try again.")
        encoding = spot.talk.capabilities.position_encoding
        try:
            text = await asyncio.to_thread(applied, now.text, edits, encoding)
        except ValueError:
            raise ToolError(f"The edits of {now.place.name} make no sense; nothing was renamed. Use edit.") from None
        return await planned(context, self.name, now, text), bool(is_known)
