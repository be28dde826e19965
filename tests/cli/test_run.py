"""`holdfast run` in scripts: real processes, a real server, the built-in scripted model."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cli.isolated_home import TIMEOUT, IsolatedHome, Process, shown_on
from holdfast.cli.click_group import holdfast

ANSWER = "word1 word2 word3 word4 word5"
LONG = "words=2000 pause=20"


def _first(process: Process) -> bytes:
    """Wait for the first output."""
    assert process.stdout is not None
    return process.stdout.read(1)


def _ended(process: Process) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out.decode(), err.decode()


def test_stdout_contains_only_the_answer(home: IsolatedHome) -> None:
    """C-30: exactly the final text, once, and a newline; stderr is empty without a terminal."""
    done = home.call("run", "words=5", "think", "tool=ls")
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER + "\n", "")


def test_a_stream_is_the_same_text(home: IsolatedHome) -> None:
    """C-30, with and without deltas."""
    done = home.call("run", "--stream", "words=5 think pause=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER + "\n", "")


def test_a_server_is_started_if_there_is_none(alone: IsolatedHome) -> None:
    assert alone.stdout_of("run", "words=5") == ANSWER
    assert alone.server_process() is not None
    assert alone.stdout_of("run", "words=5") == ANSWER
    assert "listening" in alone.stdout_of("logs")
    assert "Stopped" in alone.stdout_of("server", "stop")
    assert alone.server_process() is None


def test_stdin_is_placed_before_the_arguments(home: IsolatedHome) -> None:
    run_id = home.stdout_of("run", "--detach", "and", "the rest", stdin="first\nlines\n")
    assert home.run_of(run_id).prompt == "first\nlines\n\nand the rest"
    alone = home.stdout_of("run", "--detach", stdin="only this")
    assert home.run_of(alone).prompt == "only this"


def test_a_git_repository_does_not_change_the_answer(home: IsolatedHome) -> None:
    """The state of the work tree is sent with the prompt, not instead of it."""
    place = home.work / "repository"
    place.mkdir()
    (place / "file").write_text("x\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=place, env=home.environment, check=True)
    for _ in range(2):
        done = home.call("run", "words=5", cwd=place)
        assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER + "\n", "")


def test_json_is_one_event_a_line(home: IsolatedHome) -> None:
    output = home.stdout_of("run", "--json", "--run-id", "as-json", "words=5")
    events = [msgspec.json.decode(line) for line in output.splitlines()]
    assert {event["type"] for event in events} >= {"run", "message", "message_part", "run_complete"}
    end = events[-1]["payload"]["payload"]
    assert (end["run_id"], end["outcome"], end["text"]) == ("as-json", "completed", ANSWER)
    assert sum(event["type"] == "run_complete" for event in events) == 1


def test_a_failure_exits_with_1(home: IsolatedHome) -> None:
    done = home.call("run", "please fail")
    assert (done.returncode, done.stdout) == (1, "")
    assert "asked to fail" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--timeout", "0", "x"),
        ("--timeout", "soon", "x"),
        ("--session", "a", "--continue", "x"),
        ("--detach", "--timeout", "3", "x"),
        ("--quiet", "--verbose", "x"),
        ("--attach", "not-there", "x"),
        ("--delivery", "later", "x"),
        ("--run-id", "not/an/id", "x"),
        ("--cwd", "not-there", "x"),
        ("--session", "", "x"),
        ("--no-such-option",),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(holdfast, ["run", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Error: " in done.stderr


def test_wrong_usage_of_a_process_exits_with_2(home: IsolatedHome) -> None:
    done = home.call("run", "--timeout", "soon", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: holdfast run" in done.stderr


@pytest.mark.parametrize("line", ["yes | {} run x", "{} run x --attach /dev/zero"])
def test_endless_input_is_limited(line: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", line.format(f"{sys.executable} -m holdfast")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"larger than 24 MiB" in done.stderr


def test_a_refusal_exits_with_4(home: IsolatedHome) -> None:
    """C-28: the message of the error body, with the status."""
    done = home.call("run", "--session", "nowhere", "x")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no such session" in done.stderr
    assert "(400)" in done.stderr
    done = home.call("run", "--host", f"unix://{home.home}/none.sock", "x")
    assert (done.returncode, done.stdout) == (4, "")
    assert "No Holdfast server answers" in done.stderr


def test_a_refused_prompt_leaves_no_session(home: IsolatedHome) -> None:
    """Mostly zeros, each of which has six bytes in JSON."""
    place = home.home / "refused"
    place.mkdir()
    done = home.call("run", "--cwd", str(place), stdin="\0" * (6 << 20))
    assert (done.returncode, done.stdout) == (4, "")
    assert "(413)" in done.stderr
    assert msgspec.json.decode(home.stdout_of("sessions", "--json", "--cwd", str(place))) == []


def test_a_prompt_that_begins_with_a_dash(home: IsolatedHome) -> None:
    done = home.call("run", "-5 + 3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Put -- before" in done.stderr
    assert home.stdout_of("run", "--", "-5 words=2") == "word1 word2"


def test_a_session_is_continued(home: IsolatedHome) -> None:
    place = home.home / "goes-on"
    place.mkdir()
    for more in ([], ["--continue"], ["--continue"]):
        assert home.stdout_of("run", "--cwd", str(place), *more, "words=5") == ANSWER
    sessions = msgspec.json.decode(home.stdout_of("sessions", "--json", "--cwd", str(place)))
    assert [session["message_count"] for session in sessions] == [6]
    assert home.stdout_of("run", "--cwd", str(place), "--session", sessions[0]["id"], "words=5") == ANSWER


def test_a_run_id_is_submitted_once(home: IsolatedHome) -> None:
    place = str(home.work)
    for _ in range(2):
        assert (
            home.stdout_of("run", "--cwd", place, "--session", _session(home), "--run-id", "once", "words=5") == ANSWER
        )
    done = home.call("run", "--session", _session(home), "--run-id", "once", "something else")
    assert done.returncode == 4
    assert "(409)" in done.stderr


def test_a_run_id_is_submitted_once_without_a_session(home: IsolatedHome) -> None:
    """A repeated command prints the first answer and leaves no empty session."""
    place = home.home / "repeated"
    place.mkdir()
    for more in ((), (), ("--continue",), ("--detach",)):
        assert home.stdout_of("run", "--cwd", str(place), "--run-id", "again", *more, "words=5") in (ANSWER, "again")
    done = home.call("run", "--cwd", str(place), "--run-id", "again", "something else")
    assert (done.returncode, "(409)" in done.stderr) == (4, True)
    assert len(msgspec.json.decode(home.stdout_of("sessions", "--json", "--cwd", str(place)))) == 1


def _session(home: IsolatedHome) -> str:
    """A session that several tests share."""
    marker = home.home / "session"
    if not marker.exists():
        run_id = home.stdout_of("run", "--detach", "words=1")
        marker.write_text(home.run_of(run_id).session_id, "utf-8")
    return marker.read_text("utf-8")


def test_files_are_attached(home: IsolatedHome) -> None:
    (home.work / "note.txt").write_text("something to read", "utf-8")
    run_id = home.stdout_of("run", "--detach", "--attach", "note.txt", "words=1")
    (note,) = home.run_of(run_id).attachments
    assert (note.file_name, note.mime_type, note.size) == ("note.txt", "text/plain", 17)


def test_models_are_selected_for_the_workspace(home: IsolatedHome) -> None:
    assert home.stdout_of("run", "--model", "tour", "--small-model", "demo/tour", "words=5") == ANSWER
    done = home.call("run", "--model", "nobody-knows", "words=5")
    assert done.returncode == 4
    assert "`holdfast models" in done.stderr
    assert len(done.stderr) < 200, "it is a sentence, not the list"


def test_ctrl_c_cancels_the_run(home: IsolatedHome) -> None:
    """C-48: the run ends as cancelled, and its incomplete line is ended."""
    process = home.start("run", "--stream", "--run-id", "stopped", LONG)
    _first(process)
    process.send_signal(signal.SIGINT)
    code, out, err = _ended(process)
    assert (code, err) == (130, "holdfast: cancelled.\n")
    assert out.endswith("\n")
    assert home.run_of("stopped").outcome == "cancelled"


def test_two_signals_at_once_cancel_the_run(home: IsolatedHome) -> None:
    """C-48: `timeout` sends two signals. The exit at the second follows the cancel by the first."""
    process = home.start("run", "--stream", "--run-id", "twice", LONG)
    _first(process)
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.send_signal(number)
    assert _ended(process)[0] == 130
    assert home.call("runs", "wait", "twice", "--timeout", "20").returncode == 130


def test_a_hang_up_detaches(home: IsolatedHome) -> None:
    """C-48: closing the stream does not cancel; the answer is fetched later, from anywhere."""
    gate = home.work / "gate"
    os.mkfifo(gate)
    call = 'tool=bash {"command": "cat gate", "description": "wait"}'
    process = home.start("run", "--yolo", "--run-id", "left", f"words=60 {call}")
    # Opening returns when the command of the run has the other end: the run is under way and cannot end yet.
    with gate.open("w"):
        process.send_signal(signal.SIGHUP)
        assert _ended(process)[0] == 129
    done = home.call("runs", "wait", "left", cwd=Path("/"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("word59 word60\n")


def test_a_detached_run_is_fetched_later(home: IsolatedHome) -> None:
    run_id = home.stdout_of("run", "--detach", "words=5 pause=5")
    for _ in range(2):
        assert home.stdout_of("runs", "wait", run_id) == ANSWER


def test_a_timeout_cancels_the_run(home: IsolatedHome) -> None:
    done = home.call("run", "--timeout", "0.3", "--run-id", "late", LONG)
    assert (done.returncode, done.stdout, done.stderr) == (124, "", "holdfast: timed out and cancelled.\n")
    assert home.run_of("late").outcome == "cancelled"


def test_two_runs_at_once_in_one_session(home: IsolatedHome) -> None:
    """C-29, C-30: each run has its own answer, although another run of the session fails."""
    session = home.run_of(home.stdout_of("run", "--detach", "words=1")).session_id
    # A turn that failed leaves no answer between its prompt and the next: the model may see "failure words=3".
    asked = {"words=5 pause=5": (0, ANSWER + "\n"), "fail": (1, ""), "ure words=3": (0, "word1 word2 word3\n")}
    started = [(home.start("run", "--session", session, prompt), wanted) for prompt, wanted in asked.items()]
    for process, wanted in started:
        assert _ended(process)[:2] == wanted


def test_a_stalled_reader_receives_the_whole_answer(home: IsolatedHome) -> None:
    """C-46: a command that is stopped until the run has ended prints the whole answer."""
    process = home.start("run", "--stream", "--run-id", "stalled", "words=50 pause=5")
    first = _first(process)
    process.send_signal(signal.SIGSTOP)
    answer = home.stdout_of("runs", "wait", "stalled")
    process.send_signal(signal.SIGCONT)
    code, out, err = _ended(process)
    assert (code, first.decode() + out, err) == (0, answer + "\n", "")


def test_a_closed_pipe_is_not_an_error(home: IsolatedHome) -> None:
    process = home.start("run", "--stream", LONG)
    _first(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(TIMEOUT) == 141


def test_a_terminal_gets_streamed_text_and_a_cleared_progress_line(home: IsolatedHome) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", "words=5 pause=40 think"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=home.work,
        env=home.environment,
    )
    os.close(follower)
    shown = shown_on(leader)
    assert process.wait(TIMEOUT) == 0
    assert shown.endswith((b"\r\x1b[K" + ANSWER.encode() + b"\r\n", ANSWER.encode() + b"\r\n"))
    assert " · 0 s".encode() in shown


LOADED = """
import atexit, sys
from holdfast.cli import main
from holdfast.cli.run_client import run_command

submit = run_command._submit
def report(*arguments, **more):
    print("sent", *sys.modules, file=sys.stderr)
    return submit(*arguments, **more)
run_command._submit = report
atexit.register(lambda: print("ended", *sys.modules, file=sys.stderr))
sys.argv[0] = "holdfast"
main.main()
"""


def test_run_imports_little(home: IsolatedHome) -> None:
    """Loading is most of the time of a short command: next to nothing before the prompt is on its way, and nothing of
    the server's afterwards.
    """
    status, out, err = _ended(home.start("run", "words=5", code=LOADED))
    assert (status, out) == (0, ANSWER + "\n")
    before, after = (set(line.split()) for line in err.splitlines())
    assert {"sent", "ended"} <= before | after
    heavy = {"asyncio", "apsw", "uvloop", "rich", "ssl", "email", "http", "subprocess", "logging", "click", "pathlib"}
    rooms = {f"holdfast.{room}" for room in ("engine", "server", "storage", "bus", "core", "tools", "providers", "app")}
    assert not after & (heavy | rooms)
    assert not before & {"msgspec", "inspect", "dataclasses", "typing_extensions", "holdfast.domain.events"}
    assert len(before) < 110, f"{len(before)} modules"
    assert len(after) < 170, f"{len(after)} modules"
