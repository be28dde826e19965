"""Rules that every provider enforces for a conversation (R7), as functions that return the violations."""

from collections.abc import Sequence

import msgspec

from holdfast.domain.messages import BinaryPart, Message, TextPart, ToolCallPart, ToolResultPart
from holdfast.domain.model_requests import ModelRequest

__all__ = ["problems_of_request", "problems_of_session"]


def problems_of_request(request: ModelRequest) -> list[str]:
    """Return the violations in a request; empty if every provider accepts it."""
    problems: list[str] = []
    if not request.messages or request.messages[0].role != "user":
        problems.append("the first message is not the user's")
    if request.messages and request.messages[-1].role == "assistant":
        problems.append("the last message is an answer")
    expected: list[str] = []
    previous = ""
    for message in request.messages:
        problems += _problems_of_message(message, expected, previous)
        if message.role == "assistant":
            expected = [part.data.id for part in message.parts if isinstance(part, ToolCallPart)]
        previous = message.role
    if expected:
        problems.append(f"calls without a result: {expected}")
    return problems


def _problems_of_message(message: Message, expected: list[str], previous: str) -> list[str]:
    problems: list[str] = []
    results = [part.data.tool_call_id for part in message.parts if isinstance(part, ToolResultPart)]
    if message.role == "tool":
        for call_id in results:
            if call_id in expected:
                expected.remove(call_id)
            else:
                problems.append(f"a result without its call: {call_id}")
        return problems if results else [*problems, "an empty tool message"]
    if expected:
        problems.append(f"calls without a result: {expected}")
        expected.clear()
    if message.role == previous:
        problems.append(f"two {message.role} messages in a row")
    problems += _problems_of_content(message)
    return problems


def _problems_of_content(message: Message) -> list[str]:
    problems: list[str] = []
    texts = [part.data.text for part in message.parts if isinstance(part, TextPart)]
    calls = [part.data for part in message.parts if isinstance(part, ToolCallPart)]
    if not any(text.strip() for text in texts) and not calls and not _has_file(message):
        problems.append(f"an empty {message.role} turn")
    problems += ["a blank text" for text in texts if not text.strip()]
    for call in calls:
        try:
            msgspec.json.decode(call.input, type=dict[str, object])
        except msgspec.DecodeError:
            problems.append(f"arguments that are no JSON object: {call.input!r}")
    if len({call.id for call in calls}) != len(calls):
        problems.append("two calls with one id")
    return problems


def _has_file(message: Message) -> bool:
    return any(isinstance(part, BinaryPart) for part in message.parts)


def problems_of_session(messages: Sequence[Message]) -> list[str]:
    """Return the violations in a stored conversation without an active run; empty if it is complete."""
    problems: list[str] = []
    for message in messages:
        if message.finish is None:
            problems.append(f"{message.role} message {message.id} has no end")
        problems += [f"call {call.id} is not finished" for call in message.tool_calls if not call.finished]
    calls = [call.id for message in messages for call in message.tool_calls]
    results = [result.tool_call_id for message in messages for result in message.tool_results]
    if sorted(calls) != sorted(results):
        problems.append(f"calls {calls} and results {results} do not match")
    return problems
