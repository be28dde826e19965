"""The language servers of a workspace, as the rest of it sees them.

Nothing is loaded and nothing is looked at before a file is touched, a model is asked, or somebody wants to know.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.languages import LspInfo
from holdfast.domain.tools import Tool
from holdfast.extensions.base import Ground

if TYPE_CHECKING:
    from holdfast.extensions.lsp.fleet import Fleet
    from holdfast.extensions.lsp.settling import Times

__all__ = ["LanguageServers"]

_log = logging.getLogger("holdfast.server")
_HINT = (
    "Language servers know the code here. When you have changed a file, the result of the tool says what they find"
    " wrong with it: mend what your change has broken before you go on. Use the lsp_ tools to find where something is"
    " defined and used by its meaning, not by its text, and to rename it everywhere."
)
_KNOWN_FOR = 30.0
"""How long it is believed that a program is there, or is not."""


class LanguageServers:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._fleet: Fleet | None = None
        self._tools: Sequence[Tool] = ()
        self.after_a_change: Times | None = None
        """How long a change waits, if not as long as usual."""
        self._is_closed = False
        self._helps: tuple[float, bool] | None = None

    @property
    def fleet(self) -> "Fleet":
        if self._fleet is None:
            from holdfast.extensions.lsp.fleet import Fleet  # noqa: PLC0415 - the first answer does not wait for it

            self._fleet = Fleet(self._ground)
        return self._fleet

    def infos(self) -> dict[str, LspInfo]:
        """Those that are named in the settings, and those that a file has called for."""
        if self._fleet is None and not self._ground.configuration.settings.lsp:
            return {}
        return self.fleet.infos()

    def facts(self) -> list[str]:
        """How they stand, for a model that asks."""
        return [f"{name}: {info.state.name.lower()}" for name, info in self.infos().items()]

    def stop(self) -> None:
        """All rest, until a file is touched again."""
        if self._fleet is not None:
            self._fleet.stop()

    def start(self) -> None:
        """They are started by the first file of their kind."""

    def refresh(self) -> None:
        self._helps = None
        if self._fleet is not None:
            self._fleet.refresh()

    def tools(self) -> Sequence[Tool]:
        """Those that ask language servers, where there may be one to ask."""
        if not self._may_help():
            return ()
        if not self._tools:
            from holdfast.extensions.lsp.tools import tools_of  # noqa: PLC0415 - only who needs them

            self._tools = tools_of(self.fleet)
        return self._tools

    def notes(self) -> tuple[str, ...]:
        """What a model is told about them before a conversation."""
        return (_HINT,) if self._may_help() else ()

    def _may_help(self) -> bool:
        """Whether there is a server to ask, or would be one for what lies in the workspace."""
        if self._fleet is not None and any(not item.standing.is_forbidden for item in self._fleet.servers):
            return True
        now = asyncio.get_running_loop().time()
        if self._helps is None or now - self._helps[0] > _KNOWN_FOR:
            from holdfast.extensions.lsp.matching import may_help, surveyed  # noqa: PLC0415 - see above

            site, plans = surveyed(self._ground)
            self._helps = (now, may_help(plans, site))
        return self._helps[1]

    async def on_view(self, path: str) -> str:
        """What is known to be wrong with a file that is being read. It is opened, for what comes next."""
        from holdfast.extensions.lsp.settling import AT_A_GLANCE  # noqa: PLC0415 - see above

        return await self._remark(path, AT_A_GLANCE)

    async def on_change(self, path: str) -> str:
        """What is wrong with a file that was just changed, and with others because of it."""
        from holdfast.extensions.lsp.settling import AFTER_A_CHANGE  # noqa: PLC0415 - see above

        return await self._remark(path, self.after_a_change or AFTER_A_CHANGE)

    async def _remark(self, path: str, times: "Times") -> str:
        """Whatever goes wrong here, the file was read or changed: that is what is told."""
        if self._is_closed:
            return ""
        try:
            answered = await self.fleet.ask_about(path, times)
            if not times.start:
                # Who only looks is not told that there may be more.
                answered = {server: True for server in answered}
            return self.fleet.report(path, answered, is_brief=True) if answered else ""
        except Exception:
            _log.exception("language servers could not be asked")
            return ""

    async def close(self) -> None:
        self._is_closed = True
        if self._fleet is not None:
            await self._fleet.close()
