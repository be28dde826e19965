"""What the engine says to a model and what a model answers: one request in, a stream of parts out."""

from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.ids import SessionId, ToolCallId
from holdfast.domain.messages import Message
from holdfast.domain.usage import Price, Usage

__all__ = [
    "FinishedPart",
    "ModelInfo",
    "ModelRequest",
    "ReasoningDelta",
    "ReasoningSignature",
    "RedactedReasoning",
    "StepFinish",
    "StreamPart",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolSpec",
    "UsagePart",
]

StepFinish = Literal["stop", "length", "tool_calls", "content_filter", "other"]


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about one model of one provider. A context window of 0 is unknown."""

    provider: str
    model: str
    context_window: int = 0
    max_output_tokens: int = 0
    price: Price = Price()
    supports_images: bool = False
    name: str = ""
    """What people call it; the model's id if nobody said."""
    can_reason: bool = False
    reasoning_levels: tuple[str, ...] = ()
    default_reasoning_effort: str = ""
    takes_media_in_results: bool = False
    """Whether a tool's result may hold an image; elsewhere it is moved to a message after it."""
    is_scripted: bool = False
    """Not a model at all: it plays a script, so that everything can be tried without a key."""
    fallback_reason: str = ""
    """Why the scripted model was chosen although nothing selects it; empty for every other model."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it. `parameters` is a JSON schema, as JSON text."""

    name: str
    description: str
    parameters: str


class ModelRequest(msgspec.Struct, frozen=True):
    """A conversation every provider accepts: no empty turn, each tool call followed by its one result."""

    session_id: SessionId
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 0


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningSignature(msgspec.Struct, frozen=True):
    signature: str


class RedactedReasoning(msgspec.Struct, frozen=True):
    data: str


class ToolCallStart(msgspec.Struct, frozen=True):
    id: ToolCallId
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the call's arguments, which together are JSON text."""

    id: ToolCallId
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    id: ToolCallId


class UsagePart(msgspec.Struct, frozen=True):
    usage: Usage


class FinishedPart(msgspec.Struct, frozen=True):
    """The last part of every stream. A stream that ends without it was cut off: the step failed."""

    reason: StepFinish


StreamPart: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ReasoningSignature
    | RedactedReasoning
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | UsagePart
    | FinishedPart
)
