"""Connections through a proxy use httpx2 and meet the same requirements."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.model_requests import FinishedPart
from holdfast.providers.adapter_config import ModelAccess
from holdfast.testing.gates import Gate, start
from model_server.script import Reply, Say
from model_server.server import ModelServer
from providers.adapters import ALL, LIBRARIES, AdapterCase, collect, prompt, read_to_end, serving
from stream_servers import stream_server

pytestmark = LIBRARIES

adapters = pytest.mark.parametrize("adapter", [item for item in ALL if item.name in ("compatible", "gemini")], ids=str)


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Resolve all names to this machine."""
    head = await reader.readuntil(b"\r\n")
    method, target, version = head.decode().split()
    url = urlsplit(target)
    there, back = await asyncio.open_connection("127.0.0.1", url.port)
    back.write(f"{method} {url.path}?{url.query} {version}\r\n".encode())
    try:
        await asyncio.gather(copy_stream(reader, back), copy_stream(there, writer))
    finally:
        back.close()


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with stream_server(forward) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield


@asynccontextmanager
async def behind_proxy(reply: Reply, adapter: AdapterCase) -> AsyncIterator[tuple[ModelServer, str]]:
    """Serve the reply and yield the server with an address that only the proxy can resolve."""
    async with serving(reply) as server:
        yield server, server.base_url(adapter.wire).replace("127.0.0.1", "provider.test")


@adapters
@pytest.mark.usefixtures("proxy")
async def test_responses_pass_a_proxy(adapter: AdapterCase) -> None:
    async with behind_proxy(Reply((Say(("one",)),)), adapter) as (_, url):
        assert (await collect(adapter.on(url)))[-1] == FinishedPart("stop")


@adapters
@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("early", [True, False], ids=["before headers", "in the middle"])
async def test_ending_the_iteration_closes_the_connection(adapter: AdapterCase, *, early: bool) -> None:
    gate = Gate()
    reply = Reply((Say(("one",)),), before_head=gate) if early else Reply((Say(("one",)), gate, Say(("two",))))
    async with behind_proxy(reply, adapter) as (server, url):
        reading = start(read_to_end(adapter.on(url).stream(prompt())))
        await gate.reached.wait()
        reading.cancel()
        await asyncio.wait({reading})
        await (await server.request()).hung_up.wait()


@adapters
@pytest.mark.usefixtures("proxy")
async def test_silence_ends_in_a_stall(adapter: AdapterCase) -> None:
    async with behind_proxy(Reply((Say(("one",)), Gate(), Say(("two",)))), adapter) as (server, url):
        with pytest.raises(ProviderError) as caught:
            await collect(adapter.on(url, access=ModelAccess(first_byte=30, between=0.05)))
        assert caught.value.trouble == "stalled"
        await (await server.request()).hung_up.wait()
