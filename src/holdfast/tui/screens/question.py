"""The model asks. All questions of a batch stand below each other and are answered together."""

from typing import Any, ClassVar

from rich.markdown import Markdown
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, RadioButton, RadioSet, SelectionList, Static
from textual.widgets.selection_list import Selection

from holdfast.domain.asks import Question, QuestionAnswer, QuestionRequest

__all__ = ["QuestionScreen"]


class _Answer(Vertical):
    """One question and the place for its answer."""

    def __init__(self, question: Question, number: int) -> None:
        super().__init__(classes="question")
        self._question = question
        self._number = number

    def compose(self) -> ComposeResult:
        question = self._question
        yield Label(f"{self._number}. {question.question}", classes="dialog-title")
        if question.description:
            yield Static(Markdown(question.description), classes="question-text")
        match question.type:
            case "yes_no":
                yield RadioSet("Yes", "No")
            case "single_choice":
                with RadioSet():
                    for choice in question.choices:
                        yield RadioButton(_line(choice.label, choice.description), name=choice.id)
            case "multi_choice":
                options = [Selection(_line(item.label, item.description), item.id) for item in question.choices]
                yield SelectionList[str](*options)
            case "free_text":
                pass
        other = "Your answer" if question.type == "free_text" else "Something else, or a word about it (optional)"
        yield Input(placeholder=other)

    def answer(self) -> QuestionAnswer:
        """What was chosen and written; nothing of either is a question skipped."""
        text = self.query_one(Input).value.strip()
        question = self._question
        chosen: tuple[str, ...] | None = None
        yes: bool | None = None
        if question.type == "multi_choice":
            chosen = tuple(self.query_one(SelectionList).selected) or None
        elif question.type != "free_text":
            index = self.query_one(RadioSet).pressed_index
            if index >= 0 and question.type == "yes_no":
                yes = index == 0
            elif index >= 0:
                chosen = (question.choices[index].id,)
        if question.type == "yes_no" and text:
            return QuestionAnswer(question.id, yes=yes, notes={"_question": text})
        return QuestionAnswer(question.id, chosen, text, yes)


def _line(label: str, description: str) -> str:
    return f"{label}: {description}" if description else label


class QuestionScreen(ModalScreen[dict[str, Any] | None]):
    """Answers the body of the reply, with `cancelled` if they were turned down; None if somebody else answered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "turn_down", "Do not answer"),
        Binding("ctrl+enter,ctrl+s", "send", "Send", priority=True),
    ]

    def __init__(self, request: QuestionRequest) -> None:
        super().__init__()
        self._request = request
        self.ask_id = request.id

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self._request.confirm_title or "The model would like to know", classes="dialog-title")
            with VerticalScroll(id="questions"):
                for number, question in enumerate(self._request.questions, 1):
                    yield _Answer(question, number)
            yield Button("Send", variant="primary", compact=True)
            yield Label("tab next · space choose · ctrl+s send · esc do not answer", classes="dialog-hint")

    @on(Button.Pressed)
    def action_send(self) -> None:
        answers = [item.answer() for item in self.query(_Answer)]
        self.dismiss({"batch_request_id": self._request.id, "responses": answers})

    def action_turn_down(self) -> None:
        self.dismiss({"batch_request_id": self._request.id, "cancelled": True})
