"""Builders and accessors shared by several tests."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from holdfast.domain.events import Event, MessageDelta, MessagePart, encode_event
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    FinishReason,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    Role,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Answer, Operation, Write
from holdfast.domain.tools import Tool, ToolContext, ToolOutcome
from holdfast.domain.usage import Price
from holdfast.engine.ports import Model
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call
from holdfast.testing.gates import SimpleTool
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import SeededLoop

SESSION, RUN, MESSAGE = SessionId("s1"), RunId("r1"), MessageId("m1")
PLAIN = ModelInfo("test", "plain")
PATIENT = EngineSettings(titles=False, grace=30.0)
"""A grace that is never used up: a test that depends on it hangs until its time limit."""


def info(window: int = 0, price: Price | None = None) -> ModelInfo:
    return ModelInfo("test", "model", context_window=window, price=price or Price())


def json_of(thing: object) -> str:
    """Return the JSON text that is stored and sent."""
    return msgspec.json.encode(thing).decode()


def text_part(text: str) -> TextPart:
    return TextPart(Text(text))


def reasoning_part(text: str, *, finished_at: int = 0, signature: str = "") -> ReasoningPart:
    return ReasoningPart(Reasoning(text, signature, 1, finished_at))


def call_part(id: str, input: str = "{}", *, name: str = "tool", finished: bool = True) -> ToolCallPart:
    return ToolCallPart(ToolCall(ToolCallId(id), name, input, finished))


def result_part(
    id: str, content: str = "done", *, name: str = "tool", is_error: bool = False, data: str = ""
) -> ToolResultPart:
    mime_type = "image/png" if data else ""
    return ToolResultPart(ToolResult(ToolCallId(id), name, content, "", is_error, data, mime_type))


def finish_part(reason: FinishReason = "end_turn", time: int = 1) -> FinishPart:
    return FinishPart(Finish(reason, time))


def message(role: Role, *parts: Part, id: str = "m1", is_summary: bool = False) -> Message:
    return Message(parts, MessageId(id), role, SESSION, "", "", 1, 1, is_summary, RUN)


def session(title: str = "Title") -> Session:
    return Session(SESSION, SessionId(""), title, 0, 0, 0, MessageId(""), 0.0, 1, 1, is_busy=False, attached_clients=0)


def request_of(messages: Iterable[Message]) -> ModelRequest:
    return ModelRequest(SESSION, "", tuple(messages))


def texts_of(messages: Iterable[Message], role: Role) -> list[str]:
    return [
        part.data.text for item in messages if item.role == role for part in item.parts if isinstance(part, TextPart)
    ]


def results_of(messages: Iterable[Message]) -> list[ToolResult]:
    return [result for item in messages for result in item.tool_results]


def split(text: str, cuts: Iterable[int]) -> list[str]:
    """Split the text at these positions; empty pieces are possible."""
    positions = sorted(cut % (len(text) + 1) for cut in cuts)
    bounds = [0, *positions, len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


def deltas(texts: Iterable[str], part: int = 0) -> list[MessageDelta]:
    offset, out = 0, []
    for text in texts:
        out.append(MessageDelta(SESSION, MESSAGE, part, offset, text))
        offset += len(text)
    return out


def full_part(content: Part, part: int = 0) -> MessagePart:
    return MessagePart(SESSION, MESSAGE, part, content)


def with_repeats(items: Sequence[MessageDelta], seed: int) -> list[MessageDelta]:
    """Return the same deltas with some of the earlier ones repeated."""
    rng = random.Random(seed)
    out: list[MessageDelta] = []
    for item in items:
        out.append(item)
        while rng.random() < 0.3:
            out.append(rng.choice(out))
    return out


def calls(name: str, count: int) -> tuple[Call, ...]:
    """Return calls of one tool, numbered from 0 in their argument `n`."""
    return tuple(Call(name, f'{{"n":{number}}}') for number in range(count))


def size_of_events(events: Iterable[tuple[int | None, Event]]) -> int:
    return sum(len(encode_event(event)) for _, event in events)


async def session_of(harness: Harness) -> Session:
    found = await harness.ledger.session(harness.workspace.record.id, harness.session)
    assert found is not None
    return found


class RecordingLedger(MemoryLedger):
    """A ledger that records every operation written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        self.operations += [operation for write in writes for operation in write.operations]
        return await super().commit(workspace, epoch, ticket, writes)

    @property
    def size(self) -> int:
        """Size in bytes of all operations."""
        return sum(len(msgspec.json.encode(operation)) for operation in self.operations)


async def run_other_tasks() -> None:
    """Yield often enough for every runnable task to make all the progress it can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def run_to_end(
    model: Model | FixedModels,
    *tools: Tool,
    settings: EngineSettings = PATIENT,
    ledger: MemoryLedger | None = None,
    path: str = "/project",
) -> Harness:
    """Execute a whole run `r1`, from its prompt to its end, and check that the stored conversation is valid."""
    harness = await Harness.open(model, tools=tools, settings=settings, ledger=ledger, path=path)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1"]
    await harness.assert_valid()
    return harness


def fixed_tool(name: str, content: str = "done", *, is_parallel: bool = False) -> SimpleTool:
    """Return a tool that answers at once."""

    async def act(_: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        return ToolOutcome(f"{content} {arguments['n']}" if "n" in arguments else content)

    return SimpleTool(name, act, is_parallel=is_parallel)


async def sleep_virtual(seconds: float) -> None:
    """Let this much virtual time pass."""
    assert isinstance(asyncio.get_running_loop(), SeededLoop)
    await asyncio.sleep(seconds)
