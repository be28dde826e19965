"""`holdfast attach`: at a terminal, lines are prompts and approvals are answered; without one they are printed."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome
from cli.test_run_approvals import ACTIVE, ASKED, WRITE
from holdfast.cli.console.approvals import parse_answer
from holdfast.cli.server_connection import ServerConnection
from holdfast.domain.approvals import Choice, PermissionRequest, Question, QuestionAnswer, QuestionKind


class Plain:
    """The command, with a terminal for everything it reads and writes."""

    def __init__(self, home: IsolatedHome, place: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "holdfast", "attach", *arguments]
        self._process = subprocess.Popen(
            command, stdin=slave, stderr=slave, stdout=slave, cwd=place, env=home.environment, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def see(self, text: str) -> str:
        """Wait for a text and return the output up to it; the rest is kept."""
        while text not in self.seen:
            self.seen += os.read(self._master, 4096).decode().replace("\r\n", "\n")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        self.keys(f"{text}\n")

    def keys(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(TIMEOUT)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(TIMEOUT)
        os.close(self._master)


@contextmanager
def attached(home: IsolatedHome, place: Path) -> Iterator[Plain]:
    made = Plain(home, place)
    try:
        made.see("Ctrl-C: exit.]")
        yield made
    finally:
        made.close()


def began(home: IsolatedHome, name: str, prompt: str = "words=3") -> Path:
    """Create a new workspace with a session."""
    place = home.home / name
    place.mkdir()
    home.stdout_of("run", "--cwd", str(place), prompt)
    return place


def test_lines_are_prompts_and_slash_cancel_cancels(home: IsolatedHome) -> None:
    place = began(home, "plain-prompts")
    with attached(home, place) as plain:
        plain.type("words=4")
        assert plain.see("word1 word2 word3 word4").count("words=4") == 1, "typed text is not printed again"
        plain.type("words=5000 pause=20")
        plain.see("word2 ")
        plain.type("/cancel")
        plain.see("[Cancelled]")
        assert plain.end() == 130


def test_approvals_are_answered(home: IsolatedHome) -> None:
    place = began(home, "plain-asks")
    with attached(home, place) as plain:
        plain.type(WRITE)
        assert "\n  +1\n“Always” saves" in plain.see(ASKED), "the change itself is shown"
        plain.see(ACTIVE)
        plain.type("")
        plain.see("[allowed once]")
        plain.see("word1 word2")
        assert (place / "x").read_text() == "1"
        assert plain.end() == 130


def test_a_line_that_is_typed_while_an_approval_appears_is_a_prompt(home: IsolatedHome) -> None:
    """Half a line before, the rest after it, then more lines: all of them are prompts, and the approval stays open."""
    place = began(home, "plain-steering")
    with attached(home, place) as plain:
        plain.type(WRITE)
        plain.keys("y, please al")
        plain.see("/deny REASON")
        plain.see("send or clear your text first")
        plain.type("so look at the tests")
        plain.see("> y, please also look at the tests\n")
        for line in ("y", "no", "allow", "words=1"):
            plain.type(line)
            plain.see(f"> {line}\n")
        plain.keys("/al")
        plain.see("/al")
        assert not (place / "x").exists()
        session = json.loads(home.stdout_of("sessions", "list", "--json", "--cwd", str(place)))[0]["id"]
        runs = json.loads(home.stdout_of("runs", "list", "--json", "--cwd", str(place), "--session", session))
        prompts = [run["prompt"] for run in runs]
        for line in ("y, please also look at the tests", "y", "no", "allow", "words=1"):
            assert line in prompts
        plain.type("low")
        plain.see("[allowed once]")
        plain.see("word1")
    assert (place / "x").read_text() == "1"


def test_a_command_that_was_begun_for_one_approval_does_not_answer_the_next(home: IsolatedHome) -> None:
    place = began(home, "plain-next")
    with attached(home, place) as plain:
        plain.type(WRITE + ' tool=write {"file_path": "y", "content": "2"}')
        plain.see(ASKED)
        plain.keys("/allow")
        plain.see("> /allow")
        with closing(ServerConnection(home.where, str(place))) as connection:
            connection.open()
            (ask,) = connection.request(tuple[PermissionRequest, ...], "GET", connection.path("permissions", "pending"))
            body = {"permission": {"id": ask.id, "params": ask.params}, "action": "allow"}
            connection.send("POST", connection.path("permissions", "grant"), body=body)
        plain.see("/deny REASON")
        plain.type("")
        plain.see("begun before this approval appeared")
        assert not (place / "y").exists()
        plain.type("/deny")
        plain.see("[denied]")
    assert not (place / "y").exists()


def test_auto_approve_is_shown(home: IsolatedHome) -> None:
    place = began(home, "plain-auto")
    with attached(home, place) as plain, closing(ServerConnection(home.where, str(place))) as connection:
        connection.open()
        connection.send("POST", connection.path("permissions", "skip"), body={"skip": True})
        plain.see("[Auto-approve is on: tools act without approval]")
        connection.send("POST", connection.path("permissions", "skip"), body={"skip": False})
        plain.see("[Auto-approve is off: tools need approval]")


def test_the_answering_client_is_shown_to_the_others(home: IsolatedHome) -> None:
    """R10: the first answer counts."""
    place = began(home, "plain-two")
    with attached(home, place) as one, attached(home, place) as two:
        one.type(WRITE)
        two.see(ASKED)
        one.see(ASKED)
        one.type("/allow")
        two.see("The request was allowed on a command line (")
        assert [plain.end() for plain in (one, two)] == [130, 130]


ASKS = "words=2 tool=question " + json.dumps(
    {
        "questions": [
            {"type": "yes_no", "question": "Shall I?", "description": "It decides."},
            {
                "type": "single_choice",
                "question": "Which?",
                "description": "A colour.",
                "choices": [
                    {"id": "red", "label": "Red"},
                    {"id": "blue", "label": "Blue", "description": "like the sea"},
                ],
            },
            {"type": "free_text", "question": "Why?", "description": "In your words."},
        ]
    }
)


def answered(home: IsolatedHome, place: Path) -> str:
    """Return the answers as sent to the model."""
    session = json.loads(home.stdout_of("sessions", "list", "--json", "--cwd", str(place)))[0]["id"]
    return home.stdout_of("sessions", "export", "--cwd", str(place), session)


def test_questions_are_answered_one_after_the_other(home: IsolatedHome) -> None:
    place = began(home, "plain-questions")
    with attached(home, place) as plain:
        plain.type(ASKS)
        plain.see("Shall I?\n  It decides.\n[Yes or no (1 of 3). ")
        plain.see(ACTIVE)
        plain.keys("\x1b[B")
        plain.type("")
        plain.see("Which?\n  A colour.\n  1 Red\n  2 Blue: like the sea\n[Choose one (2 of 3). ")
        plain.see(ACTIVE)
        plain.type("2")
        plain.see("Write an answer (3 of 3)")
        plain.keys("\t")
        plain.type("Because.")
        plain.see("word1 word2")
        assert plain.end() == 130
    output = answered(home, place)
    assert "answered: no" in output
    assert "blue" in output
    assert "Because." in output


def test_questions_can_be_declined_and_close_with_their_run(home: IsolatedHome) -> None:
    place = began(home, "plain-questions-off")
    with attached(home, place) as plain:
        plain.type(ASKS)
        plain.see("(1 of 3). ")
        plain.see(ASKED)
        plain.type("/skip")
        plain.see("]\n")
        plain.type(ASKS)
        plain.see("(1 of 3). ")
        run = json.loads(home.stdout_of("runs", "list", "--json", "--cwd", str(place)))[0]["run_id"]
        home.stdout_of("runs", "cancel", "--cwd", str(place), run)
        plain.see("The questions are closed.")
        plain.type("words=4")
        plain.see("word1 word2 word3 word4")
        assert plain.end() == 130


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("yes_no", "Yes", QuestionAnswer("q", yes=True)),
        ("yes_no", "n", QuestionAnswer("q", yes=False)),
        ("yes_no", "only on Mondays", QuestionAnswer("q", notes={"_question": "only on Mondays"})),
        ("single_choice", "2", QuestionAnswer("q", ("b",))),
        ("single_choice", "light blue", QuestionAnswer("q", ("b",))),
        ("single_choice", "3", QuestionAnswer("q", fill_in_text="3")),
        ("multi_choice", "2, 1 2", QuestionAnswer("q", ("b", "a"))),
        ("multi_choice", "1 and more", QuestionAnswer("q", fill_in_text="1 and more")),
        ("free_text", "1", QuestionAnswer("q", fill_in_text="1")),
        ("free_text", "  ", QuestionAnswer("q")),
    ],
)
def test_a_line_is_parsed_as_an_answer(kind: QuestionKind, line: str, expected: QuestionAnswer) -> None:
    question = Question("q", kind, "?", choices=(Choice("a", "red"), Choice("b", "Light blue")))
    assert parse_answer(question, line) == expected


def test_tool_calls_and_errors_are_printed(home: IsolatedHome) -> None:
    """Screen-reader users depend on this text."""
    place = began(home, "plain-tools")
    with attached(home, place) as plain:
        plain.type('words=2 tool=bash {"command": "echo one; echo two", "description": "x"}')
        plain.see("[tool bash: echo one; echo two]\n  one\n  two\n")
        plain.see("word1 word2")
        plain.type('words=3 tool=view {"file_path": "missing.py"}')
        assert plain.see("word1 word2 word3").count("[tool view: missing.py]\n[view failed: ") == 1
        plain.type("fail")
        plain.see("The scripted model was asked to fail.")
        plain.see("]\n")
        assert plain.end() == 130


def test_an_approval_closes_when_its_server_dies(alone: IsolatedHome) -> None:
    """R10: after a kill -9 the run has ended, and later input does not answer its requests."""
    server = alone.serve()
    place = began(alone, "plain-killed")
    with attached(alone, place) as plain:
        plain.type(WRITE)
        plain.see(ASKED)
        server.kill()
        server.wait(TIMEOUT)
        plain.see("The request was withdrawn.")
        plain.type("words=4")
        plain.see("word1 word2 word3 word4")
    assert not (place / "x").exists()


def test_without_a_terminal_approvals_are_printed_and_not_refused(home: IsolatedHome) -> None:
    place = began(home, "plain-pipe")
    process = home.start("attach", "--cwd", str(place))
    assert process.stdout is not None
    seen = process.stdout.read(1)
    with attached(home, place) as other:
        other.type(WRITE)
        while b"requests permission" not in seen:
            seen += process.stdout.read(1)
        other.see(ASKED)
        other.type("/deny")
        while b"Permission was refused." not in seen:
            seen += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 130
