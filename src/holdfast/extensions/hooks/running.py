"""Runs one hook as a process: the event on stdin, the result on stdout, with a time limit.

The process is a child of the process guard and is stopped if the caller is cancelled.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from holdfast.domain.errors import ToolError
from holdfast.extensions.hooks.reading import Hook
from holdfast.extensions.hooks.saying import Said, understood
from holdfast.workspace.process_child import GuardedChild, GuardedSpawn

__all__ = ["run_hook"]

_MOST_BYTES = 1 << 20


class _TooMuch(Exception):
    pass


async def run_hook(
    hook: Hook, event: bytes, *, spawn: GuardedSpawn, bash: str, directory: str, environment: Mapping[str, str]
) -> Said:
    """Run the hook and return its result. Never raises: a failure, timeout or output overflow is
    stored as `trouble`.
    """
    try:
        child = await spawn((bash, "-c", "--", hook.command), directory, environment, has_input=True)
    except (ToolError, OSError) as error:
        return Said(trouble=f"could not be started: {error}")
    try:
        async with asyncio.timeout(hook.seconds):
            stdout, stderr = await _talk(child, event)
            code = await child.wait()
    except TimeoutError:
        return Said(trouble=f"took longer than {hook.seconds:g} seconds and was ended.")
    except _TooMuch:
        return Said(trouble=f"printed more than {_MOST_BYTES} bytes and was ended.")
    except ToolError as error:
        return Said(trouble=f"could not be started: {error}")
    finally:
        await child.stop(0)
    return understood(hook.event, code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


async def _talk(child: GuardedChild, event: bytes) -> tuple[bytes, bytes]:
    """Write and read concurrently, because a hook may print before it reads, and need not read at all."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_tell(child, event))
            stdout = group.create_task(_heard(child.stdout))
            stderr = group.create_task(_heard(child.stderr))
    except* _TooMuch:
        raise _TooMuch from None
    return stdout.result(), stderr.result()


async def _tell(child: GuardedChild, event: bytes) -> None:
    if child.stdin is None:
        return
    with suppress(OSError):
        child.stdin.write(event)
        await child.stdin.drain()
    child.stdin.close()


async def _heard(stream: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(65_536):
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            raise _TooMuch
    return b"".join(pieces)
