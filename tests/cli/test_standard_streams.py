"""Standard streams that are full, closed or gone: a one-line error and an exit code."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, shown_on


def _shell(home: IsolatedHome, line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`$H` is the command."""
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        cwd=cwd or home.work,
        env={**home.environment, "H": f"{sys.executable} -m holdfast"},
    )


@pytest.mark.parametrize("command", ["dirs", "logs", "sessions --json", "completion bash", "--help"])
@pytest.mark.parametrize("stdout", ["> /dev/full", ">&-"])
def test_unwritable_output_is_a_one_line_error(home: IsolatedHome, command: str, stdout: str) -> None:
    log = Path(home.where.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line\n")
    done = _shell(home, f"$H {command} {stdout}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "could not be written" in done.stderr


def test_a_closed_stdin_is_empty(home: IsolatedHome) -> None:
    assert _shell(home, "$H run words=2 <&-").stdout == "word1 word2\n"
    done = _shell(home, "$H tui <&-")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)


def test_the_run_id_is_in_the_error_if_it_cannot_be_printed(home: IsolatedHome) -> None:
    done = _shell(home, "$H run --detach --run-id left words=2 > /dev/full")
    assert done.returncode == 1
    assert "its run id is left." in done.stderr


def test_an_answer_can_be_fetched_twice_from_any_directory(alone: IsolatedHome) -> None:
    """Also one that could not be written, and after another server has taken over."""
    assert _shell(alone, "$H run --run-id kept words=2 > /dev/full").returncode == 1
    for _ in range(2):
        assert alone.stdout_of("server", "stop") == "Stopped."
        fetched = alone.call("runs", "wait", "kept", cwd=Path("/"))
        assert (fetched.returncode, fetched.stdout) == (0, "word1 word2\n")


def test_a_signal_at_the_very_end_does_not_change_the_exit_code(home: IsolatedHome) -> None:
    code = (
        "import atexit, os, signal, sys; from holdfast.cli.main import main; sys.argv[1:] = ['dirs']\n"
        "atexit.register(lambda: [os.kill(os.getpid(), number) for number in (1, 2, 15)]); main()"
    )
    process = home.start(code=code)
    output, complaint = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, complaint) == (0, b"")
    assert b"\ndata " in output


def _on_a_terminal(home: IsolatedHome, *arguments: str) -> bytes:
    """Return the output of a command or a line of Python whose stdout and stderr are a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        cwd=home.work,
        env=home.environment,
    )
    os.close(follower)
    shown = shown_on(leader)
    process.wait(TIMEOUT)
    return shown


EVIL = "a\x1b]0;owned\x07b\x1b[2Jc\x9b31m\u202ed"
TAME = "abcd"


def test_untrusted_text_does_not_control_a_terminal(home: IsolatedHome) -> None:
    run_id = home.stdout_of("run", "--detach", f"words=1 {EVIL}")
    assert home.stdout_of("runs", "wait", run_id) == "word1"
    session = home.run_of(run_id).session_id
    home.stdout_of("sessions", "rename", session, EVIL)
    commands = (("runs", "show", run_id), ("sessions", "show", session), ("sessions", "export", session))
    for command in commands:
        shown = _on_a_terminal(home, "-m", "holdfast", *command).decode()
        assert TAME in shown
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


def test_an_answer_does_not_control_a_terminal(home: IsolatedHome) -> None:
    output = (
        f"from holdfast.cli.console.run_output import RunOutput, print_stderr; text = {EVIL!r}\n"
        "RunOutput('stream').write(text + chr(10)); print_stderr(text)\n"
        "RunOutput('json').write_event(text[-1].encode())"
    )
    assert _on_a_terminal(home, "-c", output).decode() == f"{TAME}\r\n{TAME}\r\nd\r\n"


ANSWER = "one \x1b]0;ti tle\x07two\x1b[1; 31mred\x1b[0m \x9b2Jthree\r\n\x1b]52;c;never ended\nfour \u200efive"
PLAIN = "one twored three\n\nfour \u200efive"
SERVE = (
    "import holdfast.providers.scripted_model as demo, sys\ndemo._HELLO = {!r}\n"
    "from holdfast.cli.main import main\nmain()"
)


def test_a_piped_answer_has_no_control_sequences_unless_raw(alone: IsolatedHome) -> None:
    """They would act when the file is displayed. A sequence is also found where a stream splits it."""
    server = alone.start("serve", code=SERVE.format(ANSWER))
    assert server.stderr is not None
    assert any(b"listening" in line for line in server.stderr)
    run_id = alone.stdout_of("run", "--detach", "hello")
    session = alone.run_of(run_id).session_id
    for command in (("run", "hello"), ("run", "--stream", "hello"), ("runs", "wait", run_id)):
        assert alone.stdout_of(*command) == PLAIN, command
        # The text of a subprocess has its line breaks translated.
        assert alone.stdout_of(*command, "--raw") == ANSWER.replace("\r\n", "\n"), command
    for command in (("runs", "show", run_id), ("sessions", "show", session), ("sessions", "export", session)):
        shown = alone.stdout_of(*command)
        assert "twored three" in shown, command
        assert not {"\x1b", "\x07", "\x9b"} & set(shown), command
    assert "\\u001b]0;" in alone.stdout_of("run", "--json", "hello"), "events are unchanged JSON"


def test_a_tool_name_does_not_control_the_progress_line(home: IsolatedHome) -> None:
    """Nor does it wrap where the terminal is narrow: a line that wraps cannot be cleared."""
    output = (
        "import fcntl, struct, termios; from holdfast.cli.console.run_output import RunOutput\n"
        "fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 9, 24, 0, 0))\n"
        f"output = RunOutput('final'); output.set_activity('tool ' + {EVIL!r} * 9); output.draw()"
    )
    shown = _on_a_terminal(home, "-c", output).decode().removeprefix("\r\x1b[K")
    assert "\x1b" not in shown
    assert shown.startswith("⠙ tool abc")
    assert len(shown) < 24


LOADING = """
import os, signal, sys
from holdfast.cli.run_client import run_command
from holdfast.cli.run_client.signals import Signals

def noisy(name):
    os.kill(os.getpid(), signal.SIGTERM)
    load(name)
    print("loaded", flush=True)

load, run_command.import_module = run_command.import_module, noisy
Signals().install()
run_command._import_follower()
"""


def test_a_signal_during_imports_is_deferred(home: IsolatedHome) -> None:
    """An exception out of a handler, in the middle of it, would be a segmentation fault."""
    process = home.start(code=LOADING)
    output, complaint = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output, complaint) == (130, b"loaded\nloaded\n", b"")


def test_an_unencodable_character_is_not_an_error(home: IsolatedHome) -> None:
    home.stdout_of("run", "--run-id", "letters", "words=2 日本")
    done = _shell(home, "PYTHONIOENCODING=latin-1 $H runs show letters")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"> words=2 \u65e5\u672c" in done.stdout


def test_the_timeout_applies_to_a_pipe_that_stays_open(home: IsolatedHome) -> None:
    """C-46: the pipe may never be closed."""
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "run", "--timeout", "0.3", "words=2"],
            stdin=read,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            cwd=home.work,
            env=home.environment,
        )
    finally:
        os.close(read)
        os.close(write)
    assert (done.returncode, done.stdout) == (124, "")
    assert "end of stdin" in done.stderr


def test_a_dumb_terminal_has_no_progress_line(home: IsolatedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(home.environment, "TERM", "dumb")
    assert _on_a_terminal(home, "-m", "holdfast", "run", "words=3 pause=60") == b"word1 word2 word3\r\n"
