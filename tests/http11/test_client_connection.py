"""A connection in each of its states: reuse, closing, and remaining timers. In virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import httpx2
import pytest

from holdfast.http11 import client_connection
from holdfast.http11.client_connection import DRAIN_SECONDS, Connection, ConnectionPool, Origin, RequestWatchdog
from holdfast.http11.messages import ConnectionBroken
from holdfast.providers import httpx_transport
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import in_virtual_time
from stream_servers import stream_server

ORIGIN = Origin("127.0.0.1", 80, is_secure=False)
KEEP_SECONDS = 50.0
HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"content-length: 2\r\n\r\nhi"


async def pass_time(seconds: float) -> None:
    """Of the virtual clock: nobody waits."""
    await asyncio.sleep(seconds)


class Wire:
    """A transport that only notes what it is told."""

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


class Stage:
    """A connection on such a wire, with one request sent."""

    def __init__(self) -> None:
        self.pool = ConnectionPool()
        self.connection = Connection(ORIGIN, self.pool)
        self.wire = Wire()
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


def on_stage(work: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await work(Stage())

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
def test_a_complete_response(name: str, step: int) -> None:
    """Cut at every byte, and in one piece; afterwards the connection is kept or closed, and nothing watches it."""
    data, is_kept = ANSWERS[name]

    async def work(stage: Stage) -> None:
        for at in range(0, len(data), step):
            stage.connection.data_received(data[at : at + step])
        assert (await stage.connection.head()).status == 200
        assert await stage.read_all() == b"hi"
        stage.connection.release()
        stage.watch.abort()
        assert stage.is_kept == is_kept
        assert stage.wire.is_aborted != is_kept

    on_stage(work)


def test_a_response_that_ends_with_the_connection() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(HEAD + b"\r\nhi")
        stage.connection.connection_lost(None)
        assert await stage.read_all() == b"hi"
        assert not stage.is_kept

    on_stage(work)


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
    async def work(stage: Stage) -> None:
        if data:
            stage.connection.data_received(data)
        stage.connection.connection_lost(error)
        with pytest.raises(ConnectionBroken):
            await stage.head_and_body()
        with pytest.raises(ConnectionBroken, match="closed"):
            stage.connection.send([b"again"], RequestWatchdog(1, 1))
        assert len(stage.pool) == 0

    on_stage(work)


def test_an_aborted_response_is_not_complete() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(HEAD + b"\r\n")
        stage.connection.abort()
        stage.connection.connection_lost(None)
        with pytest.raises(ConnectionBroken, match="aborted"):
            await stage.connection.read()

    on_stage(work)


def test_a_reader_is_always_woken() -> None:
    async def work(_: Stage) -> None:
        ends: tuple[Callable[[Stage], object], ...] = (
            lambda stage: stage.connection.data_received(b"more"),
            lambda stage: stage.connection.connection_lost(None),
            lambda stage: stage.connection.abort(),
            lambda stage: stage.watch.abort(),
        )
        for end in ends:
            stage = Stage()
            stage.connection.data_received(HEAD + b"content-length: 4\r\n\r\n")
            reading = start(stage.connection.read())
            await asyncio.sleep(0)
            end(stage)
            await asyncio.wait({reading}, timeout=1)
            assert reading.done()
            reading.exception()

    on_stage(work)


def test_invalid_data_closes_the_connection() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(b"220 mail.test ESMTP\r\n")
        with pytest.raises(ConnectionBroken, match="not HTTP"):
            await stage.connection.head()
        assert stage.wire.is_aborted

    on_stage(work)


@pytest.mark.parametrize(("count", "is_taken"), [(200, True), (201, False)])
def test_the_number_of_headers_is_limited(count: int, is_taken: bool) -> None:
    async def work(stage: Stage) -> None:
        lines = b"".join(b"x-%d: y\r\n" % number for number in range(count - 1))
        stage.connection.data_received(HEAD + lines + b"content-length: 0\r\n\r\n")
        if is_taken:
            assert len((await stage.connection.head()).headers) == count
        else:
            with pytest.raises(ConnectionBroken):
                await stage.connection.head()

    on_stage(work)


def test_unread_data_pauses_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "_MAX_UNREAD", 4)

    async def work(stage: Stage) -> None:
        stage.connection.data_received(HEAD + b"content-length: 20\r\n\r\n" + b"1234")
        assert stage.wire.pauses == []
        stage.connection.data_received(b"5")
        stage.connection.data_received(b"6")
        assert stage.wire.pauses == ["pause"]
        assert stage.connection.has_unread
        assert await stage.connection.read() == b"123456"
        assert stage.wire.pauses == ["pause", "resume"]
        assert [stage.connection.has_unread] == [False]
        stage.connection.data_received(b"789012")
        stage.connection.release()
        assert stage.wire.pauses == ["pause", "resume", "pause", "resume"], "the rest may still come"

    on_stage(work)


def test_reading_pauses_whenever_the_user_does_not_keep_up() -> None:
    """Not only the first time."""

    async def work(stage: Stage) -> None:
        stage.connection.data_received(HEAD + b"\r\n")
        for turn in range(1, 4):
            for _ in range(3):
                stage.connection.data_received(b"x" * 200_000)
            assert stage.wire.pauses == ["pause", "resume"] * (turn - 1) + ["pause"]
            assert len(await stage.connection.read()) == 600_000
            assert stage.wire.pauses == ["pause", "resume"] * turn

    on_stage(work)


def test_the_rest_of_an_abandoned_response_is_drained_for_a_moment() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(HEAD + b"content-length: 4\r\n\r\nhi")
        await stage.connection.read()
        stage.connection.release()
        stage.connection.release()
        stage.watch.finish()
        await pass_time(DRAIN_SECONDS - 0.1)
        assert not stage.wire.is_aborted
        stage.connection.data_received(b"ho")
        await pass_time(DRAIN_SECONDS)
        assert stage.is_kept
        late = Stage()
        late.connection.data_received(HEAD + b"content-length: 4\r\n\r\nhi")
        late.connection.release()
        late.watch.finish()
        await pass_time(DRAIN_SECONDS + 0.1)
        assert late.wire.is_aborted
        assert not late.is_kept

    on_stage(work)


def test_an_unused_connection_is_closed_after_a_while() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(WHOLE)
        await stage.read_all()
        stage.connection.release()
        stage.watch.finish()
        await pass_time(KEEP_SECONDS - 0.1)
        kept = stage.pool.pop_idle(ORIGIN)
        assert kept is stage.connection
        kept.send([b"again"], RequestWatchdog(300, 300))
        await pass_time(10)
        assert [stage.wire.is_aborted] == [False], "it is in use"
        kept.data_received(WHOLE)
        await stage.read_all()
        kept.release()
        await pass_time(KEEP_SECONDS + 0.1)
        assert stage.wire.is_aborted
        assert not stage.is_kept

    on_stage(work)


def test_unsolicited_data_closes_the_connection() -> None:
    async def work(stage: Stage) -> None:
        stage.connection.data_received(WHOLE)
        await stage.read_all()
        stage.connection.release()
        stage.connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert stage.wire.is_aborted
        assert not stage.is_kept
        chatty = Stage()
        chatty.connection.data_received(WHOLE + WHOLE)
        assert await chatty.read_all() == b"hi"
        chatty.connection.release()
        assert not chatty.is_kept

    on_stage(work)


def test_a_request_that_is_over_sends_nothing() -> None:
    async def work(stage: Stage) -> None:
        assert stage.wire.sent == [b"ask"]
        over = Stage()
        over.wire.sent.clear()
        over.connection.data_received(WHOLE)
        await over.read_all()
        over.connection.release()
        ended = RequestWatchdog(1, 1)
        ended.abort()
        over.connection.send([b"late"], ended)
        assert over.wire.sent == []
        assert over.wire.is_aborted

    on_stage(work)


def test_received_data_update_the_watchdog() -> None:
    async def work(stage: Stage) -> None:
        await pass_time(5)
        stage.connection.data_received(HEAD + b"content-length: 4\r\n\r\n")
        assert (stage.watch.last, stage.watch.has_begun) == (5, False)
        await pass_time(5)
        stage.connection.data_received(b"hi")
        assert (stage.watch.last, stage.watch.has_begun) == (10, True)
        assert stage.connection.has_received

    on_stage(work)


# Requests that nobody else watches


class Counted(RequestWatchdog):
    """Remembers all that were made."""

    made: list["Counted"]

    def __init__(self, first_byte: float, between: float) -> None:
        super().__init__(first_byte, between)
        self.made.append(self)


@pytest.mark.parametrize("ending", ["answered", "not reached", "broken", "cancelled"])
async def test_a_default_watchdog_ends_with_its_request(
    ending: str, reserved_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer outlives a request, however it ends."""
    made: list[Counted] = []
    monkeypatch.setattr(Counted, "made", made, raising=False)
    monkeypatch.setattr(httpx_transport, "RequestWatchdog", Counted)
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
