"""The language servers of a workspace, as seen by the rest of the program."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.extensions import LspInfo
from holdfast.domain.tools import Tool
from holdfast.extensions.base import ExtensionContext

__all__ = ["LanguageServers"]


if TYPE_CHECKING:
    from holdfast.extensions.lsp.diagnostics_wait import Times
    from holdfast.extensions.lsp.lsp_manager import LspManager


_log = logging.getLogger("holdfast.server")
_HINT = (
    "Language servers know the code here. When you have changed a file, the result of the tool says what they find"
    " wrong with it: mend what your change has broken before you go on. Use the lsp_ tools to find where something is"
    " defined and used by its meaning, not by its text, and to rename it everywhere."
)
_STATUS_FRESH_FOR = 30.0
"""Seconds for which the result of a search for installed programs is cached."""


class LanguageServers:
    """The language server extension of a workspace. Creates the `LspManager` on first use and delegates to it."""

    def __init__(self, ground: ExtensionContext) -> None:
        self._ground = ground
        self._fleet: LspManager | None = None
        self._tools: Sequence[Tool] = ()
        self.after_a_change: Times | None = None
        """Overrides the time limits after a change."""
        self._is_closed = False
        self._helps: tuple[float, bool] | None = None

    @property
    def fleet(self) -> "LspManager":
        """The language servers, created on first access."""
        if self._fleet is None:
            # Loaded with the first file that has a language server.
            from holdfast.extensions.lsp.lsp_manager import LspManager  # noqa: PLC0415

            self._fleet = LspManager(self._ground)
        return self._fleet

    def infos(self) -> dict[str, LspInfo]:
        """Return the state of the servers that are named in the settings or that a file has required."""
        if self._fleet is None and not self._ground.configuration.settings.lsp:
            return {}
        return self.fleet.infos()

    def facts(self) -> list[str]:
        """Return one line with the state of each server, for models."""
        return [f"{name}: {info.state.name.lower()}" for name, info in self.infos().items()]

    def stop(self) -> None:
        """Stop all servers until a file is touched again."""
        if self._fleet is not None:
            self._fleet.stop()

    def start(self) -> None:
        """Do nothing: a server starts with the first file of its language."""

    def refresh(self) -> None:
        """Apply the current settings."""
        self._helps = None
        if self._fleet is not None:
            self._fleet.refresh()

    def tools(self) -> Sequence[Tool]:
        """Return the LSP tools if a server is available or could be started for files of this workspace."""
        if not self._may_help():
            return ()
        if not self._tools:
            from holdfast.extensions.lsp.lsp_tools import tools_of  # noqa: PLC0415 - only who needs them

            self._tools = tools_of(self.fleet)
        return self._tools

    def notes(self) -> tuple[str, ...]:
        """Return the hint for the system prompt."""
        return (_HINT,) if self._may_help() else ()

    def _may_help(self) -> bool:
        """Return whether a server is available, or could be started for the files at the top of the workspace."""
        if self._fleet is not None and any(not item.standing.is_forbidden for item in self._fleet.servers):
            return True
        now = asyncio.get_running_loop().time()
        if self._helps is None or now - self._helps[0] > _STATUS_FRESH_FOR:
            from holdfast.extensions.lsp.server_config import may_help, surveyed  # noqa: PLC0415 - see above

            site, plans = surveyed(self._ground)
            self._helps = (now, may_help(plans, site))
        return self._helps[1]

    async def on_view(self, path: str) -> str:
        """Open a file that is being read, and return its known diagnostics."""
        from holdfast.extensions.lsp.diagnostics_wait import AT_A_GLANCE  # noqa: PLC0415 - see above

        return await self._remark(path, AT_A_GLANCE)

    async def on_change(self, path: str) -> str:
        """Return the diagnostics of a file that was just changed, and of other files affected by the change."""
        from holdfast.extensions.lsp.diagnostics_wait import AFTER_A_CHANGE  # noqa: PLC0415 - see above

        return await self._remark(path, self.after_a_change or AFTER_A_CHANGE)

    async def _remark(self, path: str, times: "Times") -> str:
        """Return the diagnostics. Errors are logged and not raised, because the read or the change itself has
        succeeded.
        """
        if self._is_closed:
            return ""
        try:
            answered = await self.fleet.ask_about(path, times)
            if not times.start:
                # Do not mention pending servers when the file was only read.
                answered = {server: True for server in answered}
            return self.fleet.report(path, answered, is_brief=True) if answered else ""
        except Exception:
            _log.exception("language servers could not be asked")
            return ""

    async def close(self) -> None:
        """Stop all servers."""
        self._is_closed = True
        if self._fleet is not None:
            await self._fleet.close()
