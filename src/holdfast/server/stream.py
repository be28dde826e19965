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
from holdfast.server.calls import Call
from holdfast.server.desk import Desk
from holdfast.server.dialogs import Dialogs
from holdfast.server.http import Receive, Send, exchange_of
from holdfast.server.hub import client_id_of
from holdfast.server.join import Joiner
from holdfast.server.pace import Pace
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
    """Writes to one reader. `seconds`: how long it may take to read before it counts as stalled."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(self._loop.time())
        self.written = self._loop.time()
        """When something was last written."""
        self._beat: asyncio.TimerHandle | None = None
        self._exchange = exchange_of(send)

    async def write(self, data: bytes) -> None:
        self.written = self._loop.time()
        exchange = self._exchange
        if exchange is not None and not exchange.connection.is_full:
            # Most writes wait for nothing, and need nobody who watches how long.
            exchange.write(data)
            return
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def pause(self) -> None:
        """Before the next take: a moment, for a reader that was written to just now."""
        if seconds := self._pace.wait(self._loop.time()):
            await asyncio.sleep(seconds)
            self._pace.waited(self._loop.time())

    def keep_beating(self) -> None:
        """A sign of life whenever nothing was written for a while. It costs nothing while something is."""
        now = self._loop.time()
        due = self.written + HEARTBEAT_SECONDS
        if due <= now:
            if self._exchange is not None and not self._exchange.connection.is_full:
                self._exchange.write(HEARTBEAT)
                self.written = now
            # Who does not read has enough to read: there is no hurry to look again.
            due = now + HEARTBEAT_SECONDS
        self._beat = self._loop.call_at(max(due, now + 0.001), self.keep_beating)

    def stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.cancel()

    async def end(self) -> None:
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(call: Call, receive: Receive, send: Send) -> None:
    """Until the reader leaves, stalls, or the workspace is closed."""
    since = call.number("since", -1)
    client = call.query.get("client_id")
    name = client_id_of(client) if client else None
    heard = call.desk.workspace.bus.subscribe(since if since >= 0 else None, merge=since < 0)
    asks = call.desk.workspace.asks
    form = None if since >= 0 else WholeMessages(partial(_growing, call.desk), _dialogs(call))
    if (exchange := exchange_of(send)) is not None:
        exchange.sign = HEARTBEAT if form is None else QUIET_HEARTBEAT
    try:
        if name is not None:
            call.hub.tell(Attach(call.desk.id, name))
    except BaseException:
        heard.close()
        raise
    asks.reader_came()
    watcher = TaskOwner()
    watcher.start(_until_gone(receive, heard), name="reader")
    try:
        await _send_all(heard, send, form or call.desk.joiner)
    except TimeoutError:
        _log.info("a reader stopped reading and was cut; it can resume")
        _hang_up(send)
    finally:
        asks.reader_left()
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


def _dialogs(call: Call) -> Dialogs:
    """What is open when a reader comes: taken together with its subscription, so that nothing is missed or doubled."""
    asks, now = call.desk.workspace.asks, asyncio.get_running_loop().time()
    withdrawn = call.hub.withdrawn.get(call.desk.id, ())
    return Dialogs(asks.permissions, asks.questions, now=now, pause=asks.pause, withdrawn=withdrawn)


async def _send_all(heard: Subscription, send: Send, form: WholeMessages | Joiner) -> None:
    """Numbered and resumable, or in the form that stock clients know."""
    is_whole = isinstance(form, WholeMessages)
    if is_whole:
        _end_with_the_connection(send)
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    headers.append((b"connection", b"close" if is_whole else b"keep-alive"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    writer = _Writer(send, WHOLE_WRITE_SECONDS if is_whole else WRITE_SECONDS)
    # The headers go out at once, so that a quiet workspace does not keep its reader waiting.
    await writer.write(QUIET_HEARTBEAT if is_whole else HEARTBEAT)
    try:
        await (_resumable(heard, writer, form) if isinstance(form, Joiner) else _whole(heard, writer, form))
    except ReaderCut:
        _log.info("a reader fell too far behind and was cut; it can resume")
    await writer.end()


async def _resumable(heard: Subscription, writer: _Writer, joiner: Joiner) -> None:
    writer.keep_beating()
    try:
        while frames := await heard.take():
            await writer.write(joiner.join(frames))
            await writer.pause()
    finally:
        writer.stop_beating()


async def _whole(heard: Subscription, writer: _Writer, form: WholeMessages) -> None:
    """Stock clients know neither numbers nor greetings, and get messages whole."""
    loop = asyncio.get_running_loop()
    while True:
        # Most of what happens may be nothing for this reader: only what is written is a sign of life.
        beat = writer.written + HEARTBEAT_SECONDS
        due = beat if form.next_due is None else min(beat, form.next_due)
        frames: Sequence[Frame] = ()
        try:
            async with asyncio.timeout(max(0.0, due - loop.time())):
                frames = await heard.take()
            if not frames:
                return
        except TimeoutError:
            pass
        bodies = form.due(loop.time())
        for item in frames:
            if not isinstance(item.event, HelloEvent | GapEvent):
                bodies += form.feed(item.event, item.body, loop.time())
        if bodies:
            await writer.write(b"".join(frame(body) for body in bodies))
        elif loop.time() >= beat:
            await writer.write(QUIET_HEARTBEAT)


def _hang_up(send: Send) -> None:
    """A reader that does not read cannot be told anything: what waits to be sent to it is dropped."""
    if (exchange := exchange_of(send)) is not None:
        exchange.connection.abort()


def _end_with_the_connection(send: Send) -> None:
    """Let the end of the connection end the body.

    A stock client takes a chunked body that breaks off for a fault it never recovers from; a plain end of the
    connection it understands.
    """
    if (exchange := exchange_of(send)) is not None:
        exchange.ends_with_connection = True
