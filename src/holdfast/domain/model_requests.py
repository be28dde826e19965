"""The interface to model providers: a request, and the stream of parts that is the response."""

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
    """The display name; the model's id if the provider names none."""
    can_reason: bool = False
    reasoning_levels: tuple[str, ...] = ()
    default_reasoning_effort: str = ""
    takes_media_in_results: bool = False
    """True if a tool result may contain an image; otherwise the image is moved to the following message."""
    is_scripted: bool = False
    """Not a real model: it plays a script, so that Holdfast can be tried without a key."""
    fallback_reason: str = ""
    """The reason why the scripted model was chosen although it was not selected; empty for every other model."""


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
    """Text to append to the response."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Text to append to the reasoning."""

    text: str


class ReasoningSignature(msgspec.Struct, frozen=True):
    """The provider's signature of the reasoning, which later requests have to include."""

    signature: str


class RedactedReasoning(msgspec.Struct, frozen=True):
    """A block of reasoning that the provider has encrypted."""

    data: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """The beginning of a tool call."""

    id: ToolCallId
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of the call's arguments, which together are JSON text."""

    id: ToolCallId
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """The end of a tool call: its arguments are complete."""

    id: ToolCallId


class UsagePart(msgspec.Struct, frozen=True):
    """The token counts of the request."""

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
