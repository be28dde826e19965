"""Time from a cancel until the provider sees its connection closed: for each adapter, before the response and in
the middle of it. Provider and adapter share a process, so only the adapter is measured.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import uvloop

from bench.figures import Figure, Goal
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.engine.ports import Model
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.pydantic_ai import PydanticModel
from holdfast.providers.shared_http_clients import close_connections
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import Gate
from model_server.script import Reply, Say
from model_server.server import ModelServer, Wire

__all__ = ["measure"]

TRIES = 10
_WAYS: dict[str, tuple[Wire, str]] = {
    "compatible": ("chat", "m"),
    "openai-chat": ("chat", "gpt-5"),
    "openai-responses": ("responses", "gpt-5"),
    "anthropic": ("anthropic", "claude-opus-x"),
    "gemini": ("gemini", "gemini-2.5-pro"),
    "azure": ("chat", "m"),
    "mistral": ("chat", "m"),
    "bedrock": ("chat", "amazon.nova-x"),
}
_KEYS = {"region": "us-east-1", "access_key_id": "AKIDEXAMPLE", "secret_access_key": "none"}


def _model(kind: str, server: ModelServer) -> Model:
    wire, name = _WAYS[kind]
    url = {"azure": f"{server.root}/openai/v1", "bedrock": server.root}.get(kind, server.base_url(wire))
    is_signed = kind == "bedrock"
    access = ModelAccess(url, "" if is_signed else "a-key", extras=_KEYS if is_signed else {}, first_byte=30)
    info = ModelInfo("acme", name)
    if kind == "compatible":
        return CompatibleModel(info, access, Selection())
    return PydanticModel(info, access, Selection(), kind=kind)


def _request() -> ModelRequest:
    asked = Message((TextPart(Text("Go on.")),), MessageId("m"), "user", SessionId("s"), "", "", 0, 0)
    return ModelRequest(SessionId("s"), "Be brief.", (asked,))


async def _rest(stream: AsyncGenerator[StreamPart, None]) -> None:
    async with aclosing(stream):
        async for _ in stream:
            pass


async def _once(kind: str, *, early: bool) -> float:
    """Return the seconds from the cancel until the provider detects it."""
    gate, tasks = Gate(), TaskOwner()
    reply = Reply(raw=(b"",), before_head=gate) if early else Reply((Say(("one",)), gate, Say(("two",))))
    async with ModelServer([reply]) as server:
        reading = tasks.start(_rest(_model(kind, server).stream(_request())), name="read", done=lambda _: None)
        await gate.reached.wait()
        began = time.perf_counter()
        reading.cancel()
        await (await server.request()).hung_up.wait()
        seconds = time.perf_counter() - began
        await asyncio.wait({reading})
        await close_connections()
    return seconds


async def _worst(kind: str) -> float:
    # Bedrock's frames have another format; a cancel in the middle of its responses is covered by tests.
    phases = (True,) if kind == "bedrock" else (True, False)
    await _once(kind, early=True)
    return max([await _once(kind, early=early) for early in phases for _ in range(TRIES)])


async def _bare() -> float:
    """Measure a plain connection that is closed by a process without other work."""
    gate = Gate()
    async with ModelServer([Reply((), before_head=gate)]) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.root.rpartition(":")[2]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await gate.reached.wait()
        began = time.perf_counter()
        writer.transport.abort()
        await (await server.request()).hung_up.wait()
        return time.perf_counter() - began


async def _measure() -> list[Figure]:
    limit = max([await _bare() for _ in range(TRIES)]) * 1e3
    return [
        Figure(f"cancel to hung up, {kind}, worst", await _worst(kind) * 1e3, "ms", limit, "a bare socket", Goal(50))
        for kind in _WAYS
    ]


def measure() -> list[Figure]:
    return uvloop.run(_measure())
