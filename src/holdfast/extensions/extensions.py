"""All extensions of one workspace."""

import asyncio
import logging
from collections.abc import Sequence

from holdfast.domain.tools import Tool
from holdfast.extensions.base import Extension, Ground

__all__ = ["Extensions"]

_log = logging.getLogger("holdfast.server")


class Extensions:
    """They begin together, are asked together and go together; one that fails takes no other with it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._all: tuple[Extension, ...] = ()

    def start(self) -> None:
        for extension in self._all:
            extension.start()

    def refresh(self) -> None:
        for extension in self._all:
            extension.refresh()

    def tools(self) -> Sequence[Tool]:
        return tuple(tool for extension in self._all for tool in extension.tools())

    async def close(self) -> None:
        ends = await asyncio.gather(*(extension.close() for extension in self._all), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                _log.warning("an extension did not close: %s", end)
