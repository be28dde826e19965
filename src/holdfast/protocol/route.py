"""What a route is."""

from typing import Any

import msgspec

__all__ = ["PREFIX", "Query", "Route", "get", "post"]

PREFIX = "/v1"


class Query(msgspec.Struct, frozen=True):
    name: str
    is_required: bool = False
    kind: str = "string"


class Route(msgspec.Struct, frozen=True):
    """`name` is the handler's and the client's method. `errors` are the statuses beside `status` it may answer."""

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
    """Answers with a page for people, as text."""
    media: str = ""
    """Answers with text of this kind."""
    is_at_root: bool = False
    """Stands beside `/v1`, where other programs look for it."""
    ends_with_caller: bool = False
    """What it does is stopped when the caller goes before it is done."""

    @property
    def full_path(self) -> str:
        return self.path if self.is_at_root else PREFIX + self.path


def get(name: str, path: str, summary: str, answer: Any = None, **more: Any) -> Route:  # noqa: ANN401
    return Route(name, "GET", path, summary, answer=answer, **more)


def post(name: str, path: str, summary: str, request: Any = None, answer: Any = None, **more: Any) -> Route:  # noqa: ANN401
    return Route(name, "POST", path, summary, request=request, answer=answer, **more)
