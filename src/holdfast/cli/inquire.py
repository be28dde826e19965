"""Questions in plain lines: one after the other, each answered by a line, all of them sent together."""

from collections.abc import Sequence

from holdfast.cli.ask import Terminal, visible
from holdfast.cli.link import Link
from holdfast.cli.speak import Speaker
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

_TURNED_DOWN = "/skip"


class Inquirer:
    """The questions of one session, for whoever sits at the terminal."""

    def __init__(self, link: Link, speaker: Speaker, terminal: Terminal, session: SessionId) -> None:
        self._link = link
        self._speaker = speaker
        self._terminal = terminal
        self._session = session
        self._open: dict[str, QuestionRequest] = {}
        self._answers: list[QuestionAnswer] = []

    @property
    def is_asking(self) -> bool:
        return bool(self._open)

    def take(self, item: Item) -> None:
        match item.event:
            case QuestionRequestEvent(payload=change) if change.payload.session_id == self._session:
                self._asked(change.payload)
            case QuestionNotificationEvent(payload=change):
                self._close(change.payload.batch_id, _closed_by(change.payload))
            case RunCompleteEvent(payload=change):
                # A run that has ended asks for nothing, whatever was said before.
                for request in [item for item in self._open.values() if item.run_id == change.payload.run_id]:
                    self._close(request.id, "The run that asked has ended.")
            case _:
                pass

    def look(self) -> None:
        """Something may have been missed: ask what is open."""
        pending = self._link.ask(tuple[QuestionRequest, ...], "GET", self._link.path("questions", "pending"))
        known = {request.id: request for request in pending if request.session_id == self._session}
        for name in self._open.keys() - known.keys():
            self._close(name, "The questions are not open any more.")
        for request in known.values():
            self._asked(request)

    def answer(self, line: str) -> None:
        """What was typed, an end of input included: then nobody will answer."""
        request = self._shown
        if not line or line.strip() == _TURNED_DOWN:
            self._send(request, is_turned_down=True)
            return
        self._answers.append(read_answer(request.questions[len(self._answers)], line))
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
        """Something else stood below the question meanwhile."""
        if self.is_asking:
            self._ask()

    def _begin(self) -> None:
        self._answers = []
        self._speaker.end_line()
        self._terminal.forget()
        self._terminal.say(f"\n[You are asked. An empty line leaves one out, {_TURNED_DOWN} all of them.]\n")
        self._ask()

    def _ask(self) -> None:
        number = len(self._answers)
        questions = self._shown.questions
        count = f" ({number + 1} of {len(questions)})" if len(questions) > 1 else ""
        self._terminal.say(f"{_shown(questions[number])}{_hint(questions[number])}{count}: ")

    def _close(self, name: str, why: str) -> None:
        was_shown = self.is_asking and self._shown.id == name
        if self._open.pop(name, None) is None or not was_shown:
            return
        self._terminal.say(f"\n[{why}]\n" if why else "")
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
    """What a line says: numbers and names of choices, or words of one's own. An empty one leaves the question out."""
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
            return "[y] yes  [n] no, or in your own words"
        case "single_choice":
            return "A number, or your own words"
        case "multi_choice":
            return "Numbers, or your own words"
        case "free_text":
            return "Your answer"
