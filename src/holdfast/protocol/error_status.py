"""The mapping of errors to a status and `{"message": "…"}`. No other module maps errors to statuses."""

import msgspec

from holdfast.domain.errors import BadRequest, Conflict, HoldfastError, NotFound, ProviderError, StorageError

__all__ = ["OtherDataDirectory", "Problem", "TooLarge", "TooManyStreams", "UnknownWorkspace", "problem_of", "status_of"]


class UnknownWorkspace(NotFound):
    """There is no such workspace: create it first with its path."""


class TooLarge(HoldfastError):
    """The request is larger than 32 MiB: send less, or write the paths of files instead."""


class OtherDataDirectory(HoldfastError):
    """This server has another data directory than the one that the request names: locate the server again."""


class TooManyStreams(HoldfastError):
    """Too many streams are open: close some clients, or start the server with a higher ulimit -n."""


class Problem(msgspec.Struct, frozen=True):
    """The body of every error response. Unknown fields are ignored."""

    message: str


_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFound, 404),
    (BadRequest, 400),
    (Conflict, 409),
    (TooLarge, 413),
    (OtherDataDirectory, 421),
    (StorageError, 503),
    (TooManyStreams, 503),
    (ProviderError, 400),
)

_INTERNAL_ERROR = "Internal error in Holdfast. The log has the details."


def status_of(error: BaseException) -> int:
    """Return the status of an error; 500 for an internal one."""
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return 500


def problem_of(error: BaseException) -> Problem:
    """Return the message for clients. Internal errors reveal no details."""
    return Problem(str(error) if status_of(error) != 500 else _INTERNAL_ERROR)
