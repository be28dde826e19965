"""Connections through a proxy are those of httpx2 and meet the same requirements."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.model_requests import FinishedPart
from holdfast.providers.model_access import ModelAccess
from holdfast.testing.gates import Gate, start
from model_server.script import Reply, Say
from model_server.server import ModelServer
from providers.stand import ALL, LIBRARIES, Subject, collect, prompt, read_on, serving
from stream_servers import stream_server

pytestmark = LIBRARIES

subjects = pytest.mark.parametrize("subject", [item for item in ALL if item.name in ("compatible", "gemini")], ids=str)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All names are this machine's."""
    head = await reader.readuntil(b"\r\n")
    method, target, version = head.decode().split()
    asked = urlsplit(target)
    there, back = await asyncio.open_connection("127.0.0.1", asked.port)
    back.write(f"{method} {asked.path}?{asked.query} {version}\r\n".encode())
    try:
        await asyncio.gather(carry(reader, back), carry(there, writer))
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
async def beyond(reply: Reply, subject: Subject) -> AsyncIterator[tuple[ModelServer, str]]:
    """A server and its address, which only the proxy can find."""
    async with serving(reply) as server:
        yield server, server.base_url(subject.wire).replace("127.0.0.1", "provider.test")


@subjects
@pytest.mark.usefixtures("proxy")
async def test_responses_pass_a_proxy(subject: Subject) -> None:
    async with beyond(Reply((Say(("one",)),)), subject) as (_, url):
        assert (await collect(subject.on(url)))[-1] == FinishedPart("stop")


@subjects
@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("early", [True, False], ids=["before headers", "in the middle"])
async def test_ending_the_iteration_closes_the_connection(subject: Subject, *, early: bool) -> None:
    gate = Gate()
    reply = Reply((Say(("one",)),), before_head=gate) if early else Reply((Say(("one",)), gate, Say(("two",))))
    async with beyond(reply, subject) as (server, url):
        reading = start(read_on(subject.on(url).stream(prompt())))
        await gate.reached.wait()
        reading.cancel()
        await asyncio.wait({reading})
        await (await server.request()).hung_up.wait()


@subjects
@pytest.mark.usefixtures("proxy")
async def test_silence_ends_in_a_stall(subject: Subject) -> None:
    async with beyond(Reply((Say(("one",)), Gate(), Say(("two",)))), subject) as (server, url):
        with pytest.raises(ProviderError) as caught:
            await collect(subject.on(url, access=ModelAccess(first_byte=30, between=0.05)))
        assert caught.value.trouble == "stalled"
        await (await server.request()).hung_up.wait()
