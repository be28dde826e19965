"""JSON-RPC connection to an editor: one message per line on two pipes.

Updates are sent in order, and updates that queue up while the editor is slow are merged.
"""

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, TypeAlias

import msgspec

from holdfast.acp.initialize import greeting, has_forms, is_greeting
from holdfast.acp.tool_calls import Json
from holdfast.client.locate import ServerLocation
from holdfast.domain.errors import BadRequest
from holdfast.tasks import TaskOwner

__all__ = ["EditorConnection", "StdioPipes", "speak"]


_JOINED = frozenset({"agent_message_chunk", "agent_thought_chunk"})
_log = logging.getLogger("holdfast.acp")

Sending: TypeAlias = Callable[[str, Json], Awaitable[Any]]


class StdioPipes:
    """Message transport. Lines that are not valid messages are skipped; end of input ends the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.json.Encoder()
        self._again: list[dict[str, Any]] = []
        self.on_sent: Callable[[Json], None] = lambda _: None
        """Called with each message after it was sent."""

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        self._writer.write(self._encoder.encode(message) + b"\n")
        await self._writer.drain()
        self.on_sent(message)

    def put_back(self, message: dict[str, Any]) -> None:
        """Return this message again from the next `receive`."""
        self._again.append(message)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of input."""
        while not self._again:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                line = end.partial
            except asyncio.LimitOverrunError:
                _log.error("a message was too long to be read; nothing after it can be trusted")
                return None
            if not line:
                return None
            if (message := _message_in(line)) is not None:
                return message
            if line.strip():
                _log.warning("a line was not a message of the protocol, and was passed over")
        return self._again.pop()

    async def close(self) -> None:
        """Close the output."""
        self._writer.close()


def _message_in(line: bytes) -> dict[str, Any] | None:
    """Parse a line. Returns None for JSON that is neither a request nor a response."""
    try:
        message = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_named = isinstance(message.get("method", ""), str)
    is_numbered = isinstance(message.get("id"), int | str | None)
    return message if is_named and is_numbered and isinstance(message.get("error"), dict | None) else None


class EditorConnection:
    """Sends updates and requests to the editor, once started."""

    def __init__(self, pipes: StdioPipes) -> None:
        self._call: Sending
        self._notify: Sending
        self._waiting: deque[tuple[str, Json] | asyncio.Future[None]] = deque()
        self._news = asyncio.Event()
        self._tasks = TaskOwner()
        self._asked: dict[str, int | str] = {}
        self._after: dict[str, list[Json]] = {}
        pipes.on_sent = self._sent

    def start(self, call: Sending, notify: Sending) -> None:
        """Start sending. `call` sends a request and `notify` a notification; both raise when the
        connection is closed.
        """
        self._call, self._notify = call, notify
        self._tasks.start(self._write(), name="editor")

    async def close(self) -> None:
        """Stop sending."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def tell(self, session: str, update: Json) -> None:
        """Queue an update."""
        self._waiting.append((session, update))
        self._news.set()

    def tell_after_answer(self, session: str, update: Json) -> None:
        """Queue an update until the response that contains this session id was sent."""
        self._after.setdefault(session, []).append(update)

    async def flushed(self) -> None:
        """Wait until all queued updates were sent."""
        # A marker in the queue, resolved when everything before it was sent.
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._news.set()
        await done

    async def ask(self, name: str, method: str, params: Json) -> Json:
        """Send a request for the editor's user and return the result. `name` identifies it;
        cancellation withdraws it.
        """
        await self.flushed()
        try:
            answer: Json = await self._call(method, {**params, "_meta": {"holdfast/ask": name}})
        except asyncio.CancelledError:
            if (number := self._asked.get(name)) is not None:
                self._tasks.start(self._withdraw(number), name="withdraw")
            raise
        finally:
            self._asked.pop(name, None)
        return answer or {}

    async def _withdraw(self, number: int | str) -> None:
        try:
            await self._notify("$/cancel_request", {"requestId": number})
        except ConnectionError:
            return

    def _sent(self, message: Json) -> None:
        if "method" in message and "id" in message:
            name = (message["params"].get("_meta") or {}).get("holdfast/ask")
            if name:
                self._asked[name] = message["id"]
        result = message.get("result")
        if isinstance(result, dict) and (session := result.get("sessionId")):
            for update in self._after.pop(session, ()):
                self.tell(session, update)

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, asyncio.Future):
                    if not item.done():
                        item.set_result(None)
                    continue
                session, update = self._joined(*item)
                try:
                    await self._notify("session/update", {"sessionId": session, "update": update})
                except (ConnectionError, RuntimeError):
                    return

    def _joined(self, session: str, update: Json) -> tuple[str, Json]:
        """Merge queued text of the same kind, and queued updates of the same tool call."""
        kind = update["sessionUpdate"]
        while self._waiting and not isinstance(self._waiting[0], asyncio.Future):
            other, following = self._waiting[0]
            if other != session or following["sessionUpdate"] != kind:
                break
            if kind in _JOINED:
                text = update["content"]["text"] + following["content"]["text"]
                update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
            elif kind == "tool_call_update" and following["toolCallId"] == update["toolCallId"]:
                update = update | following
            else:
                break
            self._waiting.popleft()
        return session, update


# Runs the protocol on stdin and stdout, and redirects all other output to stderr.

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


def speak(where: ServerLocation) -> None:
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


async def _speak(where: ServerLocation, out: int) -> None:
    pipes = await _pipes(out)
    tasks = TaskOwner()
    loading = tasks.start(asyncio.to_thread(import_module, _AGENT), name="load the protocol")
    forms = await _greeted(pipes)
    editor = EditorConnection(pipes)
    agent = (await loading).HoldfastAgent(where, editor)
    agent.has_forms = forms
    await agent.converse(pipes)


async def _pipes(out: int) -> StdioPipes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", closefd=False))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(out, "wb"))
    except ValueError:
        # asyncio cannot wait for regular files.
        raise _NoPipes from None
    return StdioPipes(reader, asyncio.StreamWriter(transport, protocol, None, loop))


async def _greeted(pipes: StdioPipes) -> bool:
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
