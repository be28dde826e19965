"""The `holdfast_info` tool: reports the configuration."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast import __version__
from holdfast.config.redaction import redact_text
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["Facts", "Info", "InfoArguments"]

Facts: TypeAlias = Callable[[ToolContext], Awaitable[Mapping[str, Sequence[str]]]]
"""Returns lines under headings such as `models` or `permissions`."""


class InfoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Info(BaseTool[InfoArguments]):
    """The tool `holdfast_info`: reports the configuration of Holdfast."""

    name = "holdfast_info"
    document = "info"
    arguments = InfoArguments
    is_parallel = True

    def __init__(self, facts: Facts | None = None) -> None:
        super().__init__()
        self._facts = facts

    async def act(self, context: ToolContext, arguments: InfoArguments) -> ToolOutcome:
        """Return the version and the redacted configuration."""
        lines = ["[holdfast]", f"version = {__version__}", f"workspace = {context.workspace_path}"]
        lines += [f"session = {context.session_id}", f"run = {context.run_id}"]
        facts = await self._facts(context) if self._facts else {}
        for heading, entries in facts.items():
            lines += ["", f"[{heading}]", *(entries or ("(none)",))]
        return ToolOutcome(redact_text("\n".join(lines)))
