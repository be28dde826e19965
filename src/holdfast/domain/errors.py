"""The tree of exceptions. An exception's docstring is its default message.

HoldfastError
├── BadRequest                 the request is invalid and had no effect
│   ├── EmptyPrompt
│   ├── InvalidRunId
│   └── UnknownSession
├── NotFound
│   └── UnknownRun
├── Conflict                   the request is valid, but not in the current state
│   ├── SessionBusy
│   ├── WorkspaceClosing
│   ├── RunIdTaken
│   ├── RunFolded
│   ├── SubagentSession
│   └── NotWaiting
├── StorageError
│   ├── StorageUnavailable     nothing was written
│   │   └── StorageDetached    the data directory's path shows other files than the open ones
│   ├── StorageUnknown         it may or may not be written: read the state
│   ├── OwnerChanged           another server owns the workspace now
│   ├── DataDirectoryBusy
│   ├── DatabaseDamaged
│   ├── DatabaseTooNew
│   ├── StoreMisconfigured     the store is there, but cannot be used as it is
│   └── StoreUnreachable       PostgreSQL did not answer in time at the start
├── ProviderError              the model's side failed
└── ToolError                  a tool failed: a result for the model, never the end of a turn
    └── PermissionDenied       a person or a rule refused
"""

from typing import Literal, TypeAlias

from holdfast.domain.ids import RunId
from holdfast.domain.surrogates import replace_surrogates

__all__ = [
    "BadRequest",
    "Conflict",
    "DataDirectoryBusy",
    "DatabaseDamaged",
    "DatabaseTooNew",
    "EmptyPrompt",
    "HoldfastError",
    "InvalidRunId",
    "NoUsableModel",
    "NotFound",
    "NotWaiting",
    "OwnerChanged",
    "PermissionDenied",
    "ProviderError",
    "RunFolded",
    "RunIdTaken",
    "SessionBusy",
    "StorageDetached",
    "StorageError",
    "StorageUnavailable",
    "StorageUnknown",
    "StoreMisconfigured",
    "StoreUnreachable",
    "SubagentSession",
    "ToolError",
    "Trouble",
    "UnknownRun",
    "UnknownSession",
    "WorkspaceClosing",
]

Trouble: TypeAlias = Literal[
    "busy",  # temporarily unable to respond: 408, 409, 429, 5xx
    "connection",  # could not be reached, or the connection broke
    "not_running",  # a server on this machine that does not listen: a refused connection on loopback
    "loading",  # a local server that still loads its model: 503
    "cut",  # the response ended before it was complete
    "stalled",  # no data arrived for too long
    "credentials",  # the key or token was not accepted: 401
    "quota",  # the quota of the account is used up
    "overflow",  # the conversation exceeds the context window of the model
    "refused",  # the request will never succeed unchanged: unknown model, bad parameter, forbidden
    "other",
]
"""The kind of a provider failure. The retry policy depends on nothing else."""


class HoldfastError(Exception):
    """Internal error in Holdfast."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(replace_surrogates(message or " ".join((type(self).__doc__ or "").split())))


class BadRequest(HoldfastError):
    """The request is not valid."""


class EmptyPrompt(BadRequest):
    """The prompt is empty: write something, or attach a text file."""


class InvalidRunId(BadRequest):
    """A run id has 1 to 128 letters, digits, dots, underscores or dashes."""


class UnknownSession(BadRequest):
    """There is no such session in this workspace: create it first, or see the list of sessions."""


class NotFound(HoldfastError):
    """Not found."""


class UnknownRun(NotFound):
    """There is no such run in this workspace."""


class Conflict(HoldfastError):
    """This is not possible in the current state."""


class SessionBusy(Conflict):
    """The session is busy: wait for its run to end, cancel it, or send the prompt with another delivery."""


class WorkspaceClosing(Conflict):
    """The workspace is closing and accepts no prompts: try again when it is open."""


class RunIdTaken(Conflict):
    """This run id was used for another prompt: choose a new one."""


class RunFolded(Conflict):
    """This prompt was folded into a running turn and ends with it: cancel that run instead."""

    def __init__(self, host: RunId) -> None:
        super().__init__(f"This prompt was folded into run {host} and ends with it: cancel that run instead.")
        self.host = host


class SubagentSession(Conflict):
    """This session belongs to a sub-agent and accepts no prompts: send them to its parent session."""


class NotWaiting(Conflict):
    """Only a waiting prompt can be moved or given another delivery."""


class StorageError(HoldfastError):
    """The storage failed."""


class StorageUnavailable(StorageError):
    """The storage cannot write. Nothing was stored; free some disk space or check the log, then try again."""


class StorageDetached(StorageUnavailable):
    """The data directory was moved, removed, replaced or covered. Restore it, or restart the server."""


class StorageUnknown(StorageError):
    """The storage failed while writing; it is not known whether the write was stored."""


class OwnerChanged(StorageError):
    """Another server has taken over this workspace: this one can no longer write to it."""


class DataDirectoryBusy(StorageError):
    """Another Holdfast server uses this data directory."""


class DatabaseDamaged(StorageError):
    """The database is damaged, or is not a Holdfast database."""


class DatabaseTooNew(StorageError):
    """The database was written by a newer Holdfast."""


class StoreMisconfigured(StorageError):
    """The store cannot be used as it is configured."""


class StoreUnreachable(StorageError):
    """PostgreSQL cannot be reached. Check the address and that it runs, or wait longer with --wait."""


class ProviderError(HoldfastError):
    """The provider failed."""

    def __init__(
        self,
        message: str | None = None,
        *,
        title: str = "Provider Error",
        trouble: Trouble = "other",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.title = title
        self.trouble: Trouble = trouble
        self.retry_after = retry_after
        """Seconds to wait before the next attempt, if the provider sent a number."""


class NoUsableModel(ProviderError):
    """No model can be used on this server at the moment: a key or a server of models is missing."""

    def __init__(self, message: str, *, title: str = "No usable model", trouble: Trouble = "refused") -> None:
        super().__init__(message, title=title, trouble=trouble)


class ToolError(HoldfastError):
    """The tool failed."""


class PermissionDenied(ToolError):
    """User denied permission"""

    def __init__(self, message: str | None = None, *, stops_turn: bool = True) -> None:
        super().__init__(message)
        self.stops_turn = stops_turn
