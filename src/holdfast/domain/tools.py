"""What a tool is: what it may know and do, and what it answers."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from holdfast.domain.asks import Question, QuestionAnswer
from holdfast.domain.files import ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.ledger import Operation, Receipt
from holdfast.domain.models import ToolSpec

__all__ = ["ASKS_PEOPLE", "Errand", "Inquiry", "Permit", "Tool", "ToolContext", "ToolOutcome"]

ASKS_PEOPLE = frozenset({"question"})
"""The tools that only ask whoever sent the prompt: of no use to helpers, nor where nobody is there to answer."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """What a tool answers. `stops_turn`: the model is not asked again (a person said no)."""

    content: str
    metadata: str = ""
    is_error: bool = False
    data: str = ""
    mime_type: str = ""
    stops_turn: bool = False


class Permit(msgspec.Struct, frozen=True):
    """What a tool is about to do, as a person or a rule is asked about it.

    `action` is a verb (`execute`, `write`, `read`, `list`, `fetch`, `download`), `path` where it takes effect,
    `params` what a dialog shows. `command` is the shell line, if one is to be run: rules judge it by its parts.
    `is_agreed`: it follows from what was agreed to, and only a rule that speaks against it counts.
    `continues`: the call was allowed something before, so it may have had effects already.
    """

    tool: str
    action: str
    path: str
    description: str
    params: dict[str, Any]
    command: str = ""
    is_agreed: bool = False
    continues: bool = False


class Inquiry(msgspec.Struct, frozen=True):
    """Questions for the person who sent the prompt, answered together. Their ids are given when they are asked."""

    questions: tuple[Question, ...]
    confirm_title: str = ""
    confirm_description: str = ""


class Errand(msgspec.Struct, frozen=True):
    """What a helper is sent to do, in a session of its own below the one that asks. `kind` says with which means."""

    prompt: str
    title: str
    kind: str = "task"


class ToolContext(Protocol):
    """What a tool may know and do. Its effects are stored with the run's."""

    @property
    def workspace_path(self) -> str: ...

    @property
    def session_id(self) -> SessionId: ...

    @property
    def run_id(self) -> RunId: ...

    @property
    def message_id(self) -> MessageId: ...

    @property
    def tool_call_id(self) -> ToolCallId: ...

    def now_ms(self) -> int: ...

    async def record(self, *operations: Operation) -> Receipt: ...

    async def read_mark(self, path: str) -> ReadMark | None: ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What the client that opened the workspace had set."""

    @property
    def takes_images(self) -> bool:
        """Whether the model that will read the result can look at pictures."""

    async def permit(self, permit: Permit) -> None:
        """Return when it may be done, at once or after somebody was asked. Raises `PermissionDenied`."""

    async def inquire(self, inquiry: Inquiry) -> tuple[QuestionAnswer, ...] | None:
        """The answers, one for each question, in their order. None if the person dismissed them; raises `ToolError`
        where nobody can be asked.
        """

    async def send(self, errand: Errand) -> str:
        """The last words of a helper, which is stopped when this call is. Raises `ToolError` if it has none."""

    def say(self, text: str) -> None:
        """Output of a tool that still works, for those who watch. The model sees only the outcome."""


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def is_parallel(self) -> bool:
        """May run beside other tools of its step."""

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Raises `ToolError`; any other exception becomes an error result too."""
