"""Set-up for adapter tests: each adapter with each of its wires, against a local server."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import msgspec
import pytest

from holdfast.domain.ids import MessageId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Part, Role, Text, TextPart
from holdfast.domain.model_requests import (
    ModelInfo,
    ModelRequest,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolSpec,
)
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.pydantic_ai import PydanticModel
from holdfast.providers.shared_http_clients import close_connections
from model_server.bedrock import event_message
from model_server.script import Reply, event
from model_server.server import ModelServer, RecordedRequest, Wire

__all__ = [
    "ALL",
    "COMPATIBLE",
    "END_MARKERS",
    "KEY",
    "LIBRARIES",
    "STREAM_ERRORS",
    "Adapter",
    "AdapterCase",
    "collect",
    "message",
    "prompt",
    "read_to_end",
    "serving",
    "shape",
]

LIBRARIES = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning"),
]
"""The provider libraries are large: the first test of each imports one. Some of their code emits warnings."""
KEY = "canary-3f9a1c77d2"
_AWS = {"region": "us-east-1", "access_key_id": "AKIDEXAMPLE", "secret_access_key": KEY}
_SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}}}'


class Adapter(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]: ...


class AdapterCase(msgspec.Struct, frozen=True):
    """An adapter on a wire."""

    name: str
    wire: Wire
    model: str
    make: Callable[[ModelInfo, ModelAccess, Selection], Adapter]
    path: str = "/v1"
    key: str = KEY
    extras: dict[str, str] = {}

    def __str__(self) -> str:
        return self.name

    def on(self, url: str, *, selection: Selection | None = None, access: ModelAccess | None = None) -> Adapter:
        info = ModelInfo("acme", self.model, can_reason=True, reasoning_levels=("low", "high"), supports_images=True)
        address = url.removesuffix("/v1") + self.path if url.endswith("/v1") else url
        reach = msgspec.structs.replace(access or ModelAccess(), base_url=address, api_key=self.key, extras=self.extras)
        return self.make(info, reach, selection or Selection())


def _sdk(kind: str) -> Callable[[ModelInfo, ModelAccess, Selection], Adapter]:
    return lambda info, access, selection: PydanticModel(info, access, selection, kind=kind)


COMPATIBLE = AdapterCase("compatible", "chat", "m", CompatibleModel)
ALL = (
    COMPATIBLE,
    AdapterCase("openai-chat", "chat", "gpt-5", _sdk("openai-chat")),
    AdapterCase("openai-responses", "responses", "gpt-5", _sdk("openai-responses")),
    AdapterCase("anthropic", "anthropic", "claude-opus-x", _sdk("anthropic")),
    AdapterCase("gemini", "gemini", "gemini-2.5-pro", _sdk("gemini")),
    AdapterCase("vertexai", "gemini", "gemini-2.5-pro", _sdk("vertexai")),
    AdapterCase("azure", "chat", "gpt-4.1", _sdk("azure"), "/openai/v1"),
    AdapterCase("mistral", "mistral", "m", _sdk("mistral")),
    AdapterCase("bedrock", "bedrock", "anthropic.claude-opus-x", _sdk("bedrock"), key="", extras=_AWS),
)


END_MARKERS: dict[Wire, tuple[bytes, ...]] = {
    "chat": (b'"finish_reason":"tool_calls"',),
    "responses": (b'"type":"response.completed"',),
    "anthropic": (b'"stop_reason":"tool_use"',),
    "gemini": (b'"finishReason":"STOP"',),
    "mistral": (b'"finish_reason":"tool_calls"',),
    "bedrock": (b'"stopReason":"tool_use"',),
}
"""How each wire marks the end of a complete response."""

STREAM_ERRORS: dict[Wire, bytes] = {
    "chat": event({"error": {"message": f"The server is overloaded, {KEY}", "code": 503}}),
    "responses": event({"type": "error", "code": "server_error", "message": f"overloaded {KEY}", "param": None}),
    "anthropic": event(
        {"type": "error", "error": {"type": "overloaded_error", "message": f"Overloaded {KEY}"}}, "error"
    ),
    "gemini": event({"error": {"code": 503, "status": "UNAVAILABLE", "message": f"The model is overloaded {KEY}"}}),
    "mistral": event({"object": "error", "message": f"Service unavailable, overloaded {KEY}", "code": "3505"}),
    "bedrock": event_message("serviceUnavailableException", {"message": f"The model is overloaded {KEY}"}, "exception"),
}
"""How each wire reports an overload in the middle of a response."""


def message(role: Role, *parts: Part, id: str = "m1", model: str = "", provider: str = "") -> Message:
    return Message(parts, MessageId(id), role, SessionId("s1"), model, provider, 0, 0)


def prompt(*messages: Message) -> ModelRequest:
    sent = messages or (message("user", TextPart(Text("What is here?"))),)
    return ModelRequest(SessionId("s1"), "Be brief.", sent, (ToolSpec("ls", "Lists a directory.", _SCHEMA),), 1_000)


@asynccontextmanager
async def serving(
    *replies: Reply, script: Callable[[RecordedRequest], Reply] | None = None
) -> AsyncIterator[ModelServer]:
    """Serve the replies; at the end no connection of this loop is left open."""
    async with ModelServer(script or replies) as server:
        try:
            yield server
        finally:
            await close_connections()


async def read_to_end(stream: AsyncGenerator[StreamPart, None]) -> None:
    """Read to the end, or until the task is cancelled."""
    async with aclosing(stream):
        async for _ in stream:
            pass


async def collect(model: Adapter, request: ModelRequest | None = None) -> list[StreamPart]:
    return [part async for part in model.stream(request or prompt())]


def shape(parts: list[StreamPart]) -> list[tuple[str, str]]:
    """Return the parts with growing ones joined, independently of chunk boundaries."""
    out: list[tuple[str, str]] = []
    names: dict[ToolCallId, int] = {}
    for part in parts:
        match part:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                kind = "text" if isinstance(part, TextDelta) else "reasoning"
                if out and out[-1][0] == kind:
                    out[-1] = (kind, out[-1][1] + text)
                else:
                    out.append((kind, text))
            case ReasoningSignature(signature=signature):
                out.append(("signature", signature))
            case RedactedReasoning(data=data):
                out.append(("redacted", data))
            case ToolCallStart(id=id, name=name):
                names[id] = len(out)
                out.append((f"call {id} {name}", ""))
            case ToolCallDelta(id=id, text=text):
                index = names[id]
                out[index] = (out[index][0], out[index][1] + text)
            case _:
                out.append((type(part).__name__, repr(part)))
    return out
