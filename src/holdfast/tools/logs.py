"""The `holdfast_logs` tool: returns the end of the server's log."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.config.redaction import redact_text
from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["Logs", "LogsArguments"]

_LINES = 50
_MAX_LINES = 100
_MAX_BYTES = 256 * 1024
_MAX_LINE_LENGTH = 2_000


class LogsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `holdfast_logs`."""

    lines: Annotated[int, Meta(description="The number of last entries, at most 100.")] = _LINES


class Logs(BaseTool[LogsArguments]):
    """`file` returns the path of the log, or None."""

    name = "holdfast_logs"
    document = "logs"
    arguments = LogsArguments
    is_parallel = True

    def __init__(self, file: Callable[[], Path | None] = lambda: None) -> None:
        super().__init__()
        self._file = file

    async def act(self, context: ToolContext, arguments: LogsArguments) -> ToolOutcome:
        """Return the last entries of the log without secrets."""
        count = min(arguments.lines, _MAX_LINES) if arguments.lines > 0 else _LINES
        path = self._file()
        if path is None:
            raise ToolError("This server has no log file.")
        text = await asyncio.to_thread(_end, path)
        lines = [
            line[:_MAX_LINE_LENGTH] + "…" * (len(line) > _MAX_LINE_LENGTH)
            for line in redact_text(text).splitlines()
            if line.strip()
        ]
        return ToolOutcome("\n".join(lines[-count:]) or "The log is empty.")


def _end(path: Path) -> str:
    """Return the last lines of the file."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = max(0, size - _MAX_BYTES)
            stream.seek(begin)
            text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ToolError(f"The log cannot be read: {(error.strerror or 'refused').lower()}.") from None
    return text.partition("\n")[2] if begin else text
