"""The model asks. All questions of a batch stand below each other and are answered together."""

from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Checkbox, Input, Label, RadioButton, RadioSet, Static

from holdfast.domain.asks import Question, QuestionAnswer, QuestionRequest
from holdfast.tui.hints import hints
from holdfast.tui.markdown import Answer
from holdfast.tui.screens.dialog import Dialog

__all__ = ["QuestionScreen"]


class _Radio(RadioButton):
    """What is not chosen is empty: colours alone do not tell it to everybody."""

    BUTTON_INNER = "○"

    def watch_value(self) -> None:
        self.BUTTON_INNER = "●" if self.value else "○"
        super().watch_value()


class _Check(Checkbox):
    BUTTON_INNER = "□"

    def watch_value(self) -> None:
        self.BUTTON_INNER = "■" if self.value else "□"
        super().watch_value()


class _Answer(Vertical):
    """One question and the place for its answer."""

    def __init__(self, question: Question, number: int) -> None:
        super().__init__(classes="question")
        self._question = question
        self._number = number

    def compose(self) -> ComposeResult:
        question = self._question
        yield Label(f"{self._number}. {question.question}", classes="dialog-title", markup=False)
        if question.description:
            yield Static(Answer(question.description, code_theme="ansi_dark"), classes="question-text")
        match question.type:
            case "yes_no":
                with RadioSet():
                    yield _Radio("Yes")
                    yield _Radio("No")
            case "single_choice":
                with RadioSet():
                    for choice in question.choices:
                        yield _Radio(_line(choice.label, choice.description), name=choice.id)
            case "multi_choice":
                for choice in question.choices:
                    yield _Check(_line(choice.label, choice.description), name=choice.id)
            case "free_text":
                pass
        other = "Your answer" if question.type == "free_text" else "Something else, or a word about it (optional)"
        yield Input(placeholder=other, compact=True)

    def answer(self) -> QuestionAnswer:
        """What was chosen and written; nothing of either is a question skipped."""
        text = self.query_one(Input).value.strip()
        question = self._question
        chosen: tuple[str, ...] | None = None
        yes: bool | None = None
        if question.type == "multi_choice":
            chosen = tuple(str(check.name) for check in self.query(_Check) if check.value) or None
        elif question.type != "free_text":
            index = self.query_one(RadioSet).pressed_index
            if index >= 0 and question.type == "yes_no":
                yes = index == 0
            elif index >= 0:
                chosen = (question.choices[index].id,)
        if question.type == "yes_no" and text:
            return QuestionAnswer(question.id, yes=yes, notes={"_question": text})
        return QuestionAnswer(question.id, chosen, text, yes)


def _line(label: str, description: str) -> Content:
    """As plain text: brackets in it mean nothing."""
    return Content(f"{label}: {description}" if description else label)


class QuestionScreen(Dialog[dict[str, Any] | None]):
    """Answers the body of the reply, with `cancelled` if they were turned down; None if somebody else answered."""

    GROWS = "#questions"
    AUTO_FOCUS = ""
    """The first place for an answer gets the focus without a scroll to it: its question stands above it."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "turn_down", "Do not answer"),
        # Not before the letters that were typed before it.
        Binding("ctrl+enter,ctrl+s", "send", "Send"),
    ]

    def __init__(self, request: QuestionRequest) -> None:
        super().__init__()
        self._request = request
        self.ask_id = request.id

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("The model would like to know", classes="dialog-title")
            with VerticalScroll(id="questions", can_focus=False):
                for number, question in enumerate(self._request.questions, 1):
                    yield _Answer(question, number)
            sure = " ".join(word for word in (self._request.confirm_title, self._request.confirm_description) if word)
            yield Label(sure, classes="dialog-note", markup=False)
            yield Button("Send", compact=True)
            keys = hints(("tab", "next"), ("space", "choose"), ("ctrl+s", "send"), ("esc", "do not answer"))
            yield Label(keys, classes="dialog-hint")

    def on_mount(self) -> None:
        self.query(f"RadioSet, {_Check.__name__}, Input").first().focus(scroll_visible=False)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """A place for an answer is seen together with its question."""
        for part in event.widget.ancestors:
            if isinstance(part, _Answer):
                # One refresh later than the radio buttons, which scroll to themselves.
                self.call_after_refresh(self.call_after_refresh, part.scroll_visible, animate=False)

    @on(Button.Pressed)
    def action_send(self) -> None:
        answers = [item.answer() for item in self.query(_Answer)]
        self.dismiss({"batch_request_id": self._request.id, "responses": answers})

    def action_turn_down(self) -> None:
        self.dismiss({"batch_request_id": self._request.id, "cancelled": True})
