"""JSON-RPC connection to an editor: one message per line on two pipes.

Updates are sent in order, and updates that queue up while the editor is slow are merged. `serve_editor` runs the bridge
on stdin and stdout; all other output is redirected to stderr.
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

from holdfast.acp.initialize import initialize_result, is_initialize_request, supports_forms
from holdfast.acp.tool_calls import Json
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.errors import BadRequest
from holdfast.tasks import TaskOwner

__all__ = ["EditorConnection", "StdioPipes", "serve_editor"]


_TEXT_CHUNKS = frozenset({"agent_message_chunk", "agent_thought_chunk"})
_log = logging.getLogger("holdfast.acp")

SendMessage: TypeAlias = Callable[[str, Json], Awaitable[Any]]
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Maximum size of a message in bytes. Prompts may contain images."""
_AGENT_MODULE = "holdfast.acp.agent"


class StdioPipes:
    """Message transport. Lines that are not valid messages are skipped; end of input ends the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.json.Encoder()
        self._pushed_back: list[dict[str, Any]] = []
        self.on_sent: Callable[[Json], None] = lambda _: None
        """Called with each message after it was sent."""

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        self._writer.write(self._encoder.encode(message) + b"\n")
        await self._writer.drain()
        self.on_sent(message)

    def push_back(self, message: dict[str, Any]) -> None:
        """Return this message again from the next `receive`."""
        self._pushed_back.append(message)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of input."""
        while not self._pushed_back:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                line = end.partial
            except asyncio.LimitOverrunError:
                _log.error("a message exceeds the size limit; the connection is closed")
                return None
            if not line:
                return None
            if (message := _parse_message(line)) is not None:
                return message
            if line.strip():
                _log.warning("a line is not a message of the protocol and was skipped")
        return self._pushed_back.pop()

    async def close(self) -> None:
        """Close the output."""
        self._writer.close()


def _parse_message(line: bytes) -> dict[str, Any] | None:
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
        self._call: SendMessage
        self._notify: SendMessage
        self._queue: deque[tuple[str, Json] | asyncio.Future[None]] = deque()
        self._has_items = asyncio.Event()
        self._tasks = TaskOwner()
        self._request_ids: dict[str, int | str] = {}
        self._deferred: dict[str, list[Json]] = {}
        pipes.on_sent = self._on_sent

    def start(self, call: SendMessage, notify: SendMessage) -> None:
        """Start sending. `call` sends a request and `notify` a notification; both raise when the
        connection is closed.
        """
        self._call, self._notify = call, notify
        self._tasks.start(self._write(), name="editor updates")

    async def close(self) -> None:
        """Stop sending."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def send_update(self, session: str, update: Json) -> None:
        """Queue an update."""
        self._queue.append((session, update))
        self._has_items.set()

    def send_update_after_response(self, session: str, update: Json) -> None:
        """Queue an update until the response that contains this session id was sent."""
        self._deferred.setdefault(session, []).append(update)

    async def flush(self) -> None:
        """Wait until all queued updates were sent."""
        # A marker in the queue, resolved when everything before it was sent.
        done = asyncio.get_running_loop().create_future()
        self._queue.append(done)
        self._has_items.set()
        await done

    async def request(self, name: str, method: str, params: Json) -> Json:
        """Send a request for the editor's user and return the result. `name` identifies it;
        cancellation withdraws it.
        """
        await self.flush()
        try:
            result: Json = await self._call(method, {**params, "_meta": {"holdfast/ask": name}})
        except asyncio.CancelledError:
            if (number := self._request_ids.get(name)) is not None:
                self._tasks.start(self._withdraw(number), name="withdraw")
            raise
        finally:
            self._request_ids.pop(name, None)
        return result or {}

    async def _withdraw(self, number: int | str) -> None:
        try:
            await self._notify("$/cancel_request", {"requestId": number})
        except ConnectionError:
            return

    def _on_sent(self, message: Json) -> None:
        if "method" in message and "id" in message:
            name = (message["params"].get("_meta") or {}).get("holdfast/ask")
            if name:
                self._request_ids[name] = message["id"]
        result = message.get("result")
        if isinstance(result, dict) and (session := result.get("sessionId")):
            for update in self._deferred.pop(session, ()):
                self.send_update(session, update)

    async def _write(self) -> None:
        while True:
            await self._has_items.wait()
            self._has_items.clear()
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, asyncio.Future):
                    if not item.done():
                        item.set_result(None)
                    continue
                session, update = self._merge(*item)
                try:
                    await self._notify("session/update", {"sessionId": session, "update": update})
                except (ConnectionError, RuntimeError):
                    return

    def _merge(self, session: str, update: Json) -> tuple[str, Json]:
        """Merge queued text of the same kind, and queued updates of the same tool call."""
        kind = update["sessionUpdate"]
        while self._queue and not isinstance(self._queue[0], asyncio.Future):
            queued_session, following = self._queue[0]
            if queued_session != session or following["sessionUpdate"] != kind:
                break
            if kind in _TEXT_CHUNKS:
                text = update["content"]["text"] + following["content"]["text"]
                update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
            elif kind == "tool_call_update" and following["toolCallId"] == update["toolCallId"]:
                update = update | following
            else:
                break
            self._queue.popleft()
        return session, update


class _NoPipes(Exception):
    """Stdin or stdout is not a pipe."""


class _BriefFormatter(logging.Formatter):
    """Formats errors of other packages without a traceback; our own keep it."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        if not record.name.startswith("holdfast"):
            record.exc_info = record.exc_text = None
        return super().format(record)


def serve_editor(location: ServerLocation) -> None:
    """Serve an editor until it disconnects."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_BriefFormatter("holdfast acp: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    # Redirect fd 1 to stderr, because other output would corrupt the message stream.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(location, out))
    except _NoPipes:
        raise BadRequest("Stdin and stdout must be pipes, as an editor creates them.") from None


async def _serve(location: ServerLocation, out: int) -> None:
    pipes = await _open_pipes(out)
    tasks = TaskOwner()
    loading = tasks.start(asyncio.to_thread(import_module, _AGENT_MODULE), name="load the agent")
    forms = await _answer_initialize(pipes)
    editor = EditorConnection(pipes)
    agent = (await loading).HoldfastAgent(location, editor)
    agent.supports_forms = forms
    await agent.serve(pipes)


async def _open_pipes(out: int) -> StdioPipes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAX_MESSAGE_BYTES)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", closefd=False))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(out, "wb"))
    except ValueError:
        # asyncio cannot wait for regular files.
        raise _NoPipes from None
    return StdioPipes(reader, asyncio.StreamWriter(transport, protocol, None, loop))


async def _answer_initialize(pipes: StdioPipes) -> bool:
    """Answer the `initialize` request, if the first message is one. Returns whether the editor supports forms."""
    first = await pipes.receive()
    if first is None:
        return False
    if not is_initialize_request(first):
        pipes.push_back(first)
        return False
    params = first["params"]
    await pipes.send({"jsonrpc": "2.0", "id": first["id"], "result": initialize_result(params["protocolVersion"])})
    return supports_forms(params.get("clientCapabilities") or {})
