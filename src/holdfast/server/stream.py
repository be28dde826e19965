"""The stream of events, in both forms. A reader that stalls is cut and resumes by number; nobody waits for it."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from holdfast.bus.backlog import ReaderCut
from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame, GapEvent, HelloEvent
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message
from holdfast.protocol.sse import HEARTBEAT, QUIET_HEARTBEAT, frame
from holdfast.server.asgi import Receive, Send
from holdfast.server.calls import Call
from holdfast.server.hub import Desk, client_id_of
from holdfast.server.presence import Attach, Detach
from holdfast.server.whole import WholeMessages
from holdfast.tasks import TaskOwner

__all__ = ["HEARTBEAT_SECONDS", "WHOLE_WRITE_SECONDS", "WRITE_SECONDS", "stream"]

HEARTBEAT_SECONDS = 15.0
WRITE_SECONDS = 30.0
WHOLE_WRITE_SECONDS = 60.0
"""How long a write may take before its reader counts as stalled; longer for one that cannot resume."""

_log = logging.getLogger("holdfast.server")


class _Writer:
    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        cycle = getattr(self._send, "__self__", None)
        if cycle is not None and getattr(cycle, "chunked_encoding", None) is False:
            cycle.expected_content_length = 0
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(call: Call, receive: Receive, send: Send) -> None:
    """Until the reader leaves, stalls, or the workspace is closed."""
    since = call.number("since", -1)
    client = call.query.get("client_id")
    name = client_id_of(client) if client else None
    heard = call.desk.workspace.bus.subscribe(since if since >= 0 else None)
    try:
        if name is not None:
            call.hub.tell(Attach(call.desk.id, name))
    except BaseException:
        heard.close()
        raise
    watcher = TaskOwner()
    watcher.start(_until_gone(receive, heard), name="reader")
    try:
        form = None if since >= 0 else WholeMessages(partial(_growing, call.desk))
        await _send_all(heard, send, form)
    except TimeoutError:
        _log.info("a reader stopped reading and was cut; it can resume")
        _hang_up(send)
    finally:
        watcher.cancel_all()
        heard.close()
        if name is not None:
            call.hub.tell(Detach(call.desk.id, name))


async def _until_gone(receive: Receive, heard: Subscription) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    heard.close()


def _growing(desk: Desk, session: SessionId, message: MessageId) -> Message | None:
    """A message that grows right now, for a reader that came in the middle of it."""
    return next((item for item in desk.workspace.engine.open_messages(session) if item.id == message), None)


async def _send_all(heard: Subscription, send: Send, form: WholeMessages | None) -> None:
    """Numbered and resumable, or in the form that was given."""
    if form is not None:
        _end_with_the_connection(send)
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    headers.append((b"connection", b"keep-alive" if form is None else b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    writer = _Writer(send, WRITE_SECONDS if form is None else WHOLE_WRITE_SECONDS)
    # The headers go out at once, so that a quiet workspace does not keep its reader waiting.
    await writer.write(HEARTBEAT if form is None else QUIET_HEARTBEAT)
    try:
        await (_resumable(heard, writer) if form is None else _whole(heard, writer, form))
    except ReaderCut:
        _log.info("a reader fell too far behind and was cut; it can resume")
    await writer.end()


async def _resumable(heard: Subscription, writer: _Writer) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                frames = await heard.take()
        except TimeoutError:
            await writer.write(HEARTBEAT)
            continue
        if not frames:
            return
        await writer.write(b"".join(frame(item.body, item.number) for item in frames))


async def _whole(heard: Subscription, writer: _Writer, form: WholeMessages) -> None:
    """Stock clients know neither numbers nor greetings, and get messages whole."""
    loop = asyncio.get_running_loop()
    while True:
        due = form.next_due
        patience = HEARTBEAT_SECONDS if due is None else max(0.0, due - loop.time())
        frames: Sequence[Frame] = ()
        try:
            async with asyncio.timeout(patience):
                frames = await heard.take()
            if not frames:
                return
        except TimeoutError:
            if due is None:
                await writer.write(QUIET_HEARTBEAT)
        bodies = form.due(loop.time())
        for item in frames:
            if not isinstance(item.event, HelloEvent | GapEvent):
                bodies += form.feed(item.event, item.body, loop.time())
        if bodies:
            await writer.write(b"".join(frame(body) for body in bodies))


def _hang_up(send: Send) -> None:
    """A reader that does not read cannot be told anything: what waits to be sent to it is dropped."""
    cycle = getattr(send, "__self__", None)
    if cycle is not None and hasattr(cycle, "transport"):
        cycle.transport.abort()
        cycle.disconnected = True


def _end_with_the_connection(send: Send) -> None:
    """Let the end of the connection end the body.

    A stock client takes a chunked body that breaks off for a fault it never recovers from; a plain end of the
    connection it understands. uvicorn chunks by itself, unless its cycle is told that the length is known.
    """
    cycle = getattr(send, "__self__", None)
    if cycle is not None and hasattr(cycle, "chunked_encoding"):
        cycle.chunked_encoding = False
        cycle.expected_content_length = 1 << 62
