"""Holds the protocol on stdin and stdout, and keeps everything else away from there."""

import asyncio
import logging
import os
import sys
from typing import cast

from acp import Agent
from acp.agent.router import build_agent_router
from acp.connection import Connection

from holdfast.acp.agent import HoldfastAgent
from holdfast.acp.editor import Editor, Pipes
from holdfast.client.locate import Where
from holdfast.domain.errors import BadRequest

__all__ = ["speak"]

_LONGEST = 64 * 1024 * 1024
"""Of one message: a prompt may hold pictures."""


class _NoPipes(Exception):
    """There is nobody at the other end who could answer."""


def speak(where: Where) -> None:
    """Until the editor leaves."""
    logging.basicConfig(stream=sys.stderr, format="holdfast acp: %(message)s", level=logging.WARNING)
    # Whatever else is printed in this process must not get between two messages.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_speak(where, out))
    except _NoPipes:
        raise BadRequest("Stdin and stdout must be pipes: an editor makes them.") from None


async def _speak(where: Where, out: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", closefd=False))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(out, "wb"))
    except ValueError:
        # Files cannot be waited for.
        raise _NoPipes from None
    pipes = Pipes(reader, asyncio.StreamWriter(transport, protocol, None, loop))
    editor = Editor(pipes)
    agent = HoldfastAgent(where, editor)
    connection = Connection(build_agent_router(cast(Agent, agent), use_unstable_protocol=True), pipes, listening=False)
    editor.call, editor.notify = connection.send_request, connection.send_notification
    editor.start()
    try:
        await connection.main_loop()
    finally:
        await agent.close()
        await editor.close()
        await connection.close()
