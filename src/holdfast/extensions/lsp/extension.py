"""The language servers of a workspace, as seen by the rest of the program.

A workspace without language servers does not pay for them: the other modules are loaded with the first file that has a
server.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.extensions import LspInfo
from holdfast.domain.tools import Tool
from holdfast.extensions.base import ExtensionContext

__all__ = ["LanguageServers"]


if TYPE_CHECKING:
    from holdfast.extensions.lsp.diagnostics_wait import WaitLimits
    from holdfast.extensions.lsp.lsp_manager import LspManager


_log = logging.getLogger("holdfast.server")
_SYSTEM_PROMPT_NOTE = (
    "Language servers know the code here. When you have changed a file, the result of the tool lists the problems they"
    " find in it: fix what your change has broken before you continue. Use the lsp_ tools to find where something is"
    " defined and used by its meaning, not by its text, and to rename it everywhere."
)
_AVAILABILITY_TTL = 30.0
"""Seconds for which the result of a search for installed programs is cached."""


class LanguageServers:
    """The language server extension of a workspace. Creates the `LspManager` on first use and delegates to it."""

    def __init__(self, context: ExtensionContext) -> None:
        self._context = context
        self._manager: LspManager | None = None
        self._tools: Sequence[Tool] = ()
        self.change_limits: WaitLimits | None = None
        """Overrides the time limits after a change."""
        self._is_closed = False
        self._availability: tuple[float, bool] | None = None

    @property
    def manager(self) -> "LspManager":
        """The language servers, created on first access."""
        if self._manager is None:
            # Loaded with the first file that has a language server.
            from holdfast.extensions.lsp.lsp_manager import LspManager  # noqa: PLC0415

            self._manager = LspManager(self._context)
        return self._manager

    def infos(self) -> dict[str, LspInfo]:
        """Return the state of the servers that are named in the settings or that a file has required."""
        if self._manager is None and not self._context.configuration.settings.lsp:
            return {}
        return self.manager.infos()

    def status_lines(self) -> list[str]:
        """Return one line with the state of each server, for models."""
        return [f"{name}: {info.state.name.lower()}" for name, info in self.infos().items()]

    def stop(self) -> None:
        """Stop all servers until a file is touched again."""
        if self._manager is not None:
            self._manager.stop()

    def start(self) -> None:
        """Do nothing: a server starts with the first file of its language."""

    def refresh(self) -> None:
        """Apply the current settings."""
        self._availability = None
        if self._manager is not None:
            self._manager.refresh()

    def tools(self) -> Sequence[Tool]:
        """Return the LSP tools if a server is available or could be started for files of this workspace."""
        if not self._is_available():
            return ()
        if not self._tools:
            from holdfast.extensions.lsp.lsp_tools import create_lsp_tools  # noqa: PLC0415 - loaded on first use

            self._tools = create_lsp_tools(self.manager)
        return self._tools

    def notes(self) -> tuple[str, ...]:
        """Return the hint for the system prompt."""
        return (_SYSTEM_PROMPT_NOTE,) if self._is_available() else ()

    def _is_available(self) -> bool:
        """Return whether a server is available, or could be started for the files at the top of the workspace."""
        if self._manager is not None and any(not item.status.is_forbidden for item in self._manager.servers):
            return True
        now = asyncio.get_running_loop().time()
        if self._availability is None or now - self._availability[0] > _AVAILABILITY_TTL:
            from holdfast.extensions.lsp.server_config import is_any_available, read_project  # noqa: PLC0415 - see above

            project, configs = read_project(self._context)
            self._availability = (now, is_any_available(configs, project))
        return self._availability[1]

    async def on_view(self, path: str) -> str:
        """Open a file that is being read, and return its known diagnostics."""
        from holdfast.extensions.lsp.diagnostics_wait import ON_VIEW  # noqa: PLC0415 - see above

        return await self._diagnostics_text(path, ON_VIEW)

    async def on_change(self, path: str) -> str:
        """Return the diagnostics of a file that was just changed, and of other files affected by the change."""
        from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE  # noqa: PLC0415 - see above

        return await self._diagnostics_text(path, self.change_limits or AFTER_CHANGE)

    async def _diagnostics_text(self, path: str, limits: "WaitLimits") -> str:
        """Return the diagnostics. Errors are logged and not raised, because the read or the change itself has
        succeeded.
        """
        if self._is_closed:
            return ""
        try:
            responses = await self.manager.request_diagnostics(path, limits)
            if not limits.start:
                # Do not mention pending servers when the file was only read.
                responses = {server: True for server in responses}
            return self.manager.format_report(path, responses, is_brief=True) if responses else ""
        except Exception:
            _log.exception("diagnostics could not be requested")
            return ""

    async def close(self) -> None:
        """Stop all servers."""
        self._is_closed = True
        if self._manager is not None:
            await self._manager.close()
