"""Questions as plain lines, one after the other; the answers are sent together.

A typed line is a prompt and not an answer, unless Tab moved the focus to the question or the line is one of the
commands `/answer` and `/skip`.
"""

from collections.abc import Callable, Sequence

from holdfast.cli.answer_line import AnswerLine, Input, Option
from holdfast.cli.ask import visible
from holdfast.cli.link import Link
from holdfast.cli.speak import Speaker
from holdfast.cli.terminal import Terminal
from holdfast.client.errors import ServerProblem
from holdfast.client.items import Item
from holdfast.domain.asks import (
    Choice,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    where_answered,
)
from holdfast.domain.events import QuestionNotificationEvent, QuestionRequestEvent, RunCompleteEvent
from holdfast.domain.ids import SessionId
from holdfast.protocol.bodies import Answers

__all__ = ["Inquirer", "read_answer"]

_ANSWER, _SKIP = "/answer", "/skip"
_HOW = (
    "Enter and the arrows or a number choose once no key was pressed for half a second; tab, then your own words; "
    f"or a line: {_ANSWER} words, {_SKIP} to answer none of them. Other lines are prompts."
)


class Inquirer:
    """Questions of one session. `may_ask` is false while an approval is shown, which takes precedence."""

    def __init__(
        self,
        link: Link,
        speaker: Speaker,
        terminal: Terminal,
        line: AnswerLine,
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

    def take(self, item: Item) -> None:
        """Process an event of the stream."""
        match item.event:
            case QuestionRequestEvent(payload=change) if change.payload.session_id == self._session:
                self._asked(change.payload)
            case QuestionNotificationEvent(payload=change):
                self._close(change.payload.batch_id, _closed_by(change.payload))
            case RunCompleteEvent(payload=change):
                # A run that has ended has no open questions, whatever earlier events reported.
                for request in [item for item in self._open.values() if item.run_id == change.payload.run_id]:
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
