"""Which tools there are."""

from collections.abc import Sequence

from holdfast.domain.tools import Tool
from holdfast.tools.ls import Ls
from holdfast.tools.view import View
from holdfast.tools.write import Write

__all__ = ["BuiltinTools"]


class BuiltinTools:
    """The tools that come with Holdfast. Made once; asked before every step."""

    def __init__(self) -> None:
        self._tools: Sequence[Tool] = (Ls(), View(), Write())

    async def current(self) -> Sequence[Tool]:
        return self._tools
