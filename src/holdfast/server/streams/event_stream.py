"""Event streams, resumable and in the Crush form. A stalled subscriber is disconnected and can resume by number."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame, GapEvent, HelloEvent
from holdfast.bus.shared_backlog import ReaderCut
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message
from holdfast.http11.sse import HEARTBEAT, QUIET_HEARTBEAT, frame
from holdfast.server.http.connection import Receive, RequestCycle, Send
from holdfast.server.http.request import Request
from holdfast.server.presence import Attach, Detach
from holdfast.server.streams.crush_stream import CrushDialogs, CrushStream
from holdfast.server.streams.frame_cache import FrameCache
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import client_id_of
from holdfast.tasks import TaskOwner

__all__ = [
    "CRUSH_WRITE_TIMEOUT",
    "HEARTBEAT_SECONDS",
    "MAX_WAIT",
    "MIN_WAIT",
    "WRITE_SECONDS",
    "WritePace",
    "stream",
]


MIN_WAIT = 0.002
MAX_WAIT = 0.008
_MAX_CREDIT = 16.0
_LATE_SHARE = 0.5


class WritePace:
    """Rate of one subscriber. Call `wait` before every write, and `waited` after the delay."""

    def __init__(self, now: float) -> None:
        self._credit = _MAX_CREDIT
        self._updated_at = now
        self.pause = MIN_WAIT
        """Current minimum interval between writes."""
        self._due = now

    def wait(self, now: float) -> float:
        """Return the delay before the next write in seconds; 0 for none."""
        self._credit = min(_MAX_CREDIT, self._credit + (now - self._updated_at) / self.pause)
        self._updated_at = now
        if self._credit >= 1:
            self._credit -= 1
            return 0.0
        # Align the delay with that of other subscribers: they then take the same frames, which are merged once.
        # So short a remainder would not space the writes.
        seconds = self.pause - now % self.pause
        if seconds < self.pause / 4:
            seconds += self.pause
        self._due = now + seconds
        return seconds

    def waited(self, now: float) -> None:
        """Record the end of a delay. One that took much longer than requested indicates load."""
        if now - self._due > self.pause * _LATE_SHARE:
            self.pause = min(MAX_WAIT, self.pause * 2)
        else:
            self.pause = max(MIN_WAIT, self.pause / 2)
        self._updated_at = now
        # The delay was the regular interval, so it earns no burst.
        self._credit = 0.0


HEARTBEAT_SECONDS = 15.0
WRITE_SECONDS = 30.0
CRUSH_WRITE_TIMEOUT = 60.0
"""Maximum duration of a write before its subscriber counts as stalled; longer for one that cannot resume."""

_log = logging.getLogger("holdfast.server")


class _Writer:
    """Writes to one subscriber. `seconds` is the maximum duration of a write before it counts as stalled."""

    def __init__(self, send: Send, exchange: RequestCycle | None, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._pace = WritePace(self._loop.time())
        self.written = self._loop.time()
        """Time of the last write."""
        self._beat: asyncio.TimerHandle | None = None
        self._exchange = exchange

    async def write(self, data: bytes) -> None:
        """Write data; waits, up to the timeout, only if the connection's buffer is full."""
        self.written = self._loop.time()
        exchange = self._exchange
        if exchange is not None and not exchange.connection.is_full:
            # Most writes do not block and need no timeout.
            exchange.write(data)
            return
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def pause(self) -> None:
        """Delay the next read from the subscription if writes are too frequent."""
        if seconds := self._pace.wait(self._loop.time()):
            await asyncio.sleep(seconds)
            self._pace.waited(self._loop.time())

    def keep_beating(self) -> None:
        """Write a heartbeat when nothing else has been written for a while. One timer; writes do not restart it."""
        now = self._loop.time()
        due = self.written + HEARTBEAT_SECONDS
        if due <= now:
            if self._exchange is not None and not self._exchange.connection.is_full:
                self._exchange.write(HEARTBEAT)
                self.written = now
            # A client that does not read has data left in its buffer; check again after a full interval.
            due = now + HEARTBEAT_SECONDS
        self._beat = self._loop.call_at(max(due, now + 0.001), self.keep_beating)

    def stop_beating(self) -> None:
        """Cancel the heartbeat timer."""
        if self._beat is not None:
            self._beat.cancel()

    async def end(self) -> None:
        """End the response."""
        async with asyncio.timeout(self._seconds):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream(request: Request, receive: Receive, send: Send) -> None:
    """Stream events until the client disconnects or stalls, or the workspace is closed."""
    since = request.number("since", -1)
    client = request.query.get("client_id")
    name = client_id_of(client) if client else None
    # `since` selects the form: Crush clients do not send it. Deltas of the resumable form are merged by the frame
    # cache, once for all subscribers.
    subscription = request.workspace.bus.subscribe(since if since >= 0 else None, merge=since < 0)
    form = None if since >= 0 else CrushStream(partial(_streaming_message, request.handle), _dialogs(request))
    exchange = request.exchange
    if exchange is not None:
        exchange.probe = HEARTBEAT if form is None else QUIET_HEARTBEAT
    try:
        if name is not None:
            request.manager.apply(Attach(request.workspace.id, name))
    except BaseException:
        subscription.close()
        raise
    # Open requests expire only while no client is attached.
    request.handle.client_attached()
    # The stream itself only writes, so a task of its own waits for the disconnection.
    watcher = TaskOwner()
    watcher.start(_close_on_disconnect(receive, subscription), name="reader")
    try:
        await _send_all(subscription, send, exchange, form or request.handle.frame_cache)
    except TimeoutError:
        _log.info("a subscriber stopped reading and was disconnected; it can resume")
        if exchange is not None:
            # A stalled client cannot be notified, so its buffered output is dropped.
            exchange.connection.abort()
    finally:
        request.handle.client_detached()
        watcher.cancel_all()
        subscription.close()
        if name is not None:
            request.manager.apply(Detach(request.workspace.id, name))


async def _close_on_disconnect(receive: Receive, subscription: Subscription) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscription.close()


def _streaming_message(handle: WorkspaceHandle, session: SessionId, message: MessageId) -> Message | None:
    """Return a message that is being streamed, for a subscriber that connected in the middle of it."""
    return next((item for item in handle.workspace.open_messages(session) if item.id == message), None)


def _dialogs(request: Request) -> CrushDialogs:
    """Return the open requests at the time of the subscription, so that none is missed or duplicated."""
    approvals, now = request.workspace.approvals, asyncio.get_running_loop().time()
    withdrawn = request.manager.withdrawn.get(request.workspace.id, ())
    return CrushDialogs(approvals.permissions, approvals.questions, now=now, pause=approvals.pause, withdrawn=withdrawn)


async def _send_all(
    subscription: Subscription, send: Send, exchange: RequestCycle | None, form: CrushStream | FrameCache
) -> None:
    """Send events numbered and resumable, or in the Crush form."""
    is_crush = isinstance(form, CrushStream)
    if is_crush and exchange is not None:
        # A Crush client does not recover from a chunked body that breaks off, but handles the end of a connection.
        exchange.ends_with_connection = True
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    headers.append((b"connection", b"close" if is_crush else b"keep-alive"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    writer = _Writer(send, exchange, CRUSH_WRITE_TIMEOUT if is_crush else WRITE_SECONDS)
    # Send the headers at once; a quiet workspace would otherwise delay them.
    await writer.write(QUIET_HEARTBEAT if is_crush else HEARTBEAT)
    try:
        await (
            _resumable(subscription, writer, form)
            if isinstance(form, FrameCache)
            else _send_crush_stream(subscription, writer, form)
        )
    except ReaderCut:
        _log.info("a subscriber fell too far behind and was disconnected; it can resume")
    await writer.end()


async def _resumable(subscription: Subscription, writer: _Writer, frame_cache: FrameCache) -> None:
    writer.keep_beating()
    try:
        while frames := await subscription.take():
            await writer.write(frame_cache.join(frames))
            await writer.pause()
    finally:
        writer.stop_beating()


async def _send_crush_stream(subscription: Subscription, writer: _Writer, form: CrushStream) -> None:
    """Send complete messages without numbers and hello events, as Crush clients expect."""
    loop = asyncio.get_running_loop()
    while True:
        # Most events may be irrelevant for this subscriber; only a write counts as a heartbeat.
        beat = writer.written + HEARTBEAT_SECONDS
        due = beat if form.next_due is None else min(beat, form.next_due)
        frames: Sequence[Frame] = ()
        try:
            async with asyncio.timeout(max(0.0, due - loop.time())):
                frames = await subscription.take()
            # An empty list is the end of the subscription; a timeout leaves the loop below with an empty tuple.
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
