"""The route table is complete, has no duplicates, and is served completely."""

import re

from holdfast.client.errors import message_of
from holdfast.domain.errors import (
    DatabaseDamaged,
    EmptyPrompt,
    HoldfastError,
    RunIdTaken,
    StorageUnavailable,
    UnknownRun,
    UnknownSession,
    WorkspaceClosing,
)
from holdfast.protocol.error_status import TooLarge, UnknownWorkspace, problem_of, status_of
from holdfast.protocol.openapi import document
from holdfast.protocol.routes import ROUTES
from holdfast.server.routes.handlers import HANDLERS


def test_names_and_paths_are_unique() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_every_route_has_its_handler() -> None:
    assert all(callable(HANDLERS[route.name]) for route in ROUTES if not route.streams)


def test_the_document_contains_every_route() -> None:
    paths = document()["paths"]
    for route in ROUTES:
        operation = paths[route.full_path][route.method.lower()]
        assert operation["operationId"] == route.name
        assert str(route.status) in operation["responses"]
        names = {item["name"] for item in operation["parameters"] if item["in"] == "path"}
        assert names == set(re.findall(r"\{(\w+)\}", route.path))


def test_each_error_has_its_documented_status() -> None:
    expected: list[tuple[HoldfastError, int]] = [
        (EmptyPrompt(), 400),
        (UnknownSession(), 400),
        (UnknownWorkspace(), 404),
        (UnknownRun(), 404),
        (RunIdTaken(), 409),
        (WorkspaceClosing(), 409),
        (TooLarge(), 413),
        (StorageUnavailable(), 503),
        (DatabaseDamaged(), 503),
    ]
    for error, status in expected:
        assert status_of(error) == status
        assert problem_of(error).message == str(error)


def test_an_internal_error_reveals_nothing() -> None:
    assert status_of(ValueError("secret")) == 500
    assert "secret" not in problem_of(ValueError("secret")).message


def test_unreadable_error_body_has_no_message() -> None:
    """C-28: only the status is shown, and nothing is echoed."""
    for body in (b"", b"<html>", b"{}", b'{"message":""}', b'{"message":5}', b"\xff"):
        assert message_of(body) is None
    assert message_of(b'{"message":"no","more":1}') == "no"
