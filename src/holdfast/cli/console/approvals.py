"""Approvals and questions of a run, shown at the terminal of a command.

The user answers with a key or with a command such as `/allow`; any other line is not an answer (`input_line.py`).
Events of the run are processed meanwhile: a request that another client answers, or that is withdrawn, is closed here
too. Without a terminal the run would wait forever, so a permission is refused, with one message for the model and one
for the user. A batch of questions is printed one after the other; the answers are sent together.
"""

import json
from collections.abc import Callable, Sequence
from typing import cast

from holdfast.cli.console.input_line import Input, InputLine, Option
from holdfast.cli.console.run_output import RunOutput, print_stderr
from holdfast.cli.console.terminal_keys import Terminal
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.client.terminal_text import printable
from holdfast.domain.approvals import (
    Choice,
    GrantAction,
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    where_answered,
)
from holdfast.domain.events import (
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
    RunEvent,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import QuestionAnswers

__all__ = ["ANSWERS", "ApprovalPrompt", "QuestionPrompt", "parse_answer"]


_POLL_INTERVAL = 0.1
_MAX_CHANGE_LINES = 500
"""Maximum number of lines of a change that are shown."""
_NO_TERMINAL = "This run has no terminal, so approval is impossible. Continue without it, and report what was not done."
_OPTIONS = (
    Option("allow", "once", "y"),
    Option("allow_session", "this session", "s"),
    # A permanent rule has no letter: it requires the arrows and Enter, or its command.
    Option("allow_always", "always"),
    Option("deny", "no", "n"),
)
_ANSWER_NOTES: dict[GrantAction, str] = {
    "allow": "allowed once",
    "allow_session": "allowed for this session",
    "allow_always": "always allowed",
    "deny": "denied",
}
ANSWERS: dict[str, GrantAction] = {
    "/allow": "allow",
    "/session": "allow_session",
    "/always": "allow_always",
    "/deny": "deny",
}


class ApprovalPrompt:
    """Approvals of one run and of its sub-agents.

    Without a terminal they are refused. With `is_attended`, an interactive client has the run open and can answer;
    then they are only reported.
    """

    _SENDS_PROMPTS = False
    """True if lines other than answers are sent as prompts."""

    def __init__(
        self,
        connection: ServerConnection,
        output: RunOutput,
        run: RunId,
        terminal: Terminal | None = None,
        *,
        is_attended: bool = False,
    ) -> None:
        self._is_attended = is_attended
        self._reported: set[str] = set()
        self._connection = connection
        self._output = output
        self._runs = {run}
        self._terminal = terminal or Terminal()
        self._input = InputLine(self._terminal, output, echoes=self._SENDS_PROMPTS)
        self._open: dict[str, PermissionRequest] = {}
        self._shown = ""

    @property
    def is_open(self) -> bool:
        """True while an approval is shown: nothing else is drawn, and the keyboard is polled."""
        return bool(self._shown)

    @property
    def poll_interval(self) -> float | None:
        """Seconds between polls of the keyboard, or None."""
        return _POLL_INTERVAL if self._shown else None

    def process(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case RunEvent(change=change) if change.object.parent_run_id in self._runs:
                self._runs.add(change.object.run_id)
            case PermissionRequestEvent(change=change) if change.object.run_id in self._runs:
                self._add(change.object)
            case PermissionNotificationEvent(change=change):
                self._handle_notification(change.object)
            case RunCompleteEvent(change=change):
                # A run that has ended has no open approvals, whatever earlier events reported.
                for request in [request for request in self._open.values() if request.run_id == change.object.run_id]:
                    self._close(request.id, "The run has ended.")
            case _:
                pass

    def refresh(self) -> None:
        """Fetch the open approvals, because events may have been missed."""
        pending = self._connection.request(
            tuple[PermissionRequest, ...], "GET", self._connection.path("permissions", "pending")
        )
        known = {request.id: request for request in pending if self._is_ours(request.run_id)}
        for name in self._open.keys() - known.keys():
            self._close(name, "The request is closed.")
        for request in known.values():
            self._add(request)

    def _is_ours(self, run: RunId) -> bool:
        """Return True for this run and its sub-agents, also those that were started before this command."""
        if not run or run in self._runs:
            return bool(run)
        try:
            found = self._connection.request(Run, "GET", self._connection.path("runs", run))
        except ServerProblem:
            return False
        if not self._is_ours(found.parent_run_id):
            return False
        self._runs.add(run)
        return True

    def poll(self) -> None:
        """Process typed input, if any."""
        while (entry := self._input.poll()) is not None:
            request = self._open.get(self._shown)
            if entry.kind == "end":
                self._handle_end()
                return
            if request is None:
                self._idle(entry)
            elif entry.kind == "option":
                self._answer(request, cast(GrantAction, entry.text))
            else:
                self._handle_line(request, entry)

    def _idle(self, entry: Input) -> None:
        """Handle input while no approval is open."""

    def _handle_end(self) -> None:
        """Ctrl-D answers nothing; if the terminal is gone the approval is denied."""
        request = self._open.get(self._shown)
        if self._terminal.is_closed and request is not None:
            self._answer(request, "deny", _NO_TERMINAL)

    def _handle_line(self, request: PermissionRequest, entry: Input) -> None:
        """Handle a line: an answer only if it is one of the commands and was begun after the approval appeared."""
        word, _, reason = entry.text.partition(" ")
        action = ANSWERS.get(word.lower())
        if action is None:
            self._other_line(entry.text)
        elif reason and action != "deny":
            self._terminal.write(f"[Not answered: enter {word} alone.]\n")
        elif not entry.is_fresh:
            self._terminal.write("[Not answered: the line was begun before this approval appeared.]\n")
        elif action == "allow_always" and not request.rules:
            self._terminal.write("[Not answered: no rule can allow this permanently; use /allow or /session.]\n")
        else:
            self._answer(request, action, reason.strip())

    def _other_line(self, _: str) -> None:
        """Handle a line that is not an answer."""
        self._terminal.write(f"[Not answered. {self._instructions()}]\n")

    def _add(self, request: PermissionRequest) -> None:
        if request.id in self._open:
            return
        if not self._terminal.is_usable:
            if self._is_attended:
                self._report(request)
            else:
                self._refuse(request)
            return
        self._open[request.id] = request
        if not self._shown:
            self._show(request)

    def _handle_notification(self, notice: PermissionNotification) -> None:
        if notice.granted or notice.denied:
            where = where_answered(notice)
            outcome = "withdrawn" if notice.withdrawn else f"{'allowed' if notice.granted else 'refused'} {where}"
            self._close(notice.id, f"The request was {outcome}.")

    def _close(self, request: str, why: str) -> None:
        if self._open.pop(request, None) is None or request != self._shown:
            return
        self._shown = ""
        self._input.close(f"\n{why}" if why else "")
        if self._open:
            self._show(next(iter(self._open.values())))
        elif not self._SENDS_PROMPTS:
            self._terminal.release()

    def _show(self, request: PermissionRequest) -> None:
        self._output.clear()
        self._output.end_line()
        if not self._SENDS_PROMPTS:
            # No input was requested until now, so earlier input is not meant for this command.
            self._terminal.discard_input()
        self._shown = request.id
        always = f"“Always” saves the rule {printable(', '.join(request.rules))}\n" if request.rules else ""
        self._terminal.write(f"\n{_describe(request)}\n{_render_change(request)}{always}[{self._instructions()}]\n")
        options = [option for option in _OPTIONS if option.value != "allow_always" or request.rules]
        self._input.open(request.id, "approval", options)

    def _instructions(self) -> str:
        others = " Other lines are prompts." if self._SENDS_PROMPTS else ""
        return (
            "Answer with the arrows and Enter, half a second after the last key; with Tab, then y, s or n; or with a "
            f"line: /allow, /session, /always, /deny REASON.{others}"
        )

    def _report(self, request: PermissionRequest) -> None:
        if request.id not in self._reported:
            self._reported.add(request.id)
            where = f"answer it in the client that started the run, or with holdfast attach {request.session_id}"
            self._output.print_notice(f"the run waits for approval: {_summary(request)}; {where}.")

    def _refuse(self, request: PermissionRequest) -> None:
        self._answer(request, "deny", _NO_TERMINAL)
        rules = ", ".join(json.dumps(rule, ensure_ascii=False) for rule in request.rules)
        hint = f" Allow it with permissions.allow = [{rules}] in the configuration, or" if rules else " To allow it,"
        why = f" {request.why}" if request.why else ""
        print_stderr(
            f"holdfast: refused, because there is no terminal: {_summary(request)}.{why}{hint} run with --yolo."
        )

    def _answer(self, request: PermissionRequest, action: GrantAction, reason: str = "") -> None:
        body = {"permission": {"id": request.id, "params": request.params}, "action": action, "reason": reason}
        query = (("client_id", self._connection.client_id), ("via", "command"))
        self._output.clear()
        try:
            self._connection.send(
                "POST", self._connection.path("permissions", "grant"), body=body, query=query, can_repeat=True
            )
        except ServerProblem as problem:
            self._terminal.write(f"{problem}\n")
            if self._open.get(request.id) is not None:
                self._show(request)
            return
        self._terminal.write(f"[{_ANSWER_NOTES[action]}]\n" if request.id == self._shown else "")
        self._close(request.id, "")


def _describe(request: PermissionRequest) -> str:
    return _summary(request) + (f"  ({request.why})" if request.why else "")


def _summary(request: PermissionRequest) -> str:
    """Describe the approval in one line."""
    command = request.params.get("command")
    return f"{request.tool_name}: {printable(command if isinstance(command, str) else request.description)}"


def _render_change(request: PermissionRequest) -> str:
    """Return the change line by line; empty if there is none."""
    old, new, diff = (request.params.get(name) for name in ("old_content", "new_content", "diff"))
    if isinstance(new, str):
        # Imported only if an approval with a change is shown.
        from holdfast.domain.line_diff import hunk_text

        before = old.splitlines() if isinstance(old, str) else []
        lines = list(hunk_text(before, new.splitlines(), context=2))
    else:
        lines = diff.splitlines() if isinstance(diff, str) else []
    more = f"  … {len(lines) - _MAX_CHANGE_LINES} more lines\n" if len(lines) > _MAX_CHANGE_LINES else ""
    return "".join(f"  {printable(line)}\n" for line in lines[:_MAX_CHANGE_LINES]) + more


_ANSWER, _SKIP = "/answer", "/skip"
_QUESTION_HELP = (
    "Choose with the arrows or a number and Enter, half a second after the last key; press Tab to write an answer; "
    f"or enter a line: {_ANSWER} TEXT, or {_SKIP} to decline all questions. Other lines are prompts."
)


class QuestionPrompt:
    """Questions of one session. `may_ask` is false while an approval is shown, which takes precedence."""

    def __init__(
        self,
        connection: ServerConnection,
        output: RunOutput,
        terminal: Terminal,
        line: InputLine,
        session: SessionId,
        can_show: Callable[[], bool],
    ) -> None:
        self._line = line
        self._can_show = can_show
        self._connection = connection
        self._output = output
        self._terminal = terminal
        self._session = session
        self._open: dict[str, QuestionRequest] = {}
        self._answers: list[QuestionAnswer] = []

    @property
    def is_open(self) -> bool:
        """True while questions are open."""
        return bool(self._open)

    def process(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case QuestionRequestEvent(change=change) if change.object.session_id == self._session:
                self._add(change.object)
            case QuestionNotificationEvent(change=change):
                self._close(change.object.batch_id, _closing_notice(change.object))
            case RunCompleteEvent(change=change):
                # A run that has ended has no open questions, whatever earlier events reported.
                for request in [item for item in self._open.values() if item.run_id == change.object.run_id]:
                    self._close(request.id, "The run has ended.")
            case _:
                pass

    def refresh(self) -> None:
        """Fetch the open questions, because events may have been missed."""
        pending = self._connection.request(
            tuple[QuestionRequest, ...], "GET", self._connection.path("questions", "pending")
        )
        known = {request.id: request for request in pending if request.session_id == self._session}
        for name in self._open.keys() - known.keys():
            self._close(name, "The questions are closed.")
        for request in known.values():
            self._add(request)

    def handle_input(self, entry: Input) -> bool:
        """Process input. Returns True if it was an answer."""
        word, _, words = entry.text.partition(" ")
        if entry.kind == "line" and word not in (_ANSWER, _SKIP):
            return False
        if entry.kind == "line" and not entry.is_fresh:
            self._terminal.write("[Not answered: the line was begun before this question appeared.]\n")
        elif entry.kind == "line" and word == _SKIP:
            self._send(self._current, is_declined=True)
        else:
            self._answer(words if entry.kind == "line" else entry.text)
        return True

    def _answer(self, text: str) -> None:
        request = self._current
        self._answers.append(parse_answer(request.questions[len(self._answers)], text))
        if len(self._answers) == len(request.questions):
            self._send(request, is_declined=False)
        else:
            self._show_question()

    @property
    def _current(self) -> QuestionRequest:
        return next(iter(self._open.values()))

    def _add(self, request: QuestionRequest) -> None:
        if request.id in self._open:
            return
        self._open[request.id] = request
        if request is self._current:
            self._start_batch()

    def show_again(self) -> None:
        """Print the question again after an approval has been closed."""
        if self.is_open:
            self._show_question()

    def _start_batch(self) -> None:
        self._answers = []
        self._show_question()

    def _show_question(self) -> None:
        if not self._can_show():
            return
        number = len(self._answers)
        question, count = self._current.questions[number], len(self._current.questions)
        place = f" ({number + 1} of {count})" if count > 1 else ""
        self._output.clear()
        self._output.end_line()
        self._terminal.write(f"\n{_render_question(question)}[{_hint(question)}{place}. {_QUESTION_HELP}]\n")
        self._line.open(f"{self._current.id} {number}", "question", _options(question))

    def _close(self, name: str, why: str) -> None:
        was_shown = self.is_open and self._current.id == name
        if self._open.pop(name, None) is None or not was_shown:
            return
        if self._can_show():
            self._line.close(f"\n[{why}]" if why else "")
        if self._open:
            self._start_batch()

    def _send(self, request: QuestionRequest, *, is_declined: bool) -> None:
        query = [("client_id", self._connection.client_id), ("via", "command")]
        try:
            if is_declined:
                path = self._connection.path("questions", "cancel")
                self._connection.send("POST", path, query=(*query, ("batch_id", request.id)), can_repeat=True)
            else:
                body = QuestionAnswers(tuple(self._answers), request.id)
                path = self._connection.path("questions", "answer")
                self._connection.send("POST", path, body=body, query=tuple(query), can_repeat=True)
        except ServerProblem as problem:
            self._terminal.write(f"{problem}\n")
        self._close(request.id, "")


def _closing_notice(notice: QuestionNotification) -> str:
    if notice.withdrawn:
        return "The questions are closed."
    return f"The questions were {'declined' if notice.cancelled else 'answered'} {where_answered(notice)}."


def parse_answer(question: Question, line: str) -> QuestionAnswer:
    """Parse a line: numbers and labels of choices, or free text. An empty line skips the question."""
    text = line.strip()
    if not text:
        return QuestionAnswer(question.id)
    if question.type == "yes_no":
        word = text.lower()
        if word in ("y", "yes", "n", "no"):
            return QuestionAnswer(question.id, yes=word.startswith("y"))
        return QuestionAnswer(question.id, notes={"_question": text})
    words = [text] if question.type == "single_choice" else text.replace(",", " ").split()
    chosen = [_match_choice(word, question.choices) for word in words]
    if question.type != "free_text" and all(chosen):
        return QuestionAnswer(question.id, tuple(dict.fromkeys(choice for choice in chosen if choice)))
    return QuestionAnswer(question.id, fill_in_text=text)


def _match_choice(word: str, choices: Sequence[Choice]) -> str | None:
    if word.isdecimal() and 0 < int(word) <= len(choices):
        return choices[int(word) - 1].id
    return next((choice.id for choice in choices if choice.label.lower() == word.lower()), None)


def _options(question: Question) -> list[Option]:
    """Return the choices, with values for `read_answer`; a free-text question has none."""
    if question.type == "yes_no":
        return [Option("yes", "yes"), Option("no", "no")]
    return [Option(str(number), printable(choice.label)) for number, choice in enumerate(question.choices, 1)]


def _render_question(question: Question) -> str:
    lines = [question.question]
    if question.description:
        lines += [f"  {line}" for line in question.description.splitlines()]
    for number, choice in enumerate(question.choices, 1):
        lines.append(f"  {number} {choice.label}" + (f": {choice.description}" if choice.description else ""))
    return "".join(f"{printable(line)}\n" for line in lines)


def _hint(question: Question) -> str:
    match question.type:
        case "yes_no":
            return "Yes or no"
        case "single_choice":
            return "Choose one"
        case "multi_choice":
            return "Choose any"
        case "free_text":
            return "Write an answer"
