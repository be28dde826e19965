"""A connection in each of its states: reuse, closing, and remaining timers. In virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import httpx2
import pytest

from holdfast.http11 import client_connection
from holdfast.http11.client_connection import DRAIN_SECONDS, ClientConnection, ConnectionPool, Origin, RequestWatchdog
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.providers import httpx_transport
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import in_virtual_time
from stream_servers import stream_server

ORIGIN = Origin("127.0.0.1", 80, is_secure=False)
KEEP_SECONDS = 50.0
HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"content-length: 2\r\n\r\nhi"


async def pass_time(seconds: float) -> None:
    """Let this much virtual time pass."""
    await asyncio.sleep(seconds)


class FakeTransport:
    """A transport that only records its calls."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_aborted = False
        self.pauses: list[str] = []

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.sent += pieces

    def pause_reading(self) -> None:
        self.pauses.append("pause")

    def resume_reading(self) -> None:
        self.pauses.append("resume")


class SentRequest:
    """A connection on a fake transport, with one request sent."""

    def __init__(self) -> None:
        self.pool = ConnectionPool()
        self.connection = ClientConnection(ORIGIN, self.pool)
        self.wire = FakeTransport()
        self.connection.connection_made(cast("asyncio.Transport", self.wire))
        self.watch = RequestWatchdog(300, 300)
        self.connection.send([b"ask"], self.watch)

    @property
    def is_kept(self) -> bool:
        found = self.pool.pop_idle(ORIGIN)
        return found is self.connection

    async def head_and_body(self) -> bytes:
        await self.connection.head()
        return await self.read_all()

    async def read_all(self) -> bytes:
        body = b""
        while data := await self.connection.read():
            body += data
        return body


def with_request(work: Callable[[SentRequest], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await work(SentRequest())

    in_virtual_time(main)


ANSWERS: dict[str, tuple[bytes, bool]] = {
    "counted": (WHOLE, True),
    "in chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", True),
    "after news": (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, True),
    "asks to close": (HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", False),
    "of an old server": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("step", [1, 1_000])
def test_complete_response_in_any_pieces(name: str, step: int) -> None:
    """Split at every byte, and in one piece; afterwards the connection is kept or closed, without a running timer."""
    data, is_kept = ANSWERS[name]

    async def work(sent: SentRequest) -> None:
        for at in range(0, len(data), step):
            sent.connection.data_received(data[at : at + step])
        assert (await sent.connection.head()).status == 200
        assert await sent.read_all() == b"hi"
        sent.connection.release()
        sent.watch.abort()
        assert sent.is_kept == is_kept
        assert sent.wire.is_aborted != is_kept

    with_request(work)


def test_a_response_that_ends_with_the_connection() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(HEAD + b"\r\nhi")
        sent.connection.connection_lost(None)
        assert await sent.read_all() == b"hi"
        assert not sent.is_kept

    with_request(work)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", None),
        (HEAD[:5], None),
        (HEAD + b"\r\nhi", ConnectionResetError(104, "reset")),
        (HEAD + b"content-length: 5\r\n\r\nhi", None),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", None),
    ],
)
def test_an_incomplete_response(data: bytes, error: Exception | None) -> None:
    async def work(sent: SentRequest) -> None:
        if data:
            sent.connection.data_received(data)
        sent.connection.connection_lost(error)
        with pytest.raises(ConnectionBroken):
            await sent.head_and_body()
        with pytest.raises(ConnectionBroken, match="closed"):
            sent.connection.send([b"again"], RequestWatchdog(1, 1))
        assert len(sent.pool) == 0

    with_request(work)


def test_an_aborted_response_is_not_complete() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(HEAD + b"\r\n")
        sent.connection.abort()
        sent.connection.connection_lost(None)
        with pytest.raises(ConnectionBroken, match="aborted"):
            await sent.connection.read()

    with_request(work)


def test_a_reader_is_always_woken() -> None:
    async def work(_: SentRequest) -> None:
        ends: tuple[Callable[[SentRequest], object], ...] = (
            lambda sent: sent.connection.data_received(b"more"),
            lambda sent: sent.connection.connection_lost(None),
            lambda sent: sent.connection.abort(),
            lambda sent: sent.watch.abort(),
        )
        for end in ends:
            sent = SentRequest()
            sent.connection.data_received(HEAD + b"content-length: 4\r\n\r\n")
            reading = start(sent.connection.read())
            await asyncio.sleep(0)
            end(sent)
            await asyncio.wait({reading}, timeout=1)
            assert reading.done()
            reading.exception()

    with_request(work)


def test_invalid_data_closes_the_connection() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(b"220 mail.test ESMTP\r\n")
        with pytest.raises(ConnectionBroken, match="not HTTP"):
            await sent.connection.head()
        assert sent.wire.is_aborted

    with_request(work)


@pytest.mark.parametrize(("count", "is_taken"), [(200, True), (201, False)])
def test_the_number_of_headers_is_limited(count: int, is_taken: bool) -> None:
    async def work(sent: SentRequest) -> None:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(count - 1))
        sent.connection.data_received(HEAD + lines + b"content-length: 0\r\n\r\n")
        if is_taken:
            assert len((await sent.connection.head()).headers) == count
        else:
            with pytest.raises(ConnectionBroken):
                await sent.connection.head()

    with_request(work)


def test_unread_data_pauses_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_MAX_UNREAD", 4)

    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(HEAD + b"content-length: 20\r\n\r\n" + b"1234")
        assert sent.wire.pauses == []
        sent.connection.data_received(b"5")
        sent.connection.data_received(b"6")
        assert sent.wire.pauses == ["pause"]
        assert sent.connection.has_unread
        assert await sent.connection.read() == b"123456"
        assert sent.wire.pauses == ["pause", "resume"]
        assert [sent.connection.has_unread] == [False]
        sent.connection.data_received(b"789012")
        sent.connection.release()
        assert sent.wire.pauses == ["pause", "resume", "pause", "resume"], "the rest may still come"

    with_request(work)


def test_reading_pauses_every_time_the_caller_does_not_keep_up() -> None:
    """Not only the first time."""

    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(HEAD + b"\r\n")
        for turn in range(1, 4):
            for _ in range(3):
                sent.connection.data_received(b"x" * 200_000)
            assert sent.wire.pauses == ["pause", "resume"] * (turn - 1) + ["pause"]
            assert len(await sent.connection.read()) == 600_000
            assert sent.wire.pauses == ["pause", "resume"] * turn

    with_request(work)


def test_the_rest_of_an_abandoned_response_is_drained_for_a_moment() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(HEAD + b"content-length: 4\r\n\r\nhi")
        await sent.connection.read()
        sent.connection.release()
        sent.connection.release()
        sent.watch.finish()
        await pass_time(DRAIN_SECONDS - 0.1)
        assert not sent.wire.is_aborted
        sent.connection.data_received(b"ho")
        await pass_time(DRAIN_SECONDS)
        assert sent.is_kept
        late = SentRequest()
        late.connection.data_received(HEAD + b"content-length: 4\r\n\r\nhi")
        late.connection.release()
        late.watch.finish()
        await pass_time(DRAIN_SECONDS + 0.1)
        assert late.wire.is_aborted
        assert not late.is_kept

    with_request(work)


def test_an_unused_connection_is_closed_after_a_while() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(WHOLE)
        await sent.read_all()
        sent.connection.release()
        sent.watch.finish()
        await pass_time(KEEP_SECONDS - 0.1)
        kept = sent.pool.pop_idle(ORIGIN)
        assert kept is sent.connection
        kept.send([b"again"], RequestWatchdog(300, 300))
        await pass_time(10)
        assert [sent.wire.is_aborted] == [False], "it is in use"
        kept.data_received(WHOLE)
        await sent.read_all()
        kept.release()
        await pass_time(KEEP_SECONDS + 0.1)
        assert sent.wire.is_aborted
        assert not sent.is_kept

    with_request(work)


def test_unsolicited_data_closes_the_connection() -> None:
    async def work(sent: SentRequest) -> None:
        sent.connection.data_received(WHOLE)
        await sent.read_all()
        sent.connection.release()
        sent.connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert sent.wire.is_aborted
        assert not sent.is_kept
        chatty = SentRequest()
        chatty.connection.data_received(WHOLE + WHOLE)
        assert await chatty.read_all() == b"hi"
        chatty.connection.release()
        assert not chatty.is_kept

    with_request(work)


def test_a_request_that_is_over_sends_nothing() -> None:
    async def work(sent: SentRequest) -> None:
        assert sent.wire.sent == [b"ask"]
        over = SentRequest()
        over.wire.sent.clear()
        over.connection.data_received(WHOLE)
        await over.read_all()
        over.connection.release()
        ended = RequestWatchdog(1, 1)
        ended.abort()
        over.connection.send([b"late"], ended)
        assert over.wire.sent == []
        assert over.wire.is_aborted

    with_request(work)


def test_received_data_update_the_watchdog() -> None:
    async def work(sent: SentRequest) -> None:
        await pass_time(5)
        sent.connection.data_received(HEAD + b"content-length: 4\r\n\r\n")
        assert (sent.watch.last, sent.watch.has_begun) == (5, False)
        await pass_time(5)
        sent.connection.data_received(b"hi")
        assert (sent.watch.last, sent.watch.has_begun) == (10, True)
        assert sent.connection.has_received

    with_request(work)


# Requests without a watchdog of the caller


class CountedWatchdog(RequestWatchdog):
    """Records all created watchdogs."""

    made: list["CountedWatchdog"]

    def __init__(self, first_byte: float, between: float) -> None:
        super().__init__(first_byte, between)
        self.made.append(self)


@pytest.mark.parametrize("ending", ["answered", "not reached", "broken", "cancelled"])
async def test_a_default_watchdog_ends_with_its_request(
    ending: str, reserved_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer outlives a request, however it ends."""
    made: list[CountedWatchdog] = []
    monkeypatch.setattr(CountedWatchdog, "made", made, raising=False)
    monkeypatch.setattr(httpx_transport, "RequestWatchdog", CountedWatchdog)
    is_asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        is_asked.set()
        if ending == "cancelled":
            await reader.read()
        else:
            writer.write(WHOLE if ending == "answered" else b"nonsense\r\n\r\n")
        writer.close()

    async with stream_server(serve) as port, httpx_transport.make_client(is_direct=True) as client:
        asking = start(client.get(f"http://127.0.0.1:{reserved_port if ending == 'not reached' else port}/"))
        if ending == "cancelled":
            await is_asked.wait()
            asking.cancel()
        await asyncio.wait({asking})
        if ending == "answered":
            assert asking.result().text == "hi"
        elif ending != "cancelled":
            assert isinstance(asking.exception(), httpx2.TransportError)
        assert [watch.is_over for watch in made] == [True]
