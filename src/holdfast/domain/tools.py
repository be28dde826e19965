"""The interface between tools and the engine: the context a tool receives and the outcome it returns."""

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
"""Tools that only put questions to the user. Sub-agents and unattended runs do not get them."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a tool call. `stops_turn`: no further model request is made in this turn (a person refused)."""

    content: str
    metadata: str = ""
    is_error: bool = False
    data: str = ""
    mime_type: str = ""
    stops_turn: bool = False


class Permit(msgspec.Struct, frozen=True):
    """A permission request of a tool, before the rules are applied.

    `action` is a verb (`execute`, `write`, `read`, `list`, `fetch`, `download`), `path` the location of the effect, and
    `params` is the content of the dialog. `command` is the shell line, if one is to be run: rules judge it by its
    parts.
    `is_agreed`: the call follows from an earlier agreement, so only a rule that denies it has an effect.
    `continues`: an earlier request of this call was allowed, so the call may have had effects already.
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
    """Questions for the user, answered as one batch. Their ids are assigned when the request is published."""

    questions: tuple[Question, ...]
    confirm_title: str = ""
    confirm_description: str = ""


class Errand(msgspec.Struct, frozen=True):
    """A task for a sub-agent, which runs in a child session of the caller's. `kind` selects the type of sub-agent."""

    prompt: str
    title: str
    kind: str = "task"


class ToolContext(Protocol):
    """The services a tool may use. Operations that it records are stored with those of its run."""

    @property
    def workspace_path(self) -> str:
        """The absolute path of the workspace directory."""

    @property
    def session_id(self) -> SessionId:
        """The session of the run."""

    @property
    def run_id(self) -> RunId:
        """The run that made the call."""

    @property
    def message_id(self) -> MessageId:
        """The assistant message that contains the call."""

    @property
    def tool_call_id(self) -> ToolCallId:
        """The id of the call."""

    def now_ms(self) -> int:
        """Return the current Unix time in milliseconds."""

    async def record(self, *operations: Operation) -> Receipt:
        """Store the operations in one write and publish their events."""

    async def read_mark(self, path: str) -> ReadMark | None:
        """Return when the session last read the file, or None if it has not."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the client that opened the workspace."""

    @property
    def takes_images(self) -> bool:
        """True if the model that receives the result accepts images."""

    async def permit(self, permit: Permit) -> None:
        """Return when the action may proceed, at once or after a person agreed. Raises `PermissionDenied`."""

    async def inquire(self, inquiry: Inquiry) -> tuple[QuestionAnswer, ...] | None:
        """Return one answer for each question, in the same order; None if the person dismissed the batch. Raises
        `ToolError` if there is no client that can answer.
        """

    async def send(self, errand: Errand) -> str:
        """Run a sub-agent and return its final text. Cancelling this call stops it. Raises `ToolError` if there is no
        text.
        """

    def say(self, text: str) -> None:
        """Publish output of a tool that is still running, for clients. The model receives only the outcome."""


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """The name, description and parameters that the model receives."""

    @property
    def is_parallel(self) -> bool:
        """True if the tool may run concurrently with other calls of the same step."""

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Execute the call. Raises `ToolError`; any other exception becomes an error result too."""
