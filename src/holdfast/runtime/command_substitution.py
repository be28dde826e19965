"""Runs `$(command)` substitutions of settings files under the process guard, so that they end with the server."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError

from holdfast.config.variables import (
    COMMAND_TIMEOUT,
    MAX_OUTPUT_BYTES,
    ExpansionFailed,
    command_output,
    run_command,
    start_error,
)
from holdfast.domain.errors import ToolError
from holdfast.workspace.process.piped_process import GuardedSpawn

__all__ = ["Substitution"]


class Substitution:
    """Blocks its thread while the event loop runs the command. Raises `ExpansionFailed`."""

    def __init__(self, spawn: GuardedSpawn) -> None:
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def __call__(self, command: str, environment: Mapping[str, str]) -> str:
        if threading.get_ident() == self._loop_thread:
            # Called on the event loop's own thread, which would wait for itself: run the command without the guard.
            return run_command(command, environment)
        try:
            return asyncio.run_coroutine_threadsafe(self._run(command, environment), self._loop).result()
        except (CancelledError, RuntimeError):
            raise ExpansionFailed("The command in $(…) was abandoned: the server is shutting down.") from None

    async def _run(self, command: str, environment: Mapping[str, str]) -> str:
        try:
            child = await self._spawn(("/bin/sh", "-c", f"exec 2>/dev/null\n{command}"), "/", environment)
        except ToolError:
            raise start_error() from None
        output = bytearray()
        status: int | None = None
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                while len(output) <= MAX_OUTPUT_BYTES and (piece := await child.stdout.read(MAX_OUTPUT_BYTES)):
                    output += piece
                status = await child.wait() if len(output) <= MAX_OUTPUT_BYTES else 0
        except TimeoutError:
            pass
        except ToolError:
            raise start_error() from None
        finally:
            child.close()
        return command_output(bytes(output), status)
