"""Approvals of a run that a command waits for: shown at the terminal, refused without one.

The user answers with a key or with a command such as `/allow`; any other line is not an answer (`answer_line.py`).
Events of the run are processed meanwhile: an approval that another client answers, or that is withdrawn, is closed here
too. Without a terminal the run would wait forever, so the call is refused, with one message for the model and one for
the user.
"""

import json
from collections.abc import Callable, Sequence
from typing import cast

from holdfast.cli.console.input_line import Input, InputLine, Option
from holdfast.cli.console.run_output import RunOutput, complain
from holdfast.cli.console.terminal import Terminal
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
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
from holdfast.protocol.bodies import Answers

__all__ = ["ANSWERS", "ApprovalPrompt", "QuestionPrompt", "read_answer", "visible"]


_PATIENCE = 0.1
_MOST_LINES = 500
"""Maximum number of lines of a change that are shown."""
_NOBODY = "This run has no terminal, so nobody could be asked. Go on without it, and say what could not be done."
_OPTIONS = (
    Option("allow", "once", "y"),
    Option("allow_session", "this session", "s"),
    # A permanent rule has no letter: it requires the arrows and Enter, or its command.
    Option("allow_always", "always"),
    Option("deny", "no", "n"),
)
_SAID: dict[GrantAction, str] = {
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
    """Approvals of one run and of its sub-agents. Without a terminal they are refused, unless the run is interactive in
    another client; then they are only reported.
    """

    _TAKES_PROMPTS = False
    """True if lines other than answers are sent as prompts."""

    def __init__(
        self,
        link: ServerConnection,
        speaker: RunOutput,
        run: RunId,
        terminal: Terminal | None = None,
        *,
        is_somebodys: bool = False,
    ) -> None:
        self._is_somebodys = is_somebodys
        self._told_of: set[str] = set()
        self._link = link
        self._speaker = speaker
        self._runs = {run}
        self._terminal = terminal or Terminal()
        self._input = InputLine(self._terminal, speaker, echoes=self._TAKES_PROMPTS)
        self._open: dict[str, PermissionRequest] = {}
        self._shown = ""

    @property
    def is_asking(self) -> bool:
        """True while an approval is shown: nothing else is drawn, and the keyboard is polled."""
        return bool(self._shown)

    @property
    def patience(self) -> float | None:
        """Seconds between polls of the keyboard, or None."""
        return _PATIENCE if self._shown else None

    def take(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case RunEvent(change=change) if change.object.parent_run_id in self._runs:
                self._runs.add(change.object.run_id)
            case PermissionRequestEvent(change=change) if change.object.run_id in self._runs:
                self._asked(change.object)
            case PermissionNotificationEvent(change=change):
                self._told(change.object)
            case RunCompleteEvent(change=change):
                # A run that has ended has no open approvals, whatever earlier events reported.
                for ask in [ask for ask in self._open.values() if ask.run_id == change.object.run_id]:
                    self._close(ask.id, "Its run has ended.")
            case _:
                pass

    def look(self) -> None:
        """Fetch the open approvals, because events may have been missed."""
        pending = self._link.ask(tuple[PermissionRequest, ...], "GET", self._link.path("permissions", "pending"))
        known = {ask.id: ask for ask in pending if self._is_ours(ask.run_id)}
        for name in self._open.keys() - known.keys():
            self._close(name, "It is not open any more.")
        for ask in known.values():
            self._asked(ask)

    def _is_ours(self, run: RunId) -> bool:
        """Return True for this run and its sub-agents, also those that were started before this command."""
        if not run or run in self._runs:
            return bool(run)
        try:
            found = self._link.ask(Run, "GET", self._link.path("runs", run))
        except ServerProblem:
            return False
        if not self._is_ours(found.parent_run_id):
            return False
        self._runs.add(run)
        return True

    def poll(self) -> None:
        """Process typed input, if any."""
        while (done := self._input.poll()) is not None:
            ask = self._open.get(self._shown)
            if done.kind == "end":
                self._ended()
                return
            if ask is None:
                self._idle(done)
            elif done.kind == "option":
                self._answer(ask, cast(GrantAction, done.text))
            else:
                self._typed(ask, done)

    def _idle(self, done: Input) -> None:
        """Handle input while no approval is open."""

    def _ended(self) -> None:
        """Ctrl-D answers nothing; if the terminal is gone the approval is denied."""
        ask = self._open.get(self._shown)
        if self._terminal.is_gone and ask is not None:
            self._answer(ask, "deny", _NOBODY)

    def _typed(self, ask: PermissionRequest, done: Input) -> None:
        """Handle a line: an answer only if it is one of the commands and was begun after the approval appeared."""
        word, _, reason = done.text.partition(" ")
        action = ANSWERS.get(word.lower())
        if action is None:
            self._other_line(done.text)
        elif reason and action != "deny":
            self._terminal.say(f"[Nothing is answered: write {word} alone.]\n")
        elif not done.is_fresh:
            self._terminal.say("[That was typed before this approval appeared: nothing is answered.]\n")
        elif action == "allow_always" and not ask.rules:
            self._terminal.say("[No rule can allow this for always: /allow or /session.]\n")
        else:
            self._answer(ask, action, reason.strip())

    def _other_line(self, _: str) -> None:
        """Handle a line that is not an answer."""
        self._terminal.say(f"[Nothing is answered. {self._how()}]\n")

    def _asked(self, ask: PermissionRequest) -> None:
        if ask.id in self._open:
            return
        if not self._terminal.is_there:
            if self._is_somebodys:
                self._tell(ask)
            else:
                self._refuse(ask)
            return
        self._open[ask.id] = ask
        if not self._shown:
            self._show(ask)

    def _told(self, notice: PermissionNotification) -> None:
        if notice.granted or notice.denied:
            where = where_answered(notice)
            said = "withdrawn" if notice.withdrawn else f"{'allowed' if notice.granted else 'refused'} {where}"
            self._close(notice.id, f"It was {said}.")

    def _close(self, ask: str, why: str) -> None:
        if self._open.pop(ask, None) is None or ask != self._shown:
            return
        self._shown = ""
        self._input.close(f"\n{why}" if why else "")
        if self._open:
            self._show(next(iter(self._open.values())))
        elif not self._TAKES_PROMPTS:
            self._terminal.release()

    def _show(self, ask: PermissionRequest) -> None:
        self._speaker.clear()
        self._speaker.end_line()
        if not self._TAKES_PROMPTS:
            # No input was requested until now, so earlier input is not meant for this command.
            self._terminal.discard_input()
        self._shown = ask.id
        always = f"Always saves the rule {visible(', '.join(ask.rules))}\n" if ask.rules else ""
        self._terminal.say(f"\n{_described(ask)}\n{_change(ask)}{always}[{self._how()}]\n")
        options = [option for option in _OPTIONS if option.value != "allow_always" or ask.rules]
        self._input.open(ask.id, "approval", options)

    def _how(self) -> str:
        others = " Other lines are prompts." if self._TAKES_PROMPTS else ""
        return (
            "Answer with enter and the arrows once no key was pressed for half a second, with tab and then y, s or n, "
            f"or with a line: /allow, /session, /always, /deny why.{others}"
        )

    def _tell(self, ask: PermissionRequest) -> None:
        if ask.id not in self._told_of:
            self._told_of.add(ask.id)
            where = f"answer it where the run was begun, or with holdfast attach {ask.session_id}"
            self._speaker.note(f"the run waits for a permission: {_what(ask)}; {where}.")

    def _refuse(self, ask: PermissionRequest) -> None:
        self._answer(ask, "deny", _NOBODY)
        rules = ", ".join(json.dumps(rule, ensure_ascii=False) for rule in ask.rules)
        hint = f" Allow it with permissions.allow = [{rules}] in the configuration, or" if rules else " To allow it,"
        why = f" {ask.why}" if ask.why else ""
        complain(f"holdfast: refused, for nobody can be asked: {_what(ask)}.{why}{hint} run with --yolo.")

    def _answer(self, ask: PermissionRequest, action: GrantAction, reason: str = "") -> None:
        body = {"permission": {"id": ask.id, "params": ask.params}, "action": action, "reason": reason}
        query = (("client_id", self._link.client_id), ("via", "command"))
        self._speaker.clear()
        try:
            self._link.send("POST", self._link.path("permissions", "grant"), body=body, query=query, can_repeat=True)
        except ServerProblem as problem:
            self._terminal.say(f"{problem}\n")
            if self._open.get(ask.id) is not None:
                self._show(ask)
            return
        self._terminal.say(f"[{_SAID[action]}]\n" if ask.id == self._shown else "")
        self._close(ask.id, "")


def _described(ask: PermissionRequest) -> str:
    return _what(ask) + (f"  ({ask.why})" if ask.why else "")


def _what(ask: PermissionRequest) -> str:
    """Describe the approval in one line."""
    command = ask.params.get("command")
    return f"{ask.tool_name}: {visible(command if isinstance(command, str) else ask.description)}"


def _change(ask: PermissionRequest) -> str:
    """Return the change line by line; empty if there is none."""
    old, new, diff = (ask.params.get(name) for name in ("old_content", "new_content", "diff"))
    if isinstance(new, str):
        # Imported only if an approval with a change is shown.
        from holdfast.domain.line_diff import hunk_text

        before = old.splitlines() if isinstance(old, str) else []
        lines = list(hunk_text(before, new.splitlines(), context=2))
    else:
        lines = diff.splitlines() if isinstance(diff, str) else []
    more = f"  … {len(lines) - _MOST_LINES} more lines\n" if len(lines) > _MOST_LINES else ""
    return "".join(f"  {visible(line)}\n" for line in lines[:_MOST_LINES]) + more


def visible(text: str) -> str:
    """Escape characters that could hide text or control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# Questions as plain lines, one after the other; the answers are sent together.

_ANSWER, _SKIP = "/answer", "/skip"
_HOW = (
    "Enter and the arrows or a number choose once no key was pressed for half a second; tab, then your own words; "
    f"or a line: {_ANSWER} words, {_SKIP} to answer none of them. Other lines are prompts."
)


class QuestionPrompt:
    """Questions of one session. `may_ask` is false while an approval is shown, which takes precedence."""

    def __init__(
        self,
        link: ServerConnection,
        speaker: RunOutput,
        terminal: Terminal,
        line: InputLine,
        session: SessionId,
        may_ask: Callable[[], bool],
    ) -> None:
        self._line = line
        self._may_ask = may_ask
        self._link = link
        self._speaker = speaker
        self._terminal = terminal
        self._session = session
        self._open: dict[str, QuestionRequest] = {}
        self._answers: list[QuestionAnswer] = []

    @property
    def is_asking(self) -> bool:
        """True while questions are open."""
        return bool(self._open)

    def take(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case QuestionRequestEvent(change=change) if change.object.session_id == self._session:
                self._asked(change.object)
            case QuestionNotificationEvent(change=change):
                self._close(change.object.batch_id, _closed_by(change.object))
            case RunCompleteEvent(change=change):
                # A run that has ended has no open questions, whatever earlier events reported.
                for request in [item for item in self._open.values() if item.run_id == change.object.run_id]:
                    self._close(request.id, "The run that asked has ended.")
            case _:
                pass

    def look(self) -> None:
        """Fetch the open questions, because events may have been missed."""
        pending = self._link.ask(tuple[QuestionRequest, ...], "GET", self._link.path("questions", "pending"))
        known = {request.id: request for request in pending if request.session_id == self._session}
        for name in self._open.keys() - known.keys():
            self._close(name, "The questions are not open any more.")
        for request in known.values():
            self._asked(request)

    def take_input(self, done: Input) -> bool:
        """Process input. Returns True if it was an answer."""
        word, _, words = done.text.partition(" ")
        if done.kind == "line" and word not in (_ANSWER, _SKIP):
            return False
        if done.kind == "line" and not done.is_fresh:
            self._terminal.say("[That was typed before this question appeared: nothing is answered.]\n")
        elif done.kind == "line" and word == _SKIP:
            self._send(self._shown, is_turned_down=True)
        else:
            self._answer(words if done.kind == "line" else done.text)
        return True

    def _answer(self, text: str) -> None:
        request = self._shown
        self._answers.append(read_answer(request.questions[len(self._answers)], text))
        if len(self._answers) == len(request.questions):
            self._send(request, is_turned_down=False)
        else:
            self._ask()

    @property
    def _shown(self) -> QuestionRequest:
        return next(iter(self._open.values()))

    def _asked(self, request: QuestionRequest) -> None:
        if request.id in self._open:
            return
        self._open[request.id] = request
        if request is self._shown:
            self._begin()

    def again(self) -> None:
        """Print the question again after an approval has been closed."""
        if self.is_asking:
            self._ask()

    def _begin(self) -> None:
        self._answers = []
        self._ask()

    def _ask(self) -> None:
        if not self._may_ask():
            return
        number = len(self._answers)
        question, count = self._shown.questions[number], len(self._shown.questions)
        place = f" ({number + 1} of {count})" if count > 1 else ""
        self._speaker.clear()
        self._speaker.end_line()
        self._terminal.say(f"\n{_shown(question)}[{_hint(question)}{place}. {_HOW}]\n")
        self._line.open(f"{self._shown.id} {number}", "question", _options(question))

    def _close(self, name: str, why: str) -> None:
        was_shown = self.is_asking and self._shown.id == name
        if self._open.pop(name, None) is None or not was_shown:
            return
        if self._may_ask():
            self._line.close(f"\n[{why}]" if why else "")
        if self._open:
            self._begin()

    def _send(self, request: QuestionRequest, *, is_turned_down: bool) -> None:
        query = [("client_id", self._link.client_id), ("via", "command")]
        try:
            if is_turned_down:
                path = self._link.path("questions", "cancel")
                self._link.send("POST", path, query=(*query, ("batch_id", request.id)), can_repeat=True)
            else:
                body = Answers(tuple(self._answers), request.id)
                path = self._link.path("questions", "answer")
                self._link.send("POST", path, body=body, query=tuple(query), can_repeat=True)
        except ServerProblem as problem:
            self._terminal.say(f"{problem}\n")
        self._close(request.id, "")


def _closed_by(notice: QuestionNotification) -> str:
    if notice.withdrawn:
        return "The questions are not open any more."
    return f"They were {'turned down' if notice.cancelled else 'answered'} {where_answered(notice)}."


def read_answer(question: Question, line: str) -> QuestionAnswer:
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
    chosen = [_chosen(word, question.choices) for word in words]
    if question.type != "free_text" and all(chosen):
        return QuestionAnswer(question.id, tuple(dict.fromkeys(choice for choice in chosen if choice)))
    return QuestionAnswer(question.id, fill_in_text=text)


def _chosen(word: str, choices: Sequence[Choice]) -> str | None:
    if word.isdecimal() and 0 < int(word) <= len(choices):
        return choices[int(word) - 1].id
    return next((choice.id for choice in choices if choice.label.lower() == word.lower()), None)


def _options(question: Question) -> list[Option]:
    """Return the choices, with values for `read_answer`; a free-text question has none."""
    if question.type == "yes_no":
        return [Option("yes", "yes"), Option("no", "no")]
    return [Option(str(number), visible(choice.label)) for number, choice in enumerate(question.choices, 1)]


def _shown(question: Question) -> str:
    lines = [question.question]
    if question.description:
        lines += [f"  {line}" for line in question.description.splitlines()]
    for number, choice in enumerate(question.choices, 1):
        lines.append(f"  {number} {choice.label}" + (f": {choice.description}" if choice.description else ""))
    return "".join(f"{visible(line)}\n" for line in lines)


def _hint(question: Question) -> str:
    match question.type:
        case "yes_no":
            return "Yes or no"
        case "single_choice":
            return "One of them"
        case "multi_choice":
            return "Any of them"
        case "free_text":
            return "In your own words"
