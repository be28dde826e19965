"""What the tests of the adapters stand on: each adapter with each wire it speaks, against a server of ours."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import msgspec
import pytest

from holdfast.domain.ids import MessageId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Part, Role, Text, TextPart
from holdfast.domain.models import (
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
from holdfast.providers.access import Access
from holdfast.providers.client import close_connections
from holdfast.providers.compatible import CompatibleModel
from holdfast.providers.pydantic import PydanticModel
from holdfast.testing.model_server import Asked, ModelServer, Wire
from holdfast.testing.wires.script import Reply

__all__ = [
    "ALL",
    "KEY",
    "LEAN",
    "LIBRARIES",
    "Adapter",
    "Subject",
    "collect",
    "message",
    "prompt",
    "read_on",
    "serving",
    "shape",
]

LIBRARIES = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning"),
]
"""The libraries of the providers are large: the first test of each loads one. And not all of their code is fresh."""
KEY = "canary-3f9a1c77d2"
_SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}}}'


class Adapter(Protocol):
    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]: ...


class Subject(msgspec.Struct, frozen=True):
    """An adapter on a wire."""

    name: str
    wire: Wire
    model: str
    make: Callable[[ModelInfo, Access, Selection], Adapter]
    path: str = "/v1"

    def __str__(self) -> str:
        return self.name

    def on(self, url: str, *, selection: Selection | None = None, access: Access | None = None) -> Adapter:
        info = ModelInfo("acme", self.model, can_reason=True, reasoning_levels=("low", "high"), supports_images=True)
        place = url.removesuffix("/v1") + self.path if url.endswith("/v1") else url
        reach = msgspec.structs.replace(access or Access(), base_url=place, api_key=KEY)
        return self.make(info, reach, selection or Selection())


def _sdk(kind: str) -> Callable[[ModelInfo, Access, Selection], Adapter]:
    return lambda info, access, selection: PydanticModel(info, access, selection, kind=kind)


LEAN = Subject("compatible", "chat", "m", CompatibleModel)
ALL = (
    LEAN,
    Subject("openai-chat", "chat", "gpt-5", _sdk("openai-chat")),
    Subject("openai-responses", "responses", "gpt-5", _sdk("openai-responses")),
    Subject("anthropic", "anthropic", "claude-opus-x", _sdk("anthropic")),
    Subject("gemini", "gemini", "gemini-2.5-pro", _sdk("gemini")),
    Subject("vertexai", "gemini", "gemini-2.5-pro", _sdk("vertexai")),
    Subject("azure", "chat", "gpt-4.1", _sdk("azure"), "/openai/v1"),
    Subject("mistral", "mistral", "m", _sdk("mistral")),
)


def message(role: Role, *parts: Part, id: str = "m1", model: str = "", provider: str = "") -> Message:
    return Message(parts, MessageId(id), role, SessionId("s1"), model, provider, 0, 0)


def prompt(*messages: Message) -> ModelRequest:
    asked = messages or (message("user", TextPart(Text("What is here?"))),)
    return ModelRequest(SessionId("s1"), "Be brief.", asked, (ToolSpec("ls", "Lists a directory.", _SCHEMA),), 1_000)


@asynccontextmanager
async def serving(*replies: Reply, script: Callable[[Asked], Reply] | None = None) -> AsyncIterator[ModelServer]:
    """A server; at the end nothing of this loop is left open."""
    async with ModelServer(script or replies) as server:
        try:
            yield server
        finally:
            await close_connections()


async def read_on(stream: AsyncGenerator[StreamPart, None]) -> None:
    """To the end, or until somebody cancels it."""
    async with aclosing(stream):
        async for _ in stream:
            pass


async def collect(model: Adapter, request: ModelRequest | None = None) -> list[StreamPart]:
    return [part async for part in model.stream(request or prompt())]


def shape(parts: list[StreamPart]) -> list[tuple[str, str]]:
    """The parts with everything joined that grows, so that it does not matter how it was cut."""
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
                place = names[id]
                out[place] = (out[place][0], out[place][1] + text)
            case _:
                out.append((type(part).__name__, repr(part)))
    return out
