"""Runs the protocol on stdin and stdout, and redirects all other output to stderr."""

import asyncio
import logging
import os
import sys
from importlib import import_module

from holdfast.acp.editor import Editor, Pipes
from holdfast.acp.greeting import greeting, has_forms, is_greeting
from holdfast.client.locate import Where
from holdfast.domain.errors import BadRequest
from holdfast.tasks import TaskOwner

__all__ = ["speak"]

_LONGEST = 64 * 1024 * 1024
"""Maximum size of a message in bytes. Prompts may contain images."""
_AGENT = "holdfast.acp.agent"


class _NoPipes(Exception):
    """Stdin or stdout is not a pipe."""


class _Plain(logging.Formatter):
    """Formats errors of other packages without a traceback; our own keep it."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        if not record.name.startswith("holdfast"):
            record.exc_info = record.exc_text = None
        return super().format(record)


def speak(where: Where) -> None:
    """Serve an editor until it disconnects."""
    complaints = logging.StreamHandler(sys.stderr)
    complaints.setFormatter(_Plain("holdfast acp: %(message)s"))
    logging.basicConfig(handlers=[complaints], level=logging.WARNING)
    # Redirect fd 1 to stderr, because other output would corrupt the message stream.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_speak(where, out))
    except _NoPipes:
        raise BadRequest("Stdin and stdout must be pipes: an editor makes them.") from None


async def _speak(where: Where, out: int) -> None:
    pipes = await _pipes(out)
    tasks = TaskOwner()
    loading = tasks.start(asyncio.to_thread(import_module, _AGENT), name="load the protocol")
    forms = await _greeted(pipes)
    editor = Editor(pipes)
    agent = (await loading).HoldfastAgent(where, editor)
    agent.has_forms = forms
    await agent.converse(pipes)


async def _pipes(out: int) -> Pipes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", closefd=False))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(out, "wb"))
    except ValueError:
        # asyncio cannot wait for regular files.
        raise _NoPipes from None
    return Pipes(reader, asyncio.StreamWriter(transport, protocol, None, loop))


async def _greeted(pipes: Pipes) -> bool:
    """Answer the `initialize` request, if the first message is one. Returns whether the editor supports forms."""
    first = await pipes.receive()
    if first is None:
        return False
    if not is_greeting(first):
        pipes.put_back(first)
        return False
    params = first["params"]
    await pipes.send({"jsonrpc": "2.0", "id": first["id"], "result": greeting(params["protocolVersion"])})
    return has_forms(params.get("clientCapabilities") or {})
