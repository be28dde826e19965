"""Routes: the type, and constructors for GET and POST."""

from typing import Any

import msgspec

__all__ = ["PREFIX", "Query", "Route", "get", "post"]

PREFIX = "/v1"


class Query(msgspec.Struct, frozen=True):
    """A query parameter."""

    name: str
    is_required: bool = False
    kind: str = "string"


class Route(msgspec.Struct, frozen=True):
    """`name` is that of the handler and of the client's method. `errors` are the possible statuses besides `status`."""

    name: str
    method: str
    path: str
    summary: str
    request: Any = None
    answer: Any = None
    query: tuple[Query, ...] = ()
    status: int = 200
    errors: tuple[int, ...] = ()
    request_is_optional: bool = False
    streams: bool = False
    is_page: bool = False
    """The response is an HTML page."""
    media: str = ""
    """The response is text of this media type."""
    is_at_root: bool = False
    """The path is not below `/v1`, because other programs expect it elsewhere."""
    ends_with_caller: bool = False
    """The handler is cancelled when the caller disconnects."""

    @property
    def full_path(self) -> str:
        """The path with its prefix, as clients request it."""
        return self.path if self.is_at_root else PREFIX + self.path


def get(name: str, path: str, summary: str, answer: Any = None, **more: Any) -> Route:  # noqa: ANN401
    """Return a GET route."""
    return Route(name, "GET", path, summary, answer=answer, **more)


def post(name: str, path: str, summary: str, request: Any = None, answer: Any = None, **more: Any) -> Route:  # noqa: ANN401
    """Return a POST route."""
    return Route(name, "POST", path, summary, request=request, answer=answer, **more)
