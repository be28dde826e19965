"""Messages and their parts, in the shape in which they are stored and sent.

A part is `{"type": T, "data": {...}}`. Keys that a client may rely on have no default and are always
written; keys with a default are left out while they hold it. Times are Unix seconds.
"""

from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.surrogates import replace_surrogates

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
    "replace_surrogates",
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
"""The reason for the end of a message. `stop` marks user and tool messages, which are complete when stored."""


class Text(msgspec.Struct, frozen=True, omit_defaults=True):
    """Visible text. `meant` is the text that a model reads instead: an expanded command, or the additions of hooks."""

    text: str
    meant: str = ""


class Reasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reasoning of the model. `redacted` blocks are encrypted by the provider and returned to it unchanged."""

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
    """A tool call of the model. `input` is JSON text; it is empty until the call is `finished`."""

    id: ToolCallId
    name: str
    input: str
    finished: bool = False


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a tool call. `metadata` is JSON text for clients, never shown to the model."""

    tool_call_id: ToolCallId
    name: str
    content: str
    metadata: str
    is_error: bool
    data: str = ""
    mime_type: str = ""


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a message: its reason and time, and the error text if it failed."""

    reason: FinishReason
    time: int
    message: str = ""
    details: str = ""


class ShellCommand(msgspec.Struct, frozen=True):
    """A command that a user ran beside the conversation; the model sees it with the next prompt."""

    command: str
    output: str
    exit_code: int


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A part with visible text."""

    data: Text


class ReasoningPart(msgspec.Struct, frozen=True, tag="reasoning"):
    """A part with reasoning."""

    data: Reasoning


class BinaryPart(msgspec.Struct, frozen=True, tag="binary"):
    """A part with an attached file."""

    data: Binary


class ToolCallPart(msgspec.Struct, frozen=True, tag="tool_call"):
    """A part with a tool call."""

    data: ToolCall


class ToolResultPart(msgspec.Struct, frozen=True, tag="tool_result"):
    """A part with the result of a tool call."""

    data: ToolResult


class ShellCommandPart(msgspec.Struct, frozen=True, tag="shell_command"):
    """A part with a shell command of the user."""

    data: ShellCommand


class FinishPart(msgspec.Struct, frozen=True, tag="finish"):
    """The part that ends a message."""

    data: Finish


Part: TypeAlias = TextPart | ReasoningPart | BinaryPart | ToolCallPart | ToolResultPart | ShellCommandPart | FinishPart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation. The store assigns its position in the conversation; times do not matter for it."""

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
        """The end of the message, or None while it grows."""
        for part in reversed(self.parts):
            if isinstance(part, FinishPart):
                return part.data
        return None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the message, in order."""
        return [part.data for part in self.parts if isinstance(part, ToolCallPart)]

    @property
    def tool_results(self) -> list[ToolResult]:
        """The tool results of the message, in order."""
        return [part.data for part in self.parts if isinstance(part, ToolResultPart)]


def text_of(message: Message) -> str:
    """Return the visible text of a message, without reasoning."""
    return "".join(part.data.text for part in message.parts if isinstance(part, TextPart))
