"""Calls tools without a run and records their requests, operations and output."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import ToolError
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.store_operations import AddFile, MarkRead, Operation, Receipt
from holdfast.domain.tools import Permit, QuestionBatch, SubagentTask, Tool, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["DirectCaller", "arguments_of"]


class DirectCaller:
    """Calls tools and serves as their context."""

    def __init__(self, root: Path, tools: Sequence[Tool]) -> None:
        self.workspace_path = str(root)
        self.session_id, self.run_id = SessionId("s1"), RunId("r1")
        self.message_id, self.tool_call_id = MessageId("m1"), ToolCallId("c1")
        self.environment: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}
        self.takes_images = False
        self.answers: tuple[QuestionAnswer, ...] | None = None
        self.permits: list[Permit] = []
        self.inquiries: list[QuestionBatch] = []
        self.subagent_tasks: list[SubagentTask] = []
        self.operations: list[Operation] = []
        self.output: list[str] = []
        self.now = 1_700_000_000_000
        self.on_permit: Callable[[Permit], None] = lambda _: None
        self._marks: dict[str, ReadMark] = {}
        self._tools = {tool.spec.name: tool for tool in tools}

    async def __call__(self, tool: str, **arguments: object) -> ToolOutcome:
        return await self._tools[tool].run(self, arguments)

    async def text(self, tool: str, **arguments: object) -> str:
        """Call the tool and return its text, or its error as a model reads it."""
        try:
            return (await self(tool, **arguments)).content
        except ToolError as error:
            return f"error: {error}"

    async def metadata(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Call the tool and return the metadata of its result."""
        return cast(dict[str, Any], json.loads((await self(tool, **arguments)).metadata))

    @property
    def versions(self) -> list[FileVersion]:
        return [operation.file for operation in self.operations if isinstance(operation, AddFile)]

    def now_ms(self) -> int:
        return self.now

    async def record(self, *operations: Operation) -> Receipt:
        self.operations += operations
        for operation in operations:
            if isinstance(operation, MarkRead):
                self._marks[operation.mark.path] = operation.mark
        return Receipt()

    async def read_mark(self, path: str) -> ReadMark | None:
        return self._marks.get(path)

    async def permit(self, permit: Permit) -> None:
        self.permits.append(permit)
        self.on_permit(permit)

    async def ask_questions(self, batch: QuestionBatch) -> tuple[QuestionAnswer, ...] | None:
        self.inquiries.append(batch)
        return self.answers

    async def run_subagent(self, task: SubagentTask) -> str:
        self.subagent_tasks.append(task)
        return "text of the sub-agent"

    def publish_output(self, text: str) -> None:
        self.output.append(text)


def arguments_of(tool: Tool) -> type[msgspec.Struct]:
    """Return the argument struct of a tool."""
    assert isinstance(tool, BaseTool)
    return cast(type[msgspec.Struct], tool.arguments)
