"""The size of a conversation: the base of the token estimate for providers that report no usage."""

import msgspec
import pytest

from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Part,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.engine.history import size_of
from holdfast.testing.conformance import message

CALL = ToolCallId("c")
SIZES: dict[str, tuple[Part, int]] = {
    "text": (TextPart(Text("four")), 4),
    "the prompt that a command expands to": (TextPart(Text("/c", meant="nine chars")), 10),
    "reasoning": (ReasoningPart(Reasoning("think", "")), 5),
    "a tool call with its name": (ToolCallPart(ToolCall(CALL, "ls", "{}")), 4),
    "a tool result": (ToolResultPart(ToolResult(CALL, "ls", "a\nb", "", is_error=False)), 3),
    "a finish": (FinishPart(Finish("end_turn", 0)), 0),
}


@pytest.mark.parametrize("name", SIZES)
def test_part_counts_the_characters_sent_to_the_model(name: str) -> None:
    part, size = SIZES[name]
    messages = [msgspec.structs.replace(message(key), parts=(part,)) for key in ("m", "n")]
    assert size_of(messages) == 2 * size
