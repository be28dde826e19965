"""Interfaces that the engine depends on. `runtime` passes the implementations."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.events import LiveEvent, RunComplete
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.hooks import Ruling, ToolUse
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.ledger import Answer, Briefing, Entry, RunRecord, Snapshot, WorkspaceRecord, Write
from holdfast.domain.messages import Message
from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.project_context import GitChanges, ProjectContext
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.tools import Inquiry, Permit, Tool, ToolContext, ToolOutcome

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
    "Tools",
]


class Clock(Protocol):
    """Times that are told to people. No decision rests on them."""

    def now_ms(self) -> int: ...


NewId = Callable[[], str]
"""Mints an identifier that was never used before."""


class Ledger(Protocol):
    """The store. Its contract is `holdfast.testing.conformance`, which every implementation passes.

    Any method may raise `StorageError`. `commit` raises `StorageUnavailable` when nothing was written,
    `StorageUnknown` when that cannot be told (then `last_batch` tells), and `OwnerChanged` for an epoch
    that is no longer the current one.
    """

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        """Take a workspace over, made if need be: a new epoch; everybody else's writes are refused from now on."""

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        """Give it up in good order, so that the numbering need not jump at the next start.

        Later commits of this epoch raise `OwnerChanged`. Nothing happens if the epoch is not the current one.
        """

    async def unfinished_workspaces(self) -> Sequence[str]:
        """The paths of the workspaces that have runs without an end."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """One batch, one transaction; an answer for each write, in order. Tickets of an epoch count up from 1.

        On the disk before the answer if any of the writes says `sync`.
        """

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        """The ticket of the last batch of this epoch that was written, and its answers; (0, ()) if none was.

        Comes after every commit called before it. Raises `OwnerChanged` for an epoch that is not the current one.
        """

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """At most `limit` numbered events after the cursor, in order."""

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        """The same with the time of each, in Unix milliseconds, in the middle."""

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """The smallest number held (newest + 1 if none is) and the newest given."""

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        """All sessions, latest change first; the session's messages; runs that have not ended and the last 50
        that have, newest last.
        """

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        """Top-level sessions, latest change first."""

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None: ...

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        """The conversation in its order, with all that was flushed."""

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]: ...

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None: ...

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        """The run with its session and conversation, in one read."""

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        """Runs without an end, in the order in which they are to run."""

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        """At most `limit` runs accepted before event number `before` (0: no bound), newest first."""

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        """Every version the session stored, by path, then version."""

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None: ...

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        """What the session has read, latest first."""


class Outlet(Protocol):
    """Where events leave the engine. Neither call ever waits."""

    def publish(self, entries: Iterable[Entry]) -> None:
        """Durable events, in the order of their numbers."""

    def publish_live(self, event: LiveEvent) -> None: ...


class Model(Protocol):
    """A model that can be asked. Closing the generator closes the connection."""

    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """The answer, part by part, the last one a `FinishedPart`. Raises `ProviderError`."""


class Models(Protocol):
    """Which models a run uses; asked at each run's start, so a change disturbs nothing. Raises `ProviderError`."""

    async def large(self) -> Model: ...

    async def small(self) -> Model: ...

    async def renewed(self, model: Model) -> Model | None:
        """The same model with new credentials, after its own were refused. None if there are no others."""


class ContextLoader(Protocol):
    """Who looks around before a session begins."""

    async def load(self, session: SessionId) -> ProjectContext:
        """The same answer for a session, for as long as nothing changes that a model must know."""

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        """Return the state of the work tree by the message of the user that it is sent with: `newest` if it has just
        become known, and from then on always the same one. Empty while it is not known. Never waits.
        """


class Permissions(Protocol):
    """Who lets tools act: rules, and people where no rule decides."""

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        """Return when it may be done; with `skips` nobody is asked, with `insists` somebody is, whatever was allowed
        before. Raises `PermissionDenied`, which stops the turn only of an interactive run.
        """

    async def inquire(self, context: ToolContext, inquiry: Inquiry) -> tuple[QuestionAnswer, ...] | None:
        """One answer for each question, in their order. None if they were dismissed. Raises `ToolError`."""


class Tools(Protocol):
    """The tools a run may use; asked before every step."""

    async def current(self) -> Sequence[Tool]: ...


class Hooks(Protocol):
    """Commands of people that are run when something happens, and may have a say in it.

    None of them raises: one that fails or takes too long has no opinion. Who is cancelled while it waits leaves no
    process behind.
    """

    async def before_tool(self, use: ToolUse) -> Ruling: ...

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> Ruling: ...

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        """`is_first`: nothing was said in the session before."""

    def after_run(self, end: RunComplete) -> None:
        """The end is stored and told. Never waits."""
