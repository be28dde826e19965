"""Typed input at the terminal of `attach`: which input answers a question, which is a prompt, and what is shown."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cli.fake_server import FakeServer
from holdfast.cli import attach
from holdfast.cli.console import terminal_keys
from holdfast.cli.console.approvals import QuestionPrompt
from holdfast.cli.console.input_line import Input, InputLine
from holdfast.cli.console.run_output import RunOutput
from holdfast.cli.console.terminal_keys import Key, Terminal
from holdfast.domain.approvals import Question, QuestionRequest
from holdfast.domain.ids import RunId, SessionId, ToolCallId

Steps = list[tuple[str, Any]]


class Line:
    """A terminal and an input line that record what they are told."""

    def __init__(self) -> None:
        self.written = ""
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.keys: list[Key] = []
        self.is_closed = self.is_resumed = False

    def write(self, text: str) -> None:
        self.written += text

    def open(self, name: str, _kind: str, _options: object) -> None:
        self.opened.append(name)

    def close(self, notice: str = "") -> None:
        self.closed.append(notice)

    def read_keys(self) -> list[Key]:
        keys, self.keys = self.keys, []
        return keys


def batch(name: str, count: int) -> QuestionRequest:
    questions = tuple(Question(f"q{number}", "free_text", f"Why {number}?", "Why", "") for number in range(count))
    return QuestionRequest(name, SessionId("s"), ToolCallId("c"), questions, run_id=RunId("r"))


FRESH = [
    # the input, whether it is an answer, the answers that are sent, what is shown
    (Input("line", "Do it", is_fresh=True), False, None, ""),
    (Input("line", "answer x", is_fresh=True), False, None, ""),
    (Input("line", "/answer a b", is_fresh=True), True, "a b", ""),
    (Input("line", "/answer a", is_fresh=False), True, None, "was begun before"),
    (Input("line", "/skip", is_fresh=True), True, "declined", ""),
    (Input("line", "/skip", is_fresh=False), True, None, "was begun before"),
    (Input("answer", "/skip"), True, "/skip", ""),
    (Input("answer", "a b"), True, "a b", ""),
    (Input("option", "1"), True, "1", ""),
]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("row", FRESH, ids=lambda row: f"{row[0].kind} {row[0].text} {row[0].is_fresh}")
def test_which_input_answers_a_question(
    row: tuple[Input, bool, str | None, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, is_answer, sent, shown = row
    server, line = FakeServer(monkeypatch), Line()
    connection = server.connection()
    server.answers |= {
        "GET W/questions/pending": (200, [batch("b", count), batch("c", 1)]),
        "POST W/questions/answer": {},
        "POST W/questions/cancel": {},
    }
    shows = [True]
    fake = cast(Any, line)
    prompt = QuestionPrompt(
        connection, RunOutput("stream", is_quiet=True), fake, fake, SessionId("s"), lambda: shows[0]
    )
    prompt.refresh()
    assert line.opened == ["b 0"]
    line.written = ""
    assert prompt.handle_input(entry) is is_answer
    posts = [request for request in server.requests if request.method == "POST"]
    assert shown in line.written
    if sent is None:
        assert (posts, line.opened, prompt.is_open) == ([], ["b 0"], True)
        return
    if sent == "declined":
        assert [(item.name, item.query["batch_id"]) for item in posts] == [("POST W/questions/cancel", "b")]
    elif count == 2:
        assert (posts, line.opened) == ([], ["b 0", "b 1"])
        prompt.handle_input(Input("answer", "second"))
        posts = [request for request in server.requests if request.method == "POST"]
    if sent != "declined":
        answers = [answer.get("fill_in_text") for answer in posts[0].body["responses"]]
        assert answers == [sent, "second"][:count]
    assert {(item.query["via"], item.can_repeat) for item in posts} == {("command", True)}
    assert line.opened[-1] == "c 0", "the next batch is shown"
    shows[0] = False
    prompt.handle_input(Input("answer", "last"))
    assert not prompt.is_open


@pytest.mark.parametrize("echoes", [True, False])
def test_typed_text_is_shown_only_where_lines_are_prompts(echoes: bool) -> None:
    terminal = Line()
    line = InputLine(cast(Any, terminal), RunOutput("stream", is_quiet=True), echoes=echoes, clock=lambda: 1.0)
    line.start()
    terminal.keys = [Key("text", "a"), Key("text", "b"), Key("backspace"), Key("enter")]
    assert line.poll() == Input("line", "a", is_fresh=True)
    assert terminal.written == ("ab\b \b\n" if echoes else "")
    terminal.written, terminal.keys = "", [Key("enter")]
    assert (line.poll(), terminal.written) == (None, "")
    terminal.keys = [Key("end")]
    assert line.poll() == Input("end")
    terminal.is_closed = True
    assert line.poll() == Input("end")


@pytest.mark.parametrize("uses_tty", [True, False])
@pytest.mark.parametrize("input_", [True, False])
@pytest.mark.parametrize("error", [True, False])
def test_the_controlling_terminal_is_opened_only_in_place_of_stdin(
    uses_tty: bool, input_: bool, error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_keys, "_open_controlling_terminal", lambda: 7)
    states = {0: input_, 2: error, 7: True}
    monkeypatch.setattr(terminal_keys, "os", SimpleNamespace(isatty=states.__getitem__))
    terminal = Terminal(uses_tty=uses_tty)
    assert terminal._input == (7 if uses_tty and error and not input_ else 0)
    assert terminal.is_usable is (error and (input_ or uses_tty))


def test_open_requests_of_known_runs_are_shown_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(monkeypatch)
    connection = server.connection()
    asked = {"id": "p", "session_id": "s", "tool_call_id": "c", "tool_name": "bash", "description": "d", "action": "x",
             "params": {}, "path": "/", "run_id": "r"}  # fmt: skip
    server.answers |= {"GET W/permissions/pending": (200, [asked]), "GET W/questions/pending": (200, [batch("b", 1)])}
    monkeypatch.setattr(InputLine, "start", lambda _: None)
    monkeypatch.setattr(InputLine, "open", lambda *_: None)
    monkeypatch.setattr(Terminal, "is_usable", property(lambda _: True))
    written: list[str] = []
    monkeypatch.setattr(Terminal, "write", lambda _, text: written.append(text))
    screen = attach._Screen()
    monkeypatch.setattr(screen, "_write_bytes", lambda _: None)
    terminal = attach._AttachedTerminal(connection, screen, SessionId("s"))
    terminal.begin(iter([RunId("r")]))
    assert server.sent() == ["GET W/permissions/pending", "GET W/questions/pending"], "the run is not looked up"
    assert terminal.is_open
    assert len(written) == 1, "the question waits for the approval"
