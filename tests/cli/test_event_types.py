"""Every type of event, and its output in the commands that follow a session."""

import pytest

from client.every_event import ABOUT_A_SESSION, TYPES, event_of
from holdfast.cli.attach import _Screen, _show
from holdfast.cli.common import CommandError
from holdfast.cli.run_client.run_follow import event_session
from holdfast.domain.ids import SessionId

HERE, THERE = SessionId("here"), SessionId("there")
PRINTED = {
    "message": "words of an answer",
    "permission_request": "[write requests permission: Write it]\n",
    "permission_notification": "[Permission was granted.]\n",
    "question_batch_request": "[Question: Shall I?]\n",
    "question_batch_notification": "[The question is closed.]\n",
}
"""What `attach` prints of an event without anything before it. Growth needs its message first."""
GROWTH = {"message_delta": "words of an answer and more", "message_part": "words of an answer"}
NOT_REPORTED = {"attached", "removed", "tool_output"}
"""About a session, but not part of what programs are told of it."""


@pytest.mark.parametrize("name", TYPES)
def test_the_session_of_every_event_type(name: str) -> None:
    is_about = name in ABOUT_A_SESSION - NOT_REPORTED
    assert event_session(event_of(name, HERE)) == (HERE if is_about else None)


@pytest.mark.parametrize("name", TYPES)
def test_the_output_of_every_event_type(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    for session in (THERE, HERE):
        screen = _Screen()
        if name in GROWTH:
            _show(event_of("message", session), HERE, screen, None)
        _show(event_of(name, session), HERE, screen, None)
        output = capfd.readouterr().out
        assert output == (GROWTH.get(name) or PRINTED.get(name, "") if session == HERE else "") or (
            name == "message_part" and session == HERE and output.startswith("words of an answer")
        )


def test_a_deleted_session_ends_attach(capfd: pytest.CaptureFixture[str]) -> None:
    _show(event_of("session", THERE, change="deleted"), HERE, _Screen(), None)
    with pytest.raises(CommandError, match="was deleted"):
        _show(event_of("session", HERE, change="deleted"), HERE, _Screen(), None)
    _show(event_of("message", HERE, change="deleted"), HERE, _Screen(), None)
    assert capfd.readouterr().out == ""
