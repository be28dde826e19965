"""Messages and their parts, in the shape in which they are stored and sent.

A part is `{"type": T, "data": {...}}`. Keys that a client may rely on have no default and are always
written; keys with a default are left out while they hold it. Times are Unix seconds.
"""

from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.halves import encodable
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId

__all__ = [
    "Binary",
    "BinaryPart",
    "Finish",
    "FinishPart",
    "FinishReason",
    "Message",
    "Part",
    "Reasoning",
    "ReasoningPart",
    "Role",
    "ShellCommand",
    "ShellCommandPart",
    "Text",
    "TextPart",
    "ToolCall",
    "ToolCallPart",
    "ToolResult",
    "ToolResultPart",
    "encodable",
    "text_of",
]

Role = Literal["user", "assistant", "tool", "system"]

FinishReason = Literal[
    "end_turn",
    "max_tokens",
    "tool_use",
    "canceled",
    "error",
    "content_filter",
    "unknown",
    "stop",
]
"""Why a message ended. `stop` is the mark of user and tool messages, which are complete when written."""


class Text(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is shown. `meant` is what a model reads in its place: the whole of a command, what hooks have added."""

    text: str
    meant: str = ""


class Reasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model thought. `redacted` blocks come back encrypted and are handed back untouched."""

    thinking: str
    signature: str
    started_at: int = 0
    finished_at: int = 0
    redacted: tuple[str, ...] = ()


class Binary(msgspec.Struct, frozen=True):
    """An attached file. The capitalised keys are the wire's."""

    path: str = msgspec.field(name="Path")
    mime_type: str = msgspec.field(name="MIMEType")
    data: bytes = msgspec.field(name="Data")


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of the model. `input` is JSON text; it is empty until the call is `finished`."""

    id: ToolCallId
    name: str
    input: str
    finished: bool = False


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool answered. `metadata` is JSON text for screens, never shown to the model."""

    tool_call_id: ToolCallId
    name: str
    content: str
    metadata: str
    is_error: bool
    data: str = ""
    mime_type: str = ""


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: FinishReason
    time: int
    message: str = ""
    details: str = ""


class ShellCommand(msgspec.Struct, frozen=True):
    """What a person ran beside the conversation, for the model to see with the next prompt."""

    command: str
    output: str
    exit_code: int


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    data: Text


class ReasoningPart(msgspec.Struct, frozen=True, tag="reasoning"):
    data: Reasoning


class BinaryPart(msgspec.Struct, frozen=True, tag="binary"):
    data: Binary


class ToolCallPart(msgspec.Struct, frozen=True, tag="tool_call"):
    data: ToolCall


class ToolResultPart(msgspec.Struct, frozen=True, tag="tool_result"):
    data: ToolResult


class ShellCommandPart(msgspec.Struct, frozen=True, tag="shell_command"):
    data: ShellCommand


class FinishPart(msgspec.Struct, frozen=True, tag="finish"):
    data: Finish


Part: TypeAlias = TextPart | ReasoningPart | BinaryPart | ToolCallPart | ToolResultPart | ShellCommandPart | FinishPart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation. Its place in it is given by the store, never by a time."""

    parts: tuple[Part, ...]
    id: MessageId
    role: Role
    session_id: SessionId
    model: str
    provider: str
    created_at: int
    updated_at: int
    is_summary_message: bool = False
    run_id: RunId = RunId("")

    @property
    def finish(self) -> Finish | None:
        for part in reversed(self.parts):
            if isinstance(part, FinishPart):
                return part.data
        return None

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [part.data for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResult]:
        return [part.data for part in self.parts if isinstance(part, ToolResultPart)]


def text_of(message: Message) -> str:
    """The visible text of a message, without reasoning."""
    return "".join(part.data.text for part in message.parts if isinstance(part, TextPart))
