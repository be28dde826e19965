"""Approvals in `holdfast run`: shown at a terminal, refused without one."""

import json
import os
import pty
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome
from holdfast.cli.server_connection import ServerConnection, required_text

WRITE = 'tool=write {"file_path": "x", "content": "1"} words=2'
ANSWER = "word1 word2\n"


class Seat:
    """A user at a terminal, which is stdin and stderr of the command; stdout is a pipe."""

    def __init__(self, home: IsolatedHome, place: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, *(arguments if arguments[0] == "-c" else ("-m", "holdfast", *_quietly(*arguments)))],
            stdin=slave,
            stderr=slave,
            stdout=subprocess.PIPE,
            cwd=place,
            env=home.environment,
        )
        os.close(slave)
        self.seen = ""

    def see(self, text: str) -> None:
        while text not in self.seen:
            self.seen += os.read(self._master, 4096).decode()

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._master, text.encode())

    def attributes(self) -> list[object]:
        return list(termios.tcgetattr(self._master))

    def end(self) -> tuple[int, str]:
        out, _ = self._process.communicate(timeout=TIMEOUT)
        return self._process.returncode, out.decode()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate(timeout=TIMEOUT)
        os.close(self._master)


def _quietly(*arguments: str) -> tuple[str, ...]:
    return arguments if arguments[0] == "runs" else ("run", "--quiet", *arguments)


@contextmanager
def seat(home: IsolatedHome, place: Path, *arguments: str) -> Iterator[Seat]:
    made = Seat(home, place, *arguments)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def place(home: IsolatedHome) -> Path:
    """A new workspace, because allow rules belong to one workspace."""
    return Path(tempfile.mkdtemp(dir=home.home))


def test_without_a_terminal_an_approval_is_refused(home: IsolatedHome, place: Path) -> None:
    done = home.call("run", WRITE, cwd=place)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert "refused, because there is no terminal: write:" in done.stderr
    assert 'permissions.allow = ["write:write(x)"]' in done.stderr
    assert "--yolo" in done.stderr
    assert not (place / "x").exists()


def test_yolo_allows_a_tool_call(home: IsolatedHome, place: Path) -> None:
    done = home.call("run", "--yolo", WRITE, cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER, "")
    assert (place / "x").read_text() == "1"


def test_yolo_does_not_override_a_possible_deny_rule(home: IsolatedHome, place: Path) -> None:
    """Neither a denied program nor one whose name is made while the line runs; other lines run as before."""
    (place / "holdfast.toml").write_text('permissions.deny = ["bash(touch *)", "write(kept)"]\n')
    (place / "kept").write_text("1")
    lines = ("touch x", "c=touch; $c x", "bash x.sh", "echo 2 > kept", "cd . && echo 2 >> ./kept", "echo 3 > y")
    calls = " ".join(f"tool=bash {json.dumps({'command': line})}" for line in lines)
    done = home.call("run", "--yolo", f"{calls} words=2", cwd=place)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert sorted(item.name for item in place.iterdir()) == ["holdfast.toml", "kept", "y"]
    assert (place / "kept").read_text() == "1"


ASKED = "active in a moment"
"""Drawn below an approval, as long as its keys do not act."""
ACTIVE = "(Enter: answer, arrows: choose)"
DOWN = "\x1b[B"


@pytest.mark.parametrize(
    ("keys", "is_written"),
    [
        ("\n", True),
        (f"{DOWN}\n", True),
        (f"{DOWN * 3}\n", False),
        ("/allow\n", True),
        ("/session\n", True),
        ("/deny not today\n", False),
        ("\ty", True),
        ("some text\tn", False),
    ],
)
def test_an_approval_is_answered_at_the_terminal(home: IsolatedHome, place: Path, keys: str, is_written: bool) -> None:
    with seat(home, place, WRITE) as at:
        at.see(ASKED)
        assert "write: Create file" in at.seen
        assert not (place / "x").exists()
        if keys[0] in "\n\x1b":
            at.see(ACTIVE)
        at.type(keys)
        assert at.end() == (0, ANSWER)
    assert (place / "x").exists() is is_written


def test_typed_lines_do_not_answer(home: IsolatedHome, place: Path) -> None:
    """Type-ahead, lines of any kind, and Enter within half a second: nothing is granted, denied or saved."""
    with seat(home, place, WRITE) as at:
        at.type("y\nyes\n\n")
        at.see(ASKED)
        for line in ("y", "yes", "s", "a", "always", "n", "no", "rather y", " ", "\x04", "/allow it"):
            at.type(f"{line}\n\n")
            if line.strip(" \x04"):
                at.see("[Not answered")
        assert not (place / "x").exists()
        at.see(ACTIVE)
        at.type("/deny later\n")
        assert at.end() == (0, ANSWER)
    assert not (place / "x").exists()
    assert "write:write(x)" not in home.call("config", "show", cwd=place).stdout


def test_the_terminal_attributes_are_restored(home: IsolatedHome, place: Path) -> None:
    with seat(home, place, WRITE) as at:
        before = at.attributes()
        at.see(ASKED)
        at.see(ACTIVE)
        assert at.attributes() != before
        at.type("\n")
        assert at.end() == (0, ANSWER)
        assert at.attributes() == before


@pytest.mark.parametrize("keys", ["/always\n", f"\t{DOWN}{DOWN}\n"])
def test_the_rule_saved_by_always_is_shown(home: IsolatedHome, place: Path, keys: str) -> None:
    with seat(home, place, WRITE) as at:
        at.see(ASKED)
        assert "“Always” saves the rule write:write(x)" in at.seen
        at.type(keys)
        assert at.end() == (0, ANSWER)
    assert "write:write(x)" in home.call("config", "show", cwd=place).stdout


def test_a_refusal_prints_a_rule_that_allows_the_call(home: IsolatedHome, place: Path) -> None:
    done = home.call("run", 'tool=bash {"command": "touch \\"a b\\" $X"} words=2', cwd=place)
    assert rf'permissions.allow = ["bash(= touch \"a b\" $X) in {place}"]' in done.stderr


def test_an_approval_answered_by_another_client_is_closed(home: IsolatedHome, place: Path) -> None:
    with seat(home, place, "--run-id", "r1", WRITE) as at:
        at.see(ASKED)
        home.call("runs", "cancel", "r1", cwd=place)
        at.see("The request was withdrawn.")
        assert at.end() == (130, "")
    assert not (place / "x").exists()


PIPED = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])
"""


def test_a_piped_prompt_uses_the_controlling_terminal_for_approvals(home: IsolatedHome, place: Path) -> None:
    line = f"echo '{WRITE}' | {sys.executable} -m holdfast run --quiet"
    with seat(home, place, "-c", PIPED, line) as at:
        at.see(ASKED)
        at.type("\ty")
        assert at.end() == (0, ANSWER)
    assert (place / "x").exists()


def test_a_background_process_does_not_read_the_terminal(home: IsolatedHome, place: Path) -> None:
    """A background process that reads from a terminal is stopped."""
    line = f"set -m; echo '{WRITE}' | {sys.executable} -m holdfast run --quiet & wait"
    with seat(home, place, "-c", PIPED, line) as at:
        assert at.end() == (0, ANSWER)
        at.see("refused, because there is no terminal")
    assert not (place / "x").exists()


def test_runs_wait_shows_approvals_at_a_terminal(home: IsolatedHome, place: Path) -> None:
    left = home.stdout_of("run", "--detach", "--cwd", str(place), WRITE)
    with seat(home, place, "runs", "wait", left) as at:
        at.see(ASKED)
        at.type("\ty")
        assert at.end() == (0, ANSWER)
    assert (place / "x").exists()


def test_runs_wait_refuses_approvals_without_a_terminal(home: IsolatedHome, place: Path) -> None:
    left = home.stdout_of("run", "--detach", "--cwd", str(place), WRITE)
    done = home.call("runs", "wait", left, cwd=place)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert "refused, because there is no terminal: write:" in done.stderr
    assert not (place / "x").exists()


def test_runs_wait_does_not_answer_for_an_interactive_client(home: IsolatedHome, place: Path) -> None:
    with closing(ServerConnection(home.where, str(place))) as connection:
        connection.open()
        session = required_text(connection.request_json("POST", connection.path("sessions"), body={"title": "x"}), "id")
        prompt = {"session_id": session, "prompt": WRITE, "run_id": "theirs", "interactive": True}
        connection.send("POST", connection.path("agent"), body=prompt)
        waiting = home.start("runs", "wait", "theirs", "--cwd", str(place))
        assert waiting.stderr is not None
        reported = waiting.stderr.readline().decode()
        assert "waits for approval: write: Create file" in reported
        assert f"holdfast attach {session}" in reported
        connection.send("POST", connection.path("runs", "theirs", "cancel"))
        assert waiting.wait(TIMEOUT) == 130
