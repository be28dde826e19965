"""Errors at each step of a command that follows a stream, with a server in this process: what is repeated, what is
reported, and the exit code.
"""

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.fake_server import LOCATION, FakeServer, event
from client.scripted_server import session_event
from holdfast.cli import attach, server_connection
from holdfast.cli import server as server_command
from holdfast.cli.common import CommandError
from holdfast.cli.console import run_output
from holdfast.cli.run_client import run_command
from holdfast.cli.run_client.run_arg_parser import RunArgs
from holdfast.cli.run_client.run_events import RunEvents
from holdfast.cli.run_client.run_follow import RunFollower, ServerGone
from holdfast.cli.run_client.run_lookup import recorded_directory, recorded_runs
from holdfast.cli.server_connection import FROM_NOW, ServerConnection
from holdfast.client.errors import (
    BrokenResponse,
    ClientError,
    ConnectionLost,
    ServerProblem,
    TimedOut,
    Unreachable,
)
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import (
    Change,
    ConfigChanged,
    ConfigChangedEvent,
    Gap,
    GapEvent,
    MessageEvent,
    RunComplete,
    RunCompleteEvent,
    SessionEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Finish, FinishPart, Message, Text, TextPart
from holdfast.domain.runs import Outcome, Run
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody

S = SessionId("s")
LOST: list[ClientError] = [ConnectionLost(), TimedOut(), Unreachable()]
NAMES = ["ConnectionLost", "TimedOut", "Unreachable"]


def response(name: str, text: str) -> Message:
    parts = (TextPart(Text(text)), FinishPart(Finish("end_turn", 1)))
    return Message(parts, MessageId(name), "assistant", S, "", "", 1, 1)


def message(name: str, number: int) -> Any:  # noqa: ANN401
    return event(MessageEvent(Change("created", response(name, f"<{name}>"))), number)


DELETED = event(SessionEvent(Change("deleted", session_event("s").change.object)), 90)


# holdfast attach


def snapshot(cursor: int, *messages: Message) -> SnapshotBody:
    return SnapshotBody(cursor, 1, WorkspaceBody(WorkspaceId("w"), "/work"), (), messages, ())


def attached(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeServer, ServerConnection]:
    server = FakeServer(monkeypatch)
    server.answers |= {"GET W/snapshot": snapshot(5, response("m1", "<m1>")), "GET W/permissions/skip": {"skip": False}}
    return server, server.connection()


@pytest.mark.parametrize("error", LOST, ids=NAMES)
@pytest.mark.parametrize("step", ["open", "first", "later", "mode"])
def test_a_lost_stream_is_resumed(
    error: ClientError, step: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, connection = attached(monkeypatch)
    broken: dict[str, Any] = {
        "open": error, "first": [error], "later": [message("m2", 7), error], "mode": [message("m2", 7)],
    }  # fmt: skip
    if step == "mode":
        server.answers["GET W/permissions/skip"] = [error, {"skip": False}]
    server.streams = [broken[step], [message("m2", 7), message("m3", 8), DELETED]]
    with pytest.raises(CommandError, match="The session was deleted"):
        attach._follow_with(connection, S, attach._Screen(), None)
    assert server.since == [5, 7 if step == "later" else 5]
    assert capfd.readouterr().out.split() == ["<m1>", "<m2>", "<m3>"], "each text once"
    assert server.connects == 1
    assert all(stream.is_closed for stream in server.opened_streams)


@pytest.mark.parametrize("error", [BrokenResponse(), ServerProblem(404, "gone")])
@pytest.mark.parametrize("step", ["open", "later"])
def test_other_errors_end_the_command(error: ClientError, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, connection = attached(monkeypatch)
    server.streams = [error if step == "open" else [message("m2", 7), error]]
    with pytest.raises(type(error)):
        attach._follow_with(connection, S, attach._Screen(), None)


def test_a_stream_that_ends_is_resumed_and_a_gap_is_filled(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, connection = attached(monkeypatch)
    first, second = (snapshot(cursor, response("m1", "<m1>"), response("m9", "<m9>")) for cursor in (5, 40))
    server.answers["GET W/snapshot"] = [snapshot(5, response("m1", "<m1>")), second, first]
    server.streams = [[message("m2", 7)], [event(GapEvent(Gap(30, 1, 1))), message("m8", 31), DELETED]]
    with pytest.raises(CommandError):
        attach._follow_with(connection, S, attach._Screen(), None)
    assert (server.since, server.connects) == ([5, 7], 1)
    assert capfd.readouterr().out.split() == ["<m1>", "<m2>", "<m9>", "<m8>"]


def test_the_mode_is_read_with_each_stream_and_each_change(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, connection = attached(monkeypatch)
    server.answers["GET W/permissions/skip"] = [{"skip": skip} for skip in (False, True, False, True)]
    changed = event(ConfigChangedEvent(Change("updated", ConfigChanged("w"))))  # type: ignore[arg-type]
    server.streams = [[changed, changed, ConnectionLost()], [DELETED]]
    with pytest.raises(CommandError):
        attach._follow_with(connection, S, attach._Screen(), None)
    modes = [line.split()[2] for line in capfd.readouterr().out.splitlines() if line.startswith("[Auto")]
    assert modes == ["on:", "off:", "on:"]


# holdfast run: until the prompt is accepted


class _Signals:
    def __init__(self) -> None:
        self.is_running = False
        self.stops = 0
        self.is_installed = False

    def install(self) -> None:
        """Leave the handlers of the test run."""
        self.is_installed = True

    def wait(self, seconds: float) -> None:
        """Wait no real time."""


class Running:
    """`holdfast run` up to the moment it follows its run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = FakeServer(monkeypatch)
        self.server.answers |= {
            "POST W/sessions": {"id": "s"}, "POST W/agent": (202, {}), "DELETE W/sessions/s": {},
            "GET W/runs/given": (404, {"message": "no"}),
        }  # fmt: skip
        self.server.streams = [[], []]
        self.followed: list[tuple[float | None, bool]] = []
        monkeypatch.setattr(run_command, "Signals", _Signals)
        monkeypatch.setattr(run_command, "locate", lambda *_: LOCATION)
        monkeypatch.setattr(run_command, "_follow", self._follow)

    def _follow(self, _connection: object, signals: _Signals, _args: object, sent: Any, _stream: object) -> int:  # noqa: ANN401
        assert signals.is_installed
        self.followed.append((sent.deadline, sent.may_be_old))
        return 0

    def run(self, **more: Any) -> int:  # noqa: ANN401
        return run_command.execute(RunArgs("/work", ("hi",), **more))


STEPS = ["POST /v1/workspaces", "POST W/sessions", "stream", "POST W/agent"]
OPEN = "POST /v1/workspaces"


def fail_at(running: Running, step: str, *errors: Any) -> None:  # noqa: ANN401
    if step == "stream":
        running.server.streams = [*errors, []]
    else:
        running.server.answers[step] = [*errors, running.server.answers[step]]


@pytest.mark.parametrize("error", LOST, ids=NAMES)
@pytest.mark.parametrize("step", STEPS)
def test_a_lost_request_is_repeated_once_if_that_is_safe(
    error: ClientError, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session and a stream may be requested again, unless the time is over; a prompt has a run id."""
    running = Running(monkeypatch)
    fail_at(running, step, error)
    code = running.run()
    sent = running.server.sent()
    if isinstance(error, TimedOut) and step in ("POST W/sessions", "stream"):
        assert (code, "did not respond in time" in capsys.readouterr().err) == (4, True)
        return
    assert code == 0
    expected = {
        OPEN: [OPEN, OPEN, "POST W/sessions", "POST W/agent"],
        "POST W/sessions": [OPEN, "POST W/sessions", OPEN, "POST W/sessions", "POST W/agent"],
        "stream": [OPEN, "POST W/sessions", OPEN, "POST W/agent"],
        "POST W/agent": [OPEN, "POST W/sessions", "POST W/agent", OPEN, "POST W/agent"],
    }
    assert sent == expected[step]
    assert running.followed == [(None, step == "POST W/agent")], "a repeated prompt may have ended meanwhile"
    prompts = [request for request in running.server.requests if request.name == "POST W/agent"]
    assert {request.can_repeat for request in prompts} == {True}
    assert len({request.body["run_id"] for request in prompts}) == 1


@pytest.mark.parametrize("step", ["POST W/sessions", "stream", "POST W/agent"])
def test_a_request_that_is_lost_twice_is_an_error(
    step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Running(monkeypatch)
    fail_at(running, step, ConnectionLost(), ConnectionLost())
    assert running.run() == 4
    assert running.followed == []
    assert "broke before the response" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "is_new", "is_deleted"),
    [
        (400, True, True),
        (409, True, True),
        (499, True, True),
        (500, True, False),
        (503, True, False),
        (409, False, False),
    ],
)
@pytest.mark.parametrize("is_deletable", [True, False])
def test_a_refused_prompt_leaves_no_new_session(
    status: int, is_new: bool, is_deleted: bool, is_deletable: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    running = Running(monkeypatch)
    running.server.answers["POST W/agent"] = (status, {"message": "Not now."})
    if not is_deletable:
        running.server.answers["DELETE W/sessions/s"] = ConnectionLost()
    assert running.run(session=None if is_new else "5" * 32) == 4
    assert ("DELETE W/sessions/s" in running.server.sent()) is is_deleted
    assert "Not now." in capsys.readouterr().err, "the refusal is reported, whatever becomes of the session"


@pytest.mark.parametrize(("timeout", "code"), [(None, 4), (1000.0, 4), (0.0, 124)])
@pytest.mark.parametrize("step", ["POST W/sessions", "POST W/agent"])
def test_exit_code_of_a_timeout(timeout: float | None, code: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch)
    running.server.answers[step] = TimedOut()
    assert running.run(timeout=timeout) == code


def test_a_given_run_id_may_be_that_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch)
    assert running.run(run_id="given") == 0
    running.server.answers["GET W/runs/given"] = {"session_id": "s"}
    assert running.run(run_id="given") == 0
    assert running.followed == [(None, True)] * 2
    assert running.server.sent().count("POST W/sessions") == 1, "an earlier run keeps its session"


def test_no_stream_is_opened_for_a_detached_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    running = Running(monkeypatch)
    monkeypatch.setattr(run_command, "locate", lambda *_: LOCATION._replace(data_dir=str(tmp_path)))
    assert running.run(detach=True) == 0
    assert running.server.since == []
    assert recorded_runs(str(tmp_path)) == [capfd.readouterr().out.strip()]
    assert running.run() == 0
    assert running.server.since == [FROM_NOW]


# holdfast run: after the prompt is accepted

ENDS: dict[str, tuple[object, bool, int, int, bool]] = {
    # the end, overdue, signals, exit code, recorded
    "completed": ("completed", False, 0, 0, False),
    "failed": ("failed", False, 0, 1, False),
    "unreachable": ("unreachable", False, 0, 4, False),
    "interrupted": ("interrupted", False, 0, 3, False),
    "cancelled": ("cancelled", False, 1, 130, False),
    "overdue": ("cancelled", True, 0, 124, False),
    "gone": (ServerGone("gone"), False, 0, 4, True),
    "gone after a signal": (ServerGone("gone"), False, 1, 130, True),
    "gone after the timeout": (ServerGone("gone"), True, 0, 124, True),
    "gone after both": (ServerGone("gone"), True, 1, 124, True),
    "left": (SystemExit(129), False, 0, 129, True),
    "left twice": (SystemExit(130), False, 2, 130, True),
}


@pytest.mark.parametrize("name", ENDS)
def test_exit_code_and_record_of_each_end(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A user who leaves without the answer finds the run from any directory."""
    end, is_overdue, stops, expected, is_recorded = ENDS[name]
    calls: list[tuple[object, ...]] = []

    def follow(follower: RunFollower, stream: object, deadline: float | None, *, may_be_old: bool) -> object:
        follower.is_overdue = is_overdue
        calls.append((stream, deadline, may_be_old))
        if isinstance(end, BaseException):
            raise end
        outcome: Outcome = "failed" if end == "unreachable" else end  # type: ignore[assignment]
        return RunComplete(S, MessageId("m"), RunId("r"), outcome, text="", model_unreachable=end == "unreachable")

    monkeypatch.setattr(RunFollower, "run", follow)
    server = FakeServer(monkeypatch)
    connection = server.connection(LOCATION._replace(data_dir=str(tmp_path)))
    signals: Any = SimpleNamespace(stops=stops, wake=0)
    stream: Any = object()
    try:
        code = run_command._follow(
            connection, signals, RunArgs("/here"), run_command._SentPrompt("r", "s", 5.0, may_be_old=True), stream
        )
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else -1
    assert code == expected
    assert calls == [(stream, 5.0, True)]
    assert recorded_directory(str(tmp_path), "r") == ("/here" if is_recorded else None)
    if isinstance(end, ServerGone):
        assert capfd.readouterr().err == "holdfast: gone\n"


START = event(GapEvent(Gap(10, 1, 1)))
END = event(
    RunCompleteEvent(Change("updated", RunComplete(S, MessageId("m2"), RunId("r"), "completed", text="hi"))), 14
)


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize(
    ("first", "since"),
    [
        ([START, ConnectionLost()], 10),
        ([START, message("m0", 11), message("m1", 12), ConnectionLost()], 12),
        # No position was received: the stream begins with the run, which was accepted with number 11.
        ([ConnectionLost()], 10),
    ],
)
def test_every_event_of_a_run_is_printed_across_a_lost_connection(
    first: list[Any], since: int, has_ended: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """R6. The run may end before the stream is resumed. Then its last events are read nevertheless, unless the command
    has no position: the stored end is sufficient.
    """
    server = FakeServer(monkeypatch)
    known = Run(RunId("r"), S, "active", "queue", 1, number=11, message_id=MessageId("m2"))
    if has_ended:
        known = msgspec.structs.replace(known, state="ended", outcome="completed")
    server.answers |= {"GET W/runs/r": known, "GET W/sessions/s/messages": (200, [response("m2", "hi")])}
    log = [message("m0", 11), message("m1", 12), message("m2", 13), END]
    server.streams = [first, [item for item in log if item.number is not None and item.number > since]]
    connection = server.connection()
    output = run_output.RunOutput("json", is_quiet=True)
    signals: Any = SimpleNamespace(
        stops=0, wake=0, is_hung_up=False, drain=lambda: None, wait=lambda _: None, confirm_cancel=lambda: None
    )
    follower = RunFollower(connection, signals, output, RunEvents(RunId("r"), S, output))
    end = follower.run(connection.stream(FROM_NOW), None, may_be_old=False)
    assert (end.outcome, end.text) == ("completed", "hi")
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    if first[0] is START or not has_ended:
        assert server.since == [FROM_NOW, since]
        assert [line["type"] for line in printed] == ["message", "message", "message", "run_complete"]
    else:
        assert [line["type"] for line in printed] == ["run_complete"]


# Every command: opening the workspace


@pytest.mark.parametrize("error", [*LOST, ServerProblem(503, "stopping")], ids=[*NAMES, "503"])
def test_a_workspace_is_opened_again_after_a_transient_error(
    error: ClientError, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(monkeypatch)
    server.answers[OPEN] = [error, error, error, {"id": "w", "yolo": True, "problems": ["p"]}]
    made = ServerConnection(LOCATION, "/work")
    made.open(server.pauses.append)
    assert server.pauses == [0.02, 0.04, 0.08]
    assert (made.workspace, made.is_yolo, made.problems) == ("w", True, ["p"])
    server.answers[OPEN] = {"id": "w"}
    made.open(server.pauses.append)
    assert (made.is_yolo, made.problems) == (False, [])


@pytest.mark.parametrize("status", [400, 401, 409, 500, 502, 504])
def test_a_refused_workspace_is_not_tried_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch)
    server.answers[OPEN] = (status, {"message": "no"})
    with pytest.raises(ServerProblem):
        ServerConnection(LOCATION, "/work").open(server.pauses.append)
    assert (server.pauses, len(server.requests)) == ([], 1)


def test_a_workspace_is_tried_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(server_connection, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def pause(seconds: float) -> None:
        now[0] += seconds

    for deadline, limit in ((None, 5.0), (2.0, 2.0), (100.0, 5.0)):
        server = FakeServer(monkeypatch)
        server.answers[OPEN] = ConnectionLost()
        made = ServerConnection(LOCATION, "/work")
        now[0], made.deadline = 0.0, deadline
        with pytest.raises(ConnectionLost):
            made.open(pause)
        assert limit < now[0] <= limit + 0.5
        assert server.requests[0].timeout == (30.0 if deadline is None else min(deadline, 30.0))


def test_a_server_is_started_once_and_again_only_after_it_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch)
    server.finds = lambda: False
    made = ServerConnection(LOCATION, "/work")
    made.open(server.pauses.append)
    assert server.starts == 1
    made.open(server.pauses.append)
    assert server.starts == 2, "a server that was used and died is replaced once"
    with pytest.raises(Unreachable):
        made.connect()
    assert server.starts == 2
    foreign = ServerConnection(LOCATION._replace(can_be_started=False), "/work")
    with pytest.raises(Unreachable):
        foreign.open(server.pauses.append)
    assert server.starts == 2


@pytest.mark.parametrize(
    ("location", "is_sent"),
    [
        (LOCATION, True),
        (LOCATION._replace(again=lambda: None), False),
        (ServerLocation(ServerAddress(host="h", port=1), "", can_be_started=False), False),
    ],
    ids=["local", "ssh", "tcp"],
)
def test_the_environment_is_sent_to_local_servers_only(
    location: ServerLocation, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "sings")
    server = FakeServer(monkeypatch)
    ServerConnection(location, "/work").open(server.pauses.append)
    (request,) = server.requests
    assert ("CANARY=sings" in request.body.get("env", ())) is is_sent
    assert set(request.body) == {"id", "path", "client_id"} | ({"env"} if is_sent else set())
    assert os.environ["CANARY"] == "sings"


@pytest.mark.parametrize("name", ["send", "request", "request_json"])
def test_every_keyword_of_a_request_is_passed_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch)
    connection = server.connection()
    server.answers["POST W/x"] = {"a": 1}
    keywords: dict[str, Any] = {"body": {"b": 2}, "query": (("q", 3),), "can_repeat": True, "seconds": 4.0}
    known = {"send": set(keywords), "request": {*keywords} - {"seconds"}, "request_json": {"body", "can_repeat"}}[name]
    first: tuple[Any, ...] = (dict[str, int],) if name == "request" else ()

    def call(**given: Any) -> None:  # noqa: ANN401
        getattr(connection, name)(*first, "POST", connection.path("x"), **given)

    call()
    call(**{key: keywords[key] for key in known})
    plain, full = server.requests
    assert (plain.body, plain.query, plain.can_repeat, plain.timeout) == (None, {}, False, 30.0)
    assert full.body == {"b": 2}
    assert full.can_repeat
    assert full.query == ({"q": 3} if "query" in known else {})
    assert full.timeout == (4.0 if "seconds" in known else 30.0)


@pytest.mark.parametrize(("listens", "expected"), [("yes", CommandError), ("no", TimedOut), ("tcp", TimedOut)])
def test_an_unresponsive_server_is_named_if_it_can_be(listens: str, expected: type[Exception], tmp_path: Path) -> None:
    """Without a process to name, the error is that of the request."""
    path = str(tmp_path / "s")
    address = ServerAddress(host="127.0.0.1", port=1) if listens == "tcp" else ServerAddress(path=path)
    connection = ServerConnection(ServerLocation(address, "", can_be_started=False))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        if listens == "yes":
            listener.listen()
        with pytest.raises(expected) as caught, server_command._report_unresponsive(connection):
            raise TimedOut
    assert (f"kill -9 {os.getpid()}:" in str(caught.value)) is (listens == "yes")
