"""R6 in the client: each numbered event is returned once and in order, whatever happens to connections."""

import asyncio
from collections.abc import Iterator
from itertools import chain, repeat
from random import Random

import pytest

from client.scripted_server import (
    Exchange,
    ScriptedServer,
    StreamServer,
    answer,
    chunk,
    frame_of,
    session_event,
    stream_head,
)
from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent, UnknownEvent
from holdfast.client.stream import EventStream
from holdfast.domain.events import Gap, GapEvent, Hello, HelloEvent, encode_event
from holdfast.domain.ids import WorkspaceId
from holdfast.http11.sse import HEARTBEAT, frame
from holdfast.testing.gates import settle_down, start, until

W = WorkspaceId("w")
NUMBERS = [1, 2, 3, 10_004, 10_005]
LOG = [(number, encode_event(session_event(f"s{number}ü"))) for number in NUMBERS]
HELLO = frame_of(HelloEvent(Hello(10_005, 1, 1)))


def no_delay() -> Backoff:
    return Backoff(lambda: 0.0, initial=0.0)


async def numbered(stream: EventStream, last: int) -> list[StreamEvent]:
    """Return items up to the one with the last number, without hellos."""
    items: list[StreamEvent] = []
    async for item in stream:
        if not isinstance(item.event, HelloEvent):
            items.append(item)
        if item.number == last:
            break
    return items


async def follow(cuts: Iterator[int | None], since: int = 0) -> tuple[list[StreamEvent], StreamServer]:
    server = StreamServer(LOG, cuts)
    async with (
        ScriptedServer(server) as address,
        Client(address) as client,
        client.events(W, since=since, backoff=no_delay()) as stream,
    ):
        return await numbered(stream, NUMBERS[-1]), server


async def whole() -> list[StreamEvent]:
    items, _ = await follow(iter(()))
    assert [item.number for item in items] == NUMBERS
    return items


async def test_r6_cut_at_every_event_boundary() -> None:
    """Each connection delivers one more event, then breaks; together they equal one connection."""
    expected = await whole()
    items, server = await follow(iter([len(HELLO) + len(frame(body, number)) for number, body in LOG]))
    assert items == expected
    assert server.asked_since == [0, *NUMBERS[:-1]]


async def test_r6_cut_at_every_byte() -> None:
    expected = (await whole())[2:4]
    raw = HELLO + b"".join(frame(body, number) for number, body in LOG[2:4])
    cuts = chain.from_iterable((place, None) for place in range(len(raw)))
    async with ScriptedServer(StreamServer(LOG[:4], cuts)) as address, Client(address) as client:
        for place in range(len(raw)):
            async with client.events(W, since=NUMBERS[1], backoff=no_delay()) as stream:
                assert await numbered(stream, NUMBERS[3]) == expected, place
    assert next(cuts, None) is None, "every one was made"


@pytest.mark.parametrize("seed", range(15))
async def test_r6_cut_at_random_bytes_again_and_again(seed: int) -> None:
    chance = Random(seed)
    expected = await whole()
    items, _ = await follow(iter([chance.randint(0, 1200) for _ in range(20)]))
    assert items == expected


async def test_r6_only_events_after_the_cursor_are_returned() -> None:
    items, _ = await follow(iter(()), since=3)
    assert [item.number for item in items] == [10_004, 10_005]


async def test_r6_repeated_events_are_dropped() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head())
        for number in (2, 1, 3, 3, 4):
            await exchange.send(chunk(frame_of(session_event("s"), number)))
        await exchange.wait_for_disconnect()

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=1, backoff=no_delay()) as stream,
    ):
        assert [item.number for item in await numbered(stream, 4)] == [2, 3, 4]


async def test_gap_is_returned_and_stream_continues() -> None:
    asked: list[str] = []

    async def script(exchange: Exchange) -> None:
        request = await exchange.asked()
        assert request is not None
        asked.append(request.query["since"])
        raw = HELLO
        if exchange.number == 0:
            raw += frame_of(GapEvent(Gap(70, 60, 1)))
        else:
            raw += frame_of(session_event("s"), 71)
        await exchange.send(stream_head() + chunk(raw))
        if exchange.number:
            await exchange.wait_for_disconnect()

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=5, backoff=no_delay()) as stream,
    ):
        first = await anext(stream)
        assert isinstance(first.event, HelloEvent)
        gap = await anext(stream)
        assert isinstance(gap.event, GapEvent)
        assert stream.cursor == 70
        await numbered(stream, 71)
    assert asked == ["5", "70"]
    assert stream.cursor == 71


async def test_unknown_workspace_ends_stream() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        if exchange.number == 0:
            await exchange.send(stream_head() + chunk(HELLO + frame_of(session_event("s"), 6)) + b"0\r\n\r\n")
        else:
            await exchange.send(answer(b'{"message":"no such workspace"}', 404))

    async with ScriptedServer(script) as address, Client(address) as client:
        stream = client.events(W, since=0, backoff=no_delay())
        items = [item async for item in stream]
        assert [item.number for item in items] == [None, 6]
        assert (stream.is_workspace_gone, stream.cursor) == (True, 6)


@pytest.mark.parametrize("status", [409, 500, 503])
async def test_a_failing_server_is_retried(status: int) -> None:
    server = StreamServer(LOG, iter(()))

    async def script(exchange: Exchange) -> None:
        if exchange.number < 3:
            await exchange.asked()
            await exchange.send(answer(b'{"message":"wait"}', status))
        else:
            await server(exchange)

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=0, backoff=no_delay()) as stream,
    ):
        assert [item.number for item in await numbered(stream, NUMBERS[-1])] == NUMBERS
        assert stream.trouble is None


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_permanent_error_is_raised(status: int) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(b'{"message":"no"}', status))

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=0, backoff=no_delay()) as stream,
    ):
        with pytest.raises(ServerProblem, match="no"):
            await anext(stream)


async def test_a_quiet_connection_is_replaced() -> None:
    server = StreamServer(LOG, iter(()))

    async def script(exchange: Exchange) -> None:
        if exchange.number == 0:
            await exchange.asked()
            await exchange.send(stream_head() + chunk(HELLO))
            await exchange.wait_for_disconnect()
        else:
            await server(exchange)

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=0, backoff=no_delay(), quiet_seconds=0.01) as stream,
    ):
        assert [item.number for item in await numbered(stream, NUMBERS[-1])] == NUMBERS


async def test_heartbeats_keep_the_stream_alive_and_are_not_returned() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head() + chunk(b": welcome\n\n") + chunk(HELLO))
        for _ in range(5):
            await exchange.send(chunk(HEARTBEAT))
        await exchange.send(chunk(frame_of(session_event("s"), 1)))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client, client.events(W, since=0) as stream:
        assert len(await numbered(stream, 1)) == 1


async def test_unknown_events_do_not_stop_the_stream() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        raw = frame(b'{"type":"weather","payload":1}', 1) + frame(b"nonsense", 2) + frame_of(session_event("s"), 3)
        await exchange.send(stream_head() + chunk(raw))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client, client.events(W, since=0) as stream:
        items = await numbered(stream, 3)
    assert items[:2] == [StreamEvent(UnknownEvent("weather", 1), 1), StreamEvent(UnknownEvent(""), 2)]


async def test_closing_ends_a_wait_for_an_event() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head() + chunk(HELLO))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client:
        stream = client.events(W, since=0)
        await anext(stream)
        waiting = start(collect(stream))
        await settle_down()
        await stream.close()
        assert await waiting == []


async def collect(stream: EventStream) -> list[StreamEvent]:
    return [item async for item in stream]


async def test_closing_ends_a_connection_attempt() -> None:
    reached = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        reached.set()
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client:
        stream = client.events(W, since=0)
        waiting = start(collect(stream))
        await reached.wait()
        await stream.close()
        assert await waiting == []


async def test_closing_ends_a_retry_delay() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()

    async with ScriptedServer(script) as address, Client(address) as client:
        stream = client.events(W, since=0, backoff=Backoff(lambda: 1.0, initial=1000.0, maximum=1000.0))
        waiting = start(collect(stream))
        await until(lambda: stream.trouble is not None)
        await stream.close()
        assert await waiting == []


async def test_a_cancelled_step_loses_nothing() -> None:
    """The reader times out repeatedly; each number is still returned once."""
    server = StreamServer(LOG, chain([300, 700], repeat(None)))
    items: list[StreamEvent] = []
    chance = Random(1)
    async with (
        ScriptedServer(server) as address,
        Client(address) as client,
        client.events(W, since=0, backoff=no_delay()) as stream,
    ):
        while not items or items[-1].number != NUMBERS[-1]:
            step = start(anext(stream))
            for _ in range(chance.randint(0, 12)):
                await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait([step])
            if not step.cancelled():
                items.append(step.result())
    assert [item.number for item in items if item.number is not None] == NUMBERS


async def test_retry_delays_grow_and_are_reset_by_a_hello() -> None:
    """Nothing earlier resets them: a server that stops accepts connections, and even requests, that it then closes."""
    waits: list[float] = []

    class Noted(Backoff):
        def wait(self) -> float:
            waits.append(super().wait())
            return 0.0

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        if exchange.number in (1, 4):
            await exchange.send(stream_head())
        elif exchange.number == 3:
            await exchange.send(stream_head() + chunk(HELLO))
        elif exchange.number == 5:
            await exchange.send(stream_head() + chunk(frame_of(session_event("s"), 1)))
            await exchange.wait_for_disconnect()

    async with (
        ScriptedServer(script) as address,
        Client(address) as client,
        client.events(W, since=0, backoff=Noted(lambda: 1.0)) as stream,
    ):
        await numbered(stream, 1)
    assert waits == [0.25, 0.5, 1.0, 0.25, 0.5]


async def test_a_stream_outlives_its_client() -> None:
    """It is closed by its owner only."""
    is_closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head() + chunk(HELLO))
        await is_closed.wait()
        await exchange.send(chunk(frame_of(session_event("s"), 1)))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address:
        client = Client(address)
        async with client.events(W, since=0, backoff=no_delay()) as stream:
            assert isinstance((await anext(stream)).event, HelloEvent)
            await client.close()
            is_closed.set()
            assert (await anext(stream)).number == 1


@pytest.mark.parametrize("sent", [b"", stream_head()], ids=["before its response", "within it"])
async def test_a_cancelled_request_closes_its_connection(sent: bytes) -> None:
    """The rest of the response may still come: no other request may receive it, and the server need not send it."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(sent)
        asked.set()
        await exchange.wait_for_disconnect()
        gone.set()

    async with ScriptedServer(script) as address, Client(address) as client:
        request = start(client.get_workspace(W))
        await asked.wait()
        await settle_down()
        request.cancel()
        await asyncio.wait([request])
        await gone.wait()
