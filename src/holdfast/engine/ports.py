"""Interfaces that the engine depends on. `runtime` passes the implementations."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.events import LiveEvent, RunComplete
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.project_context import GitChanges, ProjectContext
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Answer, Briefing, Entry, RunRecord, Snapshot, WorkspaceRecord, Write
from holdfast.domain.tools import Permit, QuestionBatch, Tool, ToolContext, ToolOutcome

__all__ = [
    "Clock",
    "ContextLoader",
    "Hooks",
    "Ledger",
    "Model",
    "Models",
    "NewId",
    "Outlet",
    "Permissions",
    "SharedLedger",
    "Tools",
]


class Clock(Protocol):
    """Wall clock, for display only: no decision depends on it."""

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""


NewId = Callable[[], str]
"""Returns a new unique identifier."""


class Ledger(Protocol):
    """The store. Its contract is `holdfast.testing.conformance`, which every implementation passes.

    Any method may raise `StorageError`. `commit` raises `StorageUnavailable` when nothing was written,
    `StorageUnknown` when the result is unknown (`last_batch` then returns it), and `OwnerChanged` for an epoch
    that is no longer the current one.
    """

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        """Open a workspace with a new epoch, creating it if necessary. Writes of earlier epochs are refused from now
        on.
        """

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        """Close a workspace cleanly, so that the numbering need not jump at the next start.

        Later commits of this epoch raise `OwnerChanged`. Nothing happens if the epoch is not the current one.
        """

    async def unfinished_workspaces(self) -> Sequence[str]:
        """Return the paths of the workspaces that have runs without an end."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """Commit a batch in one transaction and return an answer for each write. Tickets of an epoch count up from 1.

        Synced to disk before the return if any of the writes has `sync`.
        """

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        """Return the ticket and the answers of the last batch of this epoch that was written; (0, ()) if none was.

        Executed after every earlier commit. Raises `OwnerChanged` for an epoch that is not the current one.
        """

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return at most `limit` numbered events after the cursor, in order."""

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        """Return the same as (number, time in Unix milliseconds, body)."""

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """Return the smallest number stored (newest + 1 if there is none) and the newest assigned."""

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        """Return all sessions, latest change first; the session's messages; runs that have not ended and the last 50
        that have, newest last.
        """

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        """Return the top-level sessions, latest change first."""

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None:
        """Return a session."""

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        """Return the messages of a session, in order, with all stored deltas."""

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]:
        """Return the messages of a run, in order."""

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
        """Return a run with its prompt and attachments."""

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        """Return a run with its session and conversation, in one read."""

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        """Return the runs without an end, in queue order."""

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        """Return at most `limit` runs accepted before event number `before` (0: no bound), newest first."""

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        """Return every stored file version of the session, by path, then version."""

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None:
        """Return the last read of a file in the session."""

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        """Return the files that the session has read, latest first."""


@runtime_checkable
class SharedLedger(Ledger, Protocol):
    """A store that several servers (nodes) use at once. Any node stores inputs; only the owner of a workspace commits.

    Inputs are numbered in the same log. The owner learns of them through `events_after`. Its own writes are numbered
    without a gap if no input came between them, and `events_after` returns a number only with all smaller ones.
    """

    async def join_workspace(self, path: str) -> WorkspaceRecord:
        """Return a workspace without becoming its owner, creating it if necessary. `epoch` is 0 before its first
        owner.
        """

    async def accept(self, workspace: WorkspaceId, writes: Sequence[Write]) -> Sequence[Answer]:
        """Store inputs (`domain.store_operations.Input`) of any node in one synced transaction, whether or not the
        workspace has an owner. Return an answer for each write.

        After `StorageUnknown` there is no ticket to look up: the caller reads the state. Repeating an input does not
        repeat its effect. Raises `ValueError` for other operations.
        """

    async def inputs_after(
        self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
    ) -> Sequence[tuple[int, bytes]]:
        """Return the same as `events_after` for the owner. Raises `OwnerChanged` for an epoch that was not the current
        one at the time of the read: the events may then be those of a successor.
        """


class Outlet(Protocol):
    """Destination of events. Neither method blocks."""

    def publish(self, entries: Iterable[Entry]) -> None:
        """Publish durable events, in the order of their numbers."""

    def publish_live(self, event: LiveEvent) -> None:
        """Publish an event that is not stored."""


class Model(Protocol):
    """A language model. Closing the generator of a response closes the connection."""

    @property
    def info(self) -> ModelInfo:
        """Provider, name, limits and prices."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Yield the parts of the response; the last one is a `FinishedPart`. Raises `ProviderError`."""


class Models(Protocol):
    """Model selection. Called at the start of each run, so a change affects later runs only. Raises `ProviderError`."""

    async def large(self) -> Model:
        """Return the model for prompts."""

    async def small(self) -> Model:
        """Return the model for titles and simple tasks."""

    async def renewed(self, model: Model) -> Model | None:
        """Return the model with new credentials after its own were refused; None if there are none."""


class ContextLoader(Protocol):
    """Loads project context (context files, git state) for a session."""

    async def load(self, session: SessionId) -> ProjectContext:
        """Return the context of a session: the same object until something changes that a model must know."""

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        """Return the state of the work tree by the message of the user that it is sent with: `newest` if it has just
        become known, and always the same one afterwards. Empty while it is not known. Never blocks.
        """


class Permissions(Protocol):
    """Decides whether a tool call may proceed."""

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        """Return when the call is allowed. `skips` allows it without a request, `insists` requires a request in spite
        of earlier grants. Raises `PermissionDenied`, which stops only the turn of an interactive run.
        """

    async def ask_questions(self, context: ToolContext, batch: QuestionBatch) -> tuple[QuestionAnswer, ...] | None:
        """Return one answer for each question, in order; None if they were dismissed. Raises `ToolError`."""


class Tools(Protocol):
    """The tools of a run."""

    async def current(self) -> Sequence[Tool]:
        """Return the tools for the next step."""


class Hooks(Protocol):
    """User commands that are run at certain events and may influence them.

    No method raises: a hook that fails or times out has no effect. A cancelled call leaves no process behind.
    """

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        """Run the hooks before a tool call."""

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        """Run the hooks after a tool call."""

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        """Run the hooks before a prompt. `is_first`: the session has no earlier messages."""

    def after_run(self, end: RunComplete) -> None:
        """Start the hooks for a published end. Never blocks."""
