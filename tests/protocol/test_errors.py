"""Status and body of every error type; internal errors and foreign exceptions reveal nothing."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.domain import errors
from holdfast.domain.errors import HoldfastError, RunFolded
from holdfast.domain.ids import RunId
from holdfast.protocol import error_status
from holdfast.protocol.error_status import problem_of, status_of
from holdfast.protocol.routes import ROUTES
from holdfast.server.http.application import Application
from holdfast.server.http.connection import Message
from holdfast.server.http.request import Request
from holdfast.server.streams.event_stream import stream
from server.helpers import in_process_server, server_directory

STATUSES: dict[str, int] = {
    "HoldfastError": 500,
    "BadRequest": 400,
    "EmptyPrompt": 400,
    "InvalidRunId": 400,
    "UnknownSession": 400,
    "NotFound": 404,
    "UnknownRun": 404,
    "Conflict": 409,
    "SessionBusy": 409,
    "WorkspaceClosing": 409,
    "RunIdTaken": 409,
    "RunFolded": 409,
    "SubagentSession": 409,
    "NotWaiting": 409,
    "StorageError": 503,
    "StorageUnavailable": 503,
    "StorageDetached": 503,
    "StoreMisconfigured": 503,
    "StoreUnreachable": 503,
    "StorageUnknown": 503,
    "OwnerChanged": 503,
    "DataDirectoryBusy": 503,
    "DatabaseDamaged": 503,
    "DatabaseTooNew": 503,
    "ProviderError": 400,
    "NoUsableModel": 400,
    "ToolError": 500,
    "PermissionDenied": 500,
    "UnknownWorkspace": 404,
    "TooLarge": 413,
    "OtherDataDirectory": 421,
    "TooManyStreams": 503,
}
"""Errors of the domain and of the protocol. All others have the status of their nearest base here."""

SECRET = "s3cr3t-c4n4ry-17"


def kinds(base: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def make_error(kind: type[HoldfastError], text: str | None) -> HoldfastError:
    return RunFolded(RunId(text or "r1")) if kind is RunFolded else kind(text)


@pytest.fixture(scope="module")
def known_errors() -> list[type[HoldfastError]]:
    """Return all error types of the package, in every module."""
    for package in ("domain", "protocol", "server", "engine", "storage", "config", "providers", "workspace"):
        root = importlib.import_module(f"holdfast.{package}")
        for module in pkgutil.walk_packages(root.__path__, f"holdfast.{package}."):
            if not module.name.endswith(("_main", ".otlp")) and ".sdk" not in module.name:
                importlib.import_module(module.name)
    assert holdfast.__version__
    return list(dict.fromkeys(kinds()))


def test_every_error_has_a_row(known_errors: list[type[HoldfastError]]) -> None:
    ours = {kind.__name__ for kind in known_errors if kind.__module__ in (errors.__name__, error_status.__name__)}
    assert ours == set(STATUSES)


def test_the_status_of_an_error_is_that_of_its_nearest_base_with_a_row(known_errors: list[type[HoldfastError]]) -> None:
    wrong = []
    for kind in known_errors:
        if kind.__init__ not in (HoldfastError.__init__, RunFolded.__init__, errors.ProviderError.__init__):
            continue
        base = next(item.__name__ for item in kind.__mro__ if item.__name__ in STATUSES)
        if status_of(make_error(kind, None)) != STATUSES[base]:
            wrong.append(kind.__name__)
    assert not wrong


def test_body_has_the_message_unless_the_error_is_internal() -> None:
    found = {kind for kind in kinds() if kind.__module__ in (errors.__name__, error_status.__name__)}
    for kind in found:
        body = problem_of(make_error(kind, SECRET)).message
        assert (SECRET in body) is (STATUSES[kind.__name__] != 500), kind
    for error in (ValueError(SECRET), OSError(1, SECRET), KeyError(SECRET), AssertionError(SECRET), RecursionError()):
        assert status_of(error) == 500
        assert SECRET not in problem_of(error).message


async def request(application: Application, path: str) -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    await application({**scope, "headers": [], "client": None, "target": path.encode()}, receive, send)
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


async def test_every_handler_error_has_the_same_body_format(caplog: pytest.LogCaptureFixture) -> None:
    """Also during shutdown: an internal error then becomes 503; all others keep their status."""
    raised: list[BaseException] = []

    async def handler(_: Request) -> None:
        raise raised[-1]

    route = next(route for route in ROUTES if route.name == "version")
    async with server_directory() as where, in_process_server(where) as server:
        application = Application(
            server.manager, server.observers, server.application.server, {"version": handler}, stream
        )
        for is_leaving in (False, True):
            errors_made = [make_error(item, SECRET) for item in kinds() if item.__name__ in STATUSES]
            for error in (*errors_made, ValueError(SECRET)):
                kind = type(error).__name__
                status = STATUSES.get(kind, 500)
                raised.append(error)
                server.manager.is_closed = is_leaving
                caplog.clear()
                answer, body, headers = await request(application, route.full_path)
                server.manager.is_closed = False
                expected = 503 if is_leaving and status == 500 else status
                assert answer == expected, (kind, is_leaving)
                assert list(json.loads(body)) == ["message"]
                assert json.loads(body)["message"]
                assert headers[b"content-type"] == b"application/json"
                assert headers[b"content-length"] == b"%d" % len(body)
                assert headers[b"cache-control"] == b"no-store"
                assert (SECRET.encode() in body) is (status != 500), kind
                assert bool(caplog.records) is (expected == 500), "a fault of our own is in the log, and nothing else"
