"""Servers of other versions, in this process: which are replaced, which are used, and which are refused."""

from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.client import server_check
from holdfast.client.errors import BrokenResponse, ConnectionLost, TimedOut
from holdfast.client.server_check import VersionMismatch, describe, replace_outdated
from holdfast.client.sync_client import ServerInfo
from holdfast.protocol import PROTOCOL
from planting import CLAUSES, assert_every_clause_decides


class FakeClient:
    """Answers with a status, or raises."""

    def __init__(self, server: ServerInfo | None = None, answer: Any = (200, b"")) -> None:  # noqa: ANN401
        self.server = server
        self.answer = answer
        self.requests: list[tuple[object, ...]] = []
        self.is_closed = False

    def request(self, *given: object, **more: object) -> tuple[int, bytes]:
        self.requests.append((*given, *more.values()))
        if isinstance(self.answer, Exception):
            raise self.answer
        status, body = self.answer
        return status, body

    def close(self) -> None:
        self.is_closed = True


def server(version: str = "1.2.3", protocol: int = PROTOCOL, data_id: str = "d") -> ServerInfo:
    return ServerInfo(version, protocol, 5, data_id)


NEWER, OLDER = "newer", "older"
SERVERS: list[tuple[ServerInfo | None, bool, object]] = [
    # the server, whether it is asked to exit, and the result if it refuses
    (None, False, False),
    (server(), False, False),
    (server("1.2.2"), True, False),
    (server("1.1.9"), True, False),
    (server("1.2"), True, False),
    (server("1.2.4"), False, False),
    (server("1.10.0"), False, False),
    (server("2.0.0"), False, False),
    (server("1.2.x"), False, False),
    (server("1.2.²"), False, False),
    (server(""), False, False),
    (server(data_id=""), True, False),
    (server("2.0.0", data_id=""), True, False),
    (server(protocol=PROTOCOL - 1), True, OLDER),
    (server("2.0.0", protocol=PROTOCOL - 1), True, OLDER),
    (server(protocol=PROTOCOL + 1), False, NEWER),
    (server("0.0.1", protocol=PROTOCOL + 1, data_id=""), False, NEWER),
]


class Waits:
    """The end of the server's process: a descriptor, or None where the system has none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.descriptor: int | None = 7
        self.waits: list[tuple[list[int], float]] = []
        self.closed: list[int] = []
        monkeypatch.setattr(server_check, "__version__", "1.2.3")
        monkeypatch.setattr(server_check, "end_of", lambda _: self.descriptor)
        monkeypatch.setattr(server_check, "os", SimpleNamespace(close=self.closed.append))
        monkeypatch.setattr(server_check, "select", SimpleNamespace(select=self._select))

    def _select(self, reading: list[int], _w: object, _x: object, seconds: float) -> None:
        self.waits.append((reading, seconds))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


def outcome(client: FakeClient) -> object:
    given: Any = client
    try:
        return replace_outdated(given)
    except VersionMismatch as error:
        return NEWER if "newer" in str(error) else OLDER


def check_servers(waits: Waits) -> None:
    for found, is_asked, refused in SERVERS:
        for status, descriptor in product((199, 200, 204, 299, 300, 409), (7, None)):
            waits.descriptor = descriptor
            waits.waits.clear()
            waits.closed.clear()
            client = FakeClient(found, (status, b""))
            has_agreed = is_asked and 200 <= status < 300
            assert outcome(client) == (True if has_agreed else refused), (found, status)
            assert client.is_closed == has_agreed
            assert client.requests == ([("POST", "/v1/control", b'{"command":"replace"}')] if is_asked else [])
            assert waits.waits == ([([7], 5.0)] if has_agreed and descriptor else [])
            assert waits.closed == ([7] if is_asked and descriptor else [])


def test_every_mistake_about_versions_is_noticed(waits: Waits) -> None:
    functions = [replace_outdated, server_check._parts, server_check._has_exited]
    kinds = CLAUSES | {"comparison", "exit", "argument"}
    assert_every_clause_decides(functions, partial(check_servers, waits), kinds=kinds)


def test_a_failed_request_leaves_no_descriptor(waits: Waits) -> None:
    with pytest.raises(ConnectionLost):
        outcome(FakeClient(server("1.0.0"), ConnectionLost()))
    assert waits.closed == [7]


VERSION = b'{"version":"1","protocol":2,"pid":"3","data_id":"d"}'
ANSWERS: list[tuple[Any, ServerInfo | None]] = [
    ((200, VERSION), ServerInfo("1", 2, 3, "d")),
    ((299, VERSION), ServerInfo("1", 2, 3, "d")),
    ((200, b'{"version":1,"protocol":2,"pid":3}'), ServerInfo("1", 2, 3, "")),
    ((199, VERSION), None),
    ((300, VERSION), None),
    ((404, VERSION), None),
    ((200, b""), None),
    ((200, b"<html>"), None),
    ((200, b"[]"), None),
    ((200, b"5"), None),
    ((200, b'"version"'), None),
    ((200, b'{"version":"1","protocol":"x","pid":3}'), None),
    ((200, b'{"version":"1","protocol":null,"pid":3}'), None),
    ((200, b'{"protocol":2,"pid":3}'), None),
    ((200, b"[" * 100_000), None),
    ((200, b"\xff"), None),
    (ConnectionLost(), None),
    (BrokenResponse(), None),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_the_description_of_a_server(number: int) -> None:
    answer, expected = ANSWERS[number]
    client: Any = FakeClient(answer=answer)
    assert describe(client, 4.0) == expected
    assert client.requests == [("GET", "/v1/version", 4.0)]


def test_a_server_that_does_not_answer_is_no_other_program() -> None:
    client: Any = FakeClient(answer=TimedOut())
    with pytest.raises(TimedOut):
        describe(client, 4.0)
