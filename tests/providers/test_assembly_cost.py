"""A request is assembled in time proportional to the conversation: counted, not timed."""

import sys
from types import FrameType

import pytest

from holdfast.domain.ids import MessageId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Message,
    Part,
    Role,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.settings import Selection
from holdfast.engine.history import conversation
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.chat_request import chat_body

INFO = ModelInfo("local", "m", 100_000)


def message(number: int, role: Role, *parts: Part) -> Message:
    return Message(parts, MessageId(f"{role}{number}"), role, SessionId("s"), "m", "local", 0, 0)


def history(turns: int) -> list[Message]:
    """Return prompts, calls, results and responses; every tenth turn has no response."""
    found: list[Message] = []
    for number in range(turns):
        call = ToolCallId(f"c{number}")
        found.append(message(number, "user", TextPart(Text(f"prompt {number}"))))
        if number % 10:
            found.append(message(number, "assistant", ToolCallPart(ToolCall(call, "view", "{}", finished=True))))
            found.append(message(number, "tool", ToolResultPart(ToolResult(call, "view", "text", "", is_error=False))))
            found.append(message(number + turns, "assistant", TextPart(Text("answer"))))
    return found


def calls_for(turns: int) -> tuple[int, int]:
    """Return the number of function calls, in Python and in C, and the bytes of the body."""
    messages = history(turns)
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        sent = conversation(messages, INFO, summary=None, note="")
        body = chat_body(ModelRequest(SessionId("s"), "system", sent), INFO, ModelAccess("http://x/v1"), Selection())
    finally:
        sys.setprofile(before)
    return count, len(body)


@pytest.mark.parametrize("turns", [50, 400])
def test_cost_of_assembly_is_linear_in_the_history(turns: int) -> None:
    few, many = calls_for(turns), calls_for(2 * turns)
    assert many[0] < 2.2 * few[0]
    assert many[1] < 2.2 * few[1]
