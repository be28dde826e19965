"""Messages: their order, their growth, their end."""

import msgspec

from holdfast.domain.events import MessageDelta, MessageEvent, MessagePart
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import DeleteMessage, GrowMessage, PutMessage
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.messages import ToolCallId as CallId
from holdfast.testing.conformance.subject import Check, Desk, Subject, message

__all__ = ["CHECKS"]
