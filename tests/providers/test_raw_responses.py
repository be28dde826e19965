"""Provider connections against servers with unusual behaviour, at the level of bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.model_requests import TextDelta
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.shared_http_clients import close_connections
from providers.adapters import COMPATIBLE, collect
from stream_servers import stream_server

BODY = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
KIND = b"content-type: text/event-stream\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
COUNTED = b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)


@asynccontextmanager
async def raw_server(*answers: bytes, closes: bool = False) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that sends these bytes, one after the other; yields the number of requests on each connection."""
    counts: list[int] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(counts)
        counts.append(0)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(sum(map(int, sizes)))
                counts[number] += 1
                writer.write(left.pop(0) if len(left) > 1 else left[0])
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with stream_server(serve) as port:
        try:
            yield f"http://127.0.0.1:{port}/v1", counts
        finally:
            await close_connections()


@pytest.mark.parametrize("rest", [CHUNKED, COUNTED], ids=["chunked", "counted"])
async def test_complete_responses_leave_the_connection_open(rest: bytes) -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n" + KIND + rest) as (url, counts):
        for _ in range(3):
            assert (await collect(COMPATIBLE.on(url)))[0] == TextDelta("hi")
    assert counts == [3]


async def test_a_server_can_request_the_connection_to_be_closed() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + KIND + COUNTED) as (url, counts):
        for _ in range(2):
            await collect(COMPATIBLE.on(url))
    assert counts == [1, 1]


async def test_response_without_a_length_ends_with_the_connection() -> None:
    async with raw_server(b"HTTP/1.0 200 OK\r\n" + KIND + b"\r\n" + BODY, closes=True) as (url, counts):
        assert (await collect(COMPATIBLE.on(url)))[0] == TextDelta("hi")
    assert counts == [1]


async def test_silence_does_not_end_a_response_without_a_length() -> None:
    piece = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    async with raw_server(b"HTTP/1.0 200 OK\r\n" + KIND + b"\r\n" + piece) as (url, _):
        with pytest.raises(ProviderError, match=r"nothing more came for 0\.05 seconds") as caught:
            await collect(COMPATIBLE.on(url, access=ModelAccess(between=0.05)))
    assert caught.value.trouble == "stalled"


async def test_informational_responses_are_skipped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n" + KIND + COUNTED
    async with raw_server(early) as (url, _):
        assert (await collect(COMPATIBLE.on(url)))[0] == TextDelta("hi")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ncontent-le", b""])
async def test_responses_that_are_not_a_stream(answer: bytes) -> None:
    async with raw_server(answer, closes=True) as (url, _):
        with pytest.raises(ProviderError) as caught:
            await collect(COMPATIBLE.on(url))
    assert caught.value.trouble == "connection"


async def test_a_connection_with_unsolicited_data_is_not_reused() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n" + KIND + COUNTED + b"HTTP/1.1 200 OK\r\n\r\n") as (url, counts):
        for _ in range(2):
            assert (await collect(COMPATIBLE.on(url)))[0] == TextDelta("hi")
    assert counts == [1, 1]
