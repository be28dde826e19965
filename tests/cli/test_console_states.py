"""The console of commands without processes: what is written to which stream, in every state of the terminal and of a
run; and the commands that follow a run or a session, from their arguments to their exit codes.
"""

import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from click.testing import CliRunner

from cli.recorded_outputs import Desk
from holdfast.cli import attach, main, mcp, migrate, serve
from holdfast.cli.click_group import holdfast
from holdfast.cli.console import run_output, transcript
from holdfast.cli.console.run_output import RunOutput, print_result
from holdfast.cli.run_client import run_follow
from holdfast.cli.server_connection import FROM_NOW
from holdfast.client.server_launcher import EXIT_ADDRESS_IN_USE
from holdfast.domain.errors import DataDirectoryBusy, HoldfastError, StoreMisconfigured, StoreUnreachable
from holdfast.domain.events import RunComplete
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    Part,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.runs import Outcome
from holdfast.server.http.listen import AddressTaken

CLEAR = "\r\x1b[K"


# Output of a run


class Streams:
    """Both streams, each of which may be a terminal. The clock stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, out: bool, err: bool, term: str = "xterm") -> None:
        self.out: list[bytes] = []
        self.err: list[str] = []
        self.flushes = 0
        self.now = 10.0
        monkeypatch.setattr(run_output, "_is_terminal", lambda descriptor: {1: out, 2: err}[descriptor])
        monkeypatch.setattr(run_output, "_write", self.out.append)
        monkeypatch.setattr(run_output, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=self.err.append, flush=self._flush))
        monkeypatch.setenv("TERM", term)

    def _flush(self) -> None:
        self.flushes += 1

    def taken(self) -> tuple[str, str]:
        found = b"".join(self.out).decode(), "".join(self.err)
        assert self.flushes == len(self.err) or not self.err, "stderr is written at once"
        self.out.clear()
        self.err.clear()
        self.flushes = 0
        return found


STATES = [
    dict(zip(("out", "err", "is_quiet", "is_verbose", "dumb"), values, strict=True))
    for values in itertools.product((False, True), repeat=5)
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: " ".join(name for name in state if state[name]) or "plain")
def test_progress_is_drawn_only_where_it_can_be_removed(
    state: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(monkeypatch, out=state["out"], err=state["err"], term="dumb" if state["dumb"] else "xterm")
    output = RunOutput("stream", is_quiet=state["is_quiet"], is_verbose=state["is_verbose"])
    draws = state["err"] and not (state["is_quiet"] or state["is_verbose"] or state["dumb"])
    assert output.draws is draws
    streams.now += 2.5
    output.draw()
    assert streams.taken() == ("", f"{CLEAR}⠙ working · 2 s" if draws else "")
    output.set_activity("tool ls")
    output.set_activity("tool ls")
    assert streams.taken() == ("", "    2.5 s  tool ls\n" if state["is_verbose"] else "")
    output.draw()
    output.print_notice("wait")
    drawn = f"{CLEAR}⠹ tool ls · 2 s{CLEAR}" if draws else ""
    assert streams.taken() == ("", drawn + ("" if state["is_quiet"] else "holdfast: wait\n"))
    output.write_piece(MessageId("a"), "one")
    output.draw()
    shares = draws and state["out"]
    assert streams.taken() == ("one", f"{CLEAR}⠸ tool ls · 2 s" if draws and not shares else "")
    output.print_notice("x")
    removed = CLEAR if draws and not shares else ""
    assert streams.taken() == ("\n" if shares else "", "" if state["is_quiet"] else f"{removed}holdfast: x\n")
    output.clear()
    output.write_piece(MessageId("a"), "two")
    output.write_piece(MessageId("b"), "three")
    output.retract()
    output.retract()
    assert streams.taken()[0] == "two\nthree\n"
    assert output.prompt("> ") is not state["dumb"]
    output.prompt("> ")
    output.prompt("> a")
    assert streams.taken() == ("", "" if state["dumb"] else f"{CLEAR}> {CLEAR}> a")
    output.clear()
    output.clear()
    assert streams.taken() == ("", "" if state["dumb"] else CLEAR)


@pytest.mark.parametrize("shows", [True, False])
@pytest.mark.parametrize("mode", get_args(run_output.Mode))
def test_the_final_text(mode: run_output.Mode, shows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch, out=shows, err=False)
    rows = {
        ("abc", 0): {"final": "abc\n", "stream": "abc"},
        ("abc\n", 0): {"final": "abc\n\n", "stream": "abc\n"},
        ("abc", 2): {"final": "abc\n", "stream": "c"},
        ("abc", 3): {"final": "abc\n", "stream": ""},
        ("", 0): {"final": "\n", "stream": ""},
    }
    for (text, length), expected in rows.items():
        output = RunOutput(mode)
        output.finish(MessageId("a"), text, length)
        ended = expected.get(mode, "")
        assert streams.taken()[0] == ended + "\n" * (mode == "stream" and bool(ended) and not ended.endswith("\n"))
        output.write_event(b"{}")
        assert streams.taken()[0] == ("{}\n" if mode == "json" else "")
    for is_raw in (True, False):
        output = RunOutput(mode, is_raw=is_raw)
        output.write("a\x1b[3")
        output.write("1mb\u202e")
        raw = "a\x1b[31mb\u202e"
        assert streams.taken()[0] == (raw if is_raw else "ab" if shows else "ab\u202e")


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("is_overdue", [True, False])
@pytest.mark.parametrize("is_unreachable", [True, False])
@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_the_end_of_a_run(
    outcome: Outcome, is_unreachable: bool, is_overdue: bool, is_inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(monkeypatch, out=False, err=False)
    output = RunOutput("stream")
    if is_inside:
        output.write("x")
    for error in ("", "no money"):
        end = RunComplete(
            SessionId("s"), MessageId("m"), RunId("r"), outcome, text="xy", error=error,
            model_unreachable=is_unreachable,
        )  # fmt: skip
        code = print_result(end, 1, output, is_overdue=is_overdue)
        out, err = streams.taken()
        if outcome == "completed":
            assert (code, out.removeprefix("x"), err) == (0, "y\n", "")
            continue
        assert out == ("x\n" if is_inside and not error else "")
        expected = {
            "failed": (4 if is_unreachable else 1, f"the run failed: {error or 'no reason was given'}\n"),
            "interrupted": (
                3,
                "the run was interrupted, because the server stopped. Show the text so far: holdfast sessions show s; "
                "continue: holdfast run --session s …\n",
            ),
            "cancelled": (124, "timed out and cancelled.\n") if is_overdue else (130, "cancelled.\n"),
        }[outcome]
        assert (code, err) == (expected[0], f"holdfast: {expected[1]}")


def test_a_stream_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch, out=False, err=True)
    output = RunOutput("final")
    output.remedy = "Ask again."

    def fail(error: Exception) -> Any:  # noqa: ANN401
        def write(_: object) -> None:
            raise error

        return write

    for error, code, said in (
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space"), 1, "holdfast: the answer could not be written: No space. Ask again.\n"),
    ):
        monkeypatch.setattr(run_output, "_write", fail(error))
        with pytest.raises(SystemExit) as left:
            output.write("x")
        assert (left.value.code, streams.taken()[1]) == (code, said)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=fail(OSError()), flush=lambda: None))
    run_output.print_stderr("lost")
    output.draw()
    assert not output.draws, "the terminal is gone"


# A conversation as text


def said(role: Any, *parts: Part) -> Message:  # noqa: ANN401
    return Message(parts, MessageId("m"), role, SessionId("s"), "", "", 1, 1)


def result(content: str) -> ToolResult:
    return ToolResult(ToolCallId("c"), "bash", content, "", is_error=False)


def test_parts_of_a_conversation() -> None:
    for count in (0, 1, 8, 9, 10, 11):
        lines = [f"l{number}" for number in range(count)]
        shown = lines if count <= 9 else [f"… {count - 8} earlier lines", *lines[-8:]]
        for text in ("\n".join(lines), "\n" + "\n".join(lines) + "\n\n<cwd>/x</cwd>"):
            assert transcript.last_output_lines(result(text)) == shown
    for reason, message, details, expected in (
        ("canceled", "", "", "[canceled]"), ("error", "m", "", "[m]"), ("error", "m", "d", "[m: d]"),
        ("error", "", "d", "[error: d]"), ("end_turn", "m", "d", ""),
    ):  # fmt: skip
        assert (
            transcript.finish_notice(said("assistant", FinishPart(Finish(cast(Any, reason), 1, message, details))))
            == expected
        )
    assert transcript.finish_notice(said("assistant")) == ""
    for text, expected in (
        ('{"command": "ls"}', "ls"), ('{"prompt": "p", "path": "q", "command": ""}', "q"), ("{}", ""), ("[]", ""),
        ("", ""), ('{"url": " a\\n b "}', "a b"), ('{"pattern": 5}', "5"), (f'{{"path": "{"x" * 200}"}}', "x" * 200),
        (f'{{"path": "{"x" * 201}"}}', "x" * 199 + "…"),
    ):  # fmt: skip
        assert transcript.main_argument(ToolCall(ToolCallId("c"), "t", text)) == expected
    names = ["command", "file_path", "pattern", "url", "path", "prompt"]
    for first, second in itertools.combinations(names, 2):
        call = ToolCall(ToolCallId("c"), "t", f'{{"{second}": "2", "{first}": "1"}}')
        assert transcript.main_argument(call) == "1"


def test_the_session_of_an_unknown_event() -> None:
    for payload, expected in (
        ({"session_id": "s"}, "s"), ({"payload": {"session_id": "t"}}, "t"), ({"session_id": 1}, None), ({}, None),
        ({"session_id": "s", "payload": {"session_id": "t"}}, "s"), ({"payload": [1]}, None),
        ({"session_id": None, "payload": {"session_id": "t"}}, "t"),
    ):  # fmt: skip
        assert run_follow._session_in_payload(cast(Any, payload)) == expected


# The screen of `attach`


class Screen(attach._Screen):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def _write_bytes(self, data: bytes) -> None:
        self.text += data.decode()

    def taken(self) -> str:
        text, self.text = self.text, ""
        return text


def test_a_conversation_is_printed_once_as_it_grows() -> None:
    screen = Screen()

    def show(name: str, role: Any, *parts: Part) -> str:  # noqa: ANN401
        screen.message(Message(parts, MessageId(name), role, SessionId("s"), "", "", 1, 1))
        return screen.taken()

    def call(*, finished: bool) -> Part:
        return ToolCallPart(ToolCall(ToolCallId("c"), "ls", '{"path": "p"}' if finished else "", finished=finished))

    ask = TextPart(Text("Do it"))
    assert show("u1", "user", ask) == "\n> Do it\n\n"
    assert show("u1", "user", ask) == ""
    screen.typed = ["Do it", "Do it"]
    assert show("u2", "user", ask) == "\n"
    assert screen.typed == ["Do it"]
    assert show("a1", "assistant", TextPart(Text("Lo"))) == "Lo"
    assert show("a1", "assistant", TextPart(Text("Look")), call(finished=False)) == "ok"
    whole = (TextPart(Text("Look")), call(finished=True))
    assert show("a1", "assistant", *whole) == "\n[tool ls: p]\n"
    assert show("a1", "assistant", *whole) == "", "each call once"
    ended = FinishPart(Finish("canceled", 1))
    assert show("a1", "assistant", *whole, ended) == "[canceled]\n"
    assert show("a1", "assistant", *whole, ended) == ""
    done = ToolResultPart(result("1\n2\n"))
    failed = ToolResultPart(ToolResult(ToolCallId("c"), "ls", " no \n", "", is_error=True))
    other = ToolResultPart(ToolResult(ToolCallId("c"), "ls", "x", "", is_error=False))
    assert show("t1", "tool", done, failed, other) == "  1\n  2\n[ls failed: no]\n"
    assert show("t1", "tool", done, failed, other) == "", "a result is complete when it is first seen"
    assert show("a2", "assistant", TextPart(Text("x")), FinishPart(Finish("end_turn", 1))) == "x\n"
    assert show("u3", "user", ask, FinishPart(Finish("error", 1, "m"))) == "\n"
    for is_on, expected in ((False, ""), (True, "[Auto-approve is on: tools act without approval]\n"), (True, ""),
                            (False, "[Auto-approve is off: tools need approval]\n")):  # fmt: skip
        screen.show_auto_approve(is_on)
        assert screen.taken() == expected


# Commands from their arguments to their exit codes


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_attach_finds_its_session(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[tuple[str, str]] = []
    monkeypatch.setattr(attach, "_follow", lambda connection, session: followed.append((connection.workspace, session)))
    plain: dict[str, Any] = {
        "parent_session_id": "", "title": "", "message_count": 0, "prompt_tokens": 0, "completion_tokens": 0,
        "summary_message_id": "", "cost": 0.0, "created_at": 0, "is_busy": False, "attached_clients": 0,
    }  # fmt: skip
    known = [{**plain, "id": name * 32, "updated_at": number} for number, name in enumerate("ab")]
    desk.server.answers |= {
        "GET W/sessions": (200, known),
        f"GET W/sessions/{'a' * 32}": {},
        f"GET W/sessions/{'b' * 32}": {},
    }
    for line, session in (("attach", "b" * 32), ("attach aaaa", "a" * 32), (f"attach {'a' * 32}", "a" * 32)):
        assert "exit 0" in desk.call(line)
        assert followed.pop() == ("w", session)
        assert desk.server.sent()[-1] == f"GET W/sessions/{session}"
    assert "exit 4" in desk.call("attach zzzz")
    desk.server.answers["GET W/sessions"] = (200, [])
    assert "! holdfast: There are no sessions here yet" in desk.call("attach")
    assert followed == []


@pytest.mark.parametrize("outcome", get_args(Outcome))
@pytest.mark.parametrize("line", ["", " --stream", " --quiet --timeout 5 --raw"])
def test_runs_wait_follows_the_run(outcome: Outcome, line: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    class Follower:
        def __init__(self, connection: object, signals: Any, output: RunOutput, events: Any, **more: Any) -> None:  # noqa: ANN401
            made.append(
                (output.mode, output._is_quiet, output._filter is None, events.run, events.session, output.remedy)
            )
            assert signals.installed
            made.append((more["cancels"], more["approvals"]._is_attended, more["approvals"]._runs))

        def run(self, _: object, deadline: float | None, *, may_be_old: bool) -> RunComplete:
            made.append((deadline, may_be_old))
            return RunComplete(SessionId("s"), MessageId("m"), RunId("r"), outcome, text="answer", error="e")

    class Signals:
        wake = 0
        installed = False

        def install(self) -> None:
            self.installed = True

    monkeypatch.setattr("holdfast.cli.run_client.run_follow.RunFollower", Follower)
    monkeypatch.setattr("holdfast.cli.run_client.signals.Signals", Signals)
    monkeypatch.setattr(run_output, "_write", lambda data: sys.stdout.write(data.decode()))
    found = {"run_id": "r", "session_id": "s", "state": "active", "delivery": "queue", "accepted_at": 1}
    for interactive in (True, False):
        desk.server.answers |= {"GET /v1/workspaces": (200, []), "GET W/runs/r": {**found, "interactive": interactive}}
        desk.server.streams = [[]]
        desk.now = 100.0
        text = desk.call(f"runs wait r{line}")
        code = {"completed": 0, "failed": 1, "interrupted": 3, "cancelled": 130}[outcome]
        assert f"exit {code}" in text
        assert ("> answer" in text) is (outcome == "completed")
        mode, is_other = ("stream" if "stream" in line else "final"), "quiet" in line
        advice = "The answer is stored: the same command prints it again."
        assert made == [
            (mode, is_other, is_other, "r", "s", advice),
            (False, interactive, {"r"}),
            (105.0 if is_other else None, True),
        ]
        made.clear()
        assert desk.server.since == [FROM_NOW]
        desk.server.since.clear()


def test_migrate_reports_each_workspace(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, str]] = []
    outcome: list[Any] = [[]]

    async def copy(source: Path, address: Any) -> Any:  # noqa: ANN401
        called.append((source.name, address.url.rpartition("/")[2]))
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    monkeypatch.setattr("holdfast.runtime.open_store.copy_to_postgres", copy)
    to = "--to postgresql://db/holdfast"

    def copied(path: str, how: str, **counts: int) -> SimpleNamespace:
        return SimpleNamespace(path=path, outcome=how, counts=counts)

    assert "exit 2\n! holdfast: " in desk.call(f"migrate --from d {to}")
    assert called == []
    desk.write("work/d/holdfast.db", "")
    outcome[0] = [copied("/a\x1b", "copied", file_versions=2, runs=0, messages=1), copied("/b", "copied", runs=0),
                  copied("/c", "present")]  # fmt: skip
    assert desk.call(f"migrate --from d {to}").splitlines()[1:] == [
        "exit 0", r"> /a\x1b: copied 2 file versions, 1 message", "> /b: copied an empty workspace",
        "> /c: is already there",
    ]  # fmt: skip
    outcome[0] = [copied("/c", "taken"), copied("/d", "present")]
    text = desk.call(f"migrate --from d {to}")
    assert "exit 1\n> /c: not copied, because a server has already used this directory in the database\n" in text
    assert "exit 2\n! holdfast: Give the address of the database with --to or in HOLDFAST_STORE." in desk.call(
        "migrate --from d"
    )
    desk.environment["HOLDFAST_STORE"] = "postgresql://db/other"
    desk.call("migrate --from d")
    assert called[-1] == ("d", "other")
    desk.call(f"migrate --from d {to}")
    assert called[-1] == ("d", "holdfast"), "the option takes precedence"
    for error, code in ((StoreMisconfigured("wrong"), 2), (StoreUnreachable("away"), 4), (HoldfastError("odd"), 4)):
        outcome[0] = error
        assert f"exit {code}\n! holdfast: {error}" in desk.call(f"migrate --from d {to}")
    assert migrate.__all__ == ["command"]


class Listener:
    path = "/bound"
    socket = "socket"

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("started_by_client", [True, False])
def test_serve_maps_errors_to_exit_codes(
    started_by_client: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listener, served, moved = Listener(), list[Any](), list[str]()
    error: list[BaseException | None] = [None]

    def fake(*given: Any) -> None:  # noqa: ANN401
        served.append(given[2:])
        assert not listener.is_closed
        if error[0] is not None:
            raise error[0]

    monkeypatch.setattr(serve, "bind_first", lambda *_: listener)
    monkeypatch.setattr(serve, "_serve", fake)
    monkeypatch.setattr(os, "chdir", moved.append)
    args = serve.ServeArgs(str(tmp_path), started_by_client=started_by_client)
    busy = EXIT_ADDRESS_IN_USE if started_by_client else 1
    for raised, code in (
        (None, 0), (KeyboardInterrupt(), 130), (StoreMisconfigured("x"), 2), (StoreUnreachable("x"), 4),
        (AddressTaken("x"), busy), (DataDirectoryBusy("x"), busy), (HoldfastError("x"), 1),
    ):  # fmt: skip
        error[0], listener.is_closed = raised, False
        given_values = args._replace(wait="2.5", drain_timeout="7.5", label="place=a.b-c_1")
        assert serve.run_server(given_values) == code
        assert listener.is_closed
        assert served.pop() == (listener, (2.5, 7.5), "a.b-c_1")
        assert ("Error: " in capsys.readouterr().err) is isinstance(raised, HoldfastError)
    assert set(moved) == ({"/"} if started_by_client else set())
    for wait, code in (("0", 0), ("-1", 2), ("x", 2), ("inf", 2), ("nan", 2)):
        error[0], listener.is_closed = None, False
        assert serve.run_server(args._replace(wait=wait)) == code, wait
        listener.is_closed = False
        assert serve.run_server(args._replace(drain_timeout=wait)) == code, wait
    for label in ("place", "place=", "volume=a", "place=a b", "place=../a", "=a"):
        assert serve.run_server(args._replace(label=label)) == 2, label
    assert serve.run_server(args._replace(store="mysql://x")) == 2
    given: list[serve.ServeArgs] = []

    def run_server(args: serve.ServeArgs) -> int:
        given.append(args)
        return 7

    monkeypatch.setattr(serve, "run_server", run_server)
    for line, expected in (
        ("", serve.ServeArgs()),
        ("--verbose --started-by-client", serve.ServeArgs(started_by_client=True, verbose=True)),
        ("--data-dir a --host=b --store c --wait=3", serve.ServeArgs("a", "b", store="c", wait="3")),
        ("--label place=a --drain-timeout 5", serve.ServeArgs(label="place=a", drain_timeout="5")),
    ):  # fmt: skip
        assert (serve.serve_fast(line.split()), given.pop()) == (7, expected)
    for line in ("x", "--data-dir", "--data-dir -x", "--verbose=1", "--wait=-1", "--help"):
        assert serve.serve_fast(line.split()) is None
    assert given == []


@pytest.mark.parametrize(("input_", "output"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_default_command(input_: bool, output: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: {0: input_, 1: output}.get(descriptor, False))
    done = CliRunner().invoke(holdfast, [], prog_name="holdfast")
    assert ("needs a terminal" in done.output) is (input_ and output), "the terminal app, else the help"
    assert "needs a terminal" in CliRunner().invoke(holdfast, ["--yolo"], prog_name="holdfast").output
    for option in ("--help", "-h", "--version"):
        assert "needs a terminal" not in CliRunner().invoke(holdfast, [option], prog_name="holdfast").output


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_the_error_of_a_background_task_is_consumed(is_cancelled: bool) -> None:
    """Otherwise its traceback is printed when the command ends; that of a cancelled task would be raised."""
    read: list[bool] = []
    task = SimpleNamespace(cancelled=lambda: is_cancelled, exception=lambda: read.append(True))
    mcp._consume_exception(cast(Any, task))
    assert read == [True] * (not is_cancelled)


def test_a_replaced_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    main._check_package()
    monkeypatch.setitem(sys.modules, "holdfast", SimpleNamespace())
    with pytest.raises(SystemExit, match="holdfast"):
        main._check_package()
