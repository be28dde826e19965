"""Client that calls routes by name with raw bytes and records which routes succeeded and which were refused."""

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from holdfast.http11.client_messages import quote
from holdfast.protocol.route import Route
from holdfast.protocol.routes import ROUTES
from server.approval_client import ApprovalClient, approval_client
from server.helpers import RawResponse, Server, exchange, raw_request

__all__ = ["COVERED", "Api", "Check", "api", "covers"]

ROUTE: dict[str, Route] = {route.name: route for route in ROUTES}
COVERED: set[str] = set()
"""The routes that some test has declared."""


class Api:
    """A client of one workspace that calls any route."""

    def __init__(self, approvals: ApprovalClient) -> None:
        self.approvals = approvals
        self.server: Server = approvals.server
        self.client = approvals.client
        self.workspace = approvals.workspace
        self.done: set[str] = set()
        self.refused: set[str] = set()

    async def call(
        self, name: str, body: object = None, query: dict[str, Any] | None = None, **names: str
    ) -> RawResponse:
        route = ROUTE[name]
        values = {"id": self.workspace, "client_id": self.client.client_id, **names}
        path = route.full_path
        for key, value in values.items():
            path = path.replace("{" + key + "}", quote(value))
        asked = urlencode(query or {})
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = raw_request(path + ("?" + asked if asked else ""), route.method, raw)
        return await exchange(self.server.address, request)

    async def expect_ok(self, name: str, body: object = None, query: dict[str, Any] | None = None, **names: str) -> Any:  # noqa: ANN401
        """Call a route that must succeed. Returns the response."""
        answer = await self.call(name, body, query, **names)
        assert answer.status == ROUTE[name].status, (name, answer.status, answer.body[:300])
        self.done.add(name)
        if ROUTE[name].answer is None:
            assert answer.body == b"", name
            return None
        return answer.json if not (ROUTE[name].media or ROUTE[name].is_page) else answer.body.decode()

    async def expect_error(
        self, status: int, name: str, body: object = None, query: dict[str, Any] | None = None, **names: str
    ) -> str:
        """Call a route that must be refused. Returns the message of the error."""
        answer = await self.call(name, body, query, **names)
        assert answer.status == status, (name, answer.status, answer.body[:300])
        assert list(answer.json) == ["message"]
        self.refused.add(name)
        return str(answer.json["message"])

    async def expect_unknown_workspace(
        self, name: str, body: object = None, query: dict[str, Any] | None = None, **names: str
    ) -> None:
        """Call a route with an unknown workspace id, which is refused before any effect."""
        assert "no such workspace" in await self.expect_error(404, name, body, query, **{"id": "nowhere", **names})

    async def expect_other_server(self, name: str) -> None:
        """Call a route with the id of another data directory, the only reason for which it is refused."""
        request = raw_request(ROUTE[name].full_path, headers=["Holdfast-Data: other"])
        assert (await exchange(self.server.address, request)).status == 421
        self.refused.add(name)

    async def last_event(self) -> int:
        """Return the number of the last stored event, which a refused request does not change."""
        return int((await self.client.snapshot(self.workspace)).cursor)


Check = Callable[[Api], Awaitable[None]]


def covers(*names: str) -> Callable[[Check], Callable[[], Awaitable[None]]]:
    """Mark a test that makes each of these routes succeed and fail."""
    assert set(names) <= set(ROUTE)
    COVERED.update(names)

    def wrap(check: Check) -> Callable[[], Awaitable[None]]:
        @functools.wraps(check)
        async def test() -> None:
            async with api() as opened:
                await check(opened)
                assert set(names) <= opened.done, set(names) - opened.done
                assert set(names) <= opened.refused, set(names) - opened.refused

        del test.__wrapped__
        return test

    return wrap


@asynccontextmanager
async def api() -> AsyncIterator[Api]:
    async with approval_client() as opened:
        yield Api(opened)
