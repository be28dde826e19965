"""Decisions of `holdfast run` before and while its prompt is sent, called in this process."""

from typing import Any

import pytest

from holdfast.cli.run_client import run_command
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", "New session"),
        ("a \n b", "a b"),
        ("x" * 50, "x" * 50),
        ("x" * 51, "x" * 50 + "…"),
        ("x" * 30 + " " + "y" * 20, "x" * 30 + "…"),
    ],
)
def test_the_session_title_is_derived_from_the_prompt(text: str, title: str) -> None:
    assert run_command._title(text) == title


class Wire:
    """Replaces connection and signals; each call of `send` raises the next of the given errors."""

    client_id = "c"
    is_running = False

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.done: list[str] = []

    def wait(self, seconds: float) -> None:
        raise AssertionError(seconds)

    def path(self, *names: str) -> str:
        return "/".join(names)

    def open(self, _: object) -> None:
        self.done.append("open")

    def send(self, method: str, path: str, **_: object) -> None:
        self.done.append(f"{method} {path}")
        if self._errors and (error := self._errors.pop(0)) is not None:
            raise error


POST, DELETE = "POST agent", "DELETE sessions/s"


def _submit(wire: Any, *, is_new: bool) -> bool:  # noqa: ANN401
    return run_command._submit(wire, {"session_id": "s"}, wire, is_new=is_new)


@pytest.mark.parametrize("error", [ConnectionLost(), TimedOut(), Unreachable()], ids=repr)
def test_a_lost_prompt_is_sent_once_more(error: Exception) -> None:
    wire = Wire(error)
    assert _submit(wire, is_new=True)
    assert (wire.done, wire.is_running) == ([POST, "open", POST], True)
    wire = Wire(error, error)
    with pytest.raises(type(error)):
        _submit(wire, is_new=True)
    assert wire.done == [POST, "open", POST]


@pytest.mark.parametrize(
    ("status", "is_new", "is_deleted"),
    [(399, True, False), (400, True, True), (499, True, True), (500, True, False), (400, False, False)],
)
def test_a_new_session_is_deleted_after_a_refused_prompt(status: int, *, is_new: bool, is_deleted: bool) -> None:
    wire = Wire(ServerProblem(status, "no"), ConnectionLost())
    with pytest.raises(ServerProblem):
        _submit(wire, is_new=is_new)
    assert wire.done == [POST, DELETE][: 1 + is_deleted]
