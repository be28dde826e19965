"""Questions of the model, one after the other; the answers are sent together."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Label, Static

from holdfast.client.key_focus import Kind
from holdfast.domain.approvals import Question, QuestionAnswer, QuestionRequest
from holdfast.tui.block_render import MarkdownAnswer
from holdfast.tui.widgets.approval_panel import AnswerChoice, RequestPanel

__all__ = ["QuestionPanel"]

_WORDS, _SKIP, _DISMISS = "\0words", "\0skip", "\0dismiss"
"""Rows below the choices of a question; no id of a choice begins with a NUL."""


class QuestionPanel(RequestPanel):
    """A batch of questions. The answer is the body of the reply, or `cancelled` if the user dismisses it."""

    KIND: ClassVar[Kind] = "question"

    def __init__(self, request: QuestionRequest, *, may_focus: Callable[[RequestPanel], bool]) -> None:
        super().__init__(request.id, may_focus)
        self._request = request
        self._at = 0
        self._row = 0
        self._marked: list[tuple[str, ...]] = [() for _ in request.questions]
        self._texts = ["" for _ in request.questions]
        self._before_digits: tuple[int, tuple[str, ...]] | None = None
        self._is_changing = True
        """True until the rows of the next question are mounted."""

    @property
    def _question(self) -> Question:
        return self._request.questions[self._at]

    @property
    def _note(self) -> str:
        """Shown with the last question: Enter then sends all answers."""
        return " ".join(word for word in (self._request.confirm_title, self._request.confirm_description) if word)

    def compose(self) -> ComposeResult:
        """Compose the panel."""
        yield Label("", classes="panel-title", markup=False)
        with VerticalScroll(id="question", can_focus=False):
            yield Static("", classes="question-text")
            yield Vertical(id="rows")
        yield Input(placeholder="Your answer", compact=True)
        yield Label(self._note, classes="panel-note", markup=False)
        yield Label("", classes="panel-hint")

    def on_mount(self) -> None:
        """Draw the first question."""
        self.call_next(self._show)

    async def _show(self) -> None:
        """Draw the current question."""
        question, count = self._question, len(self._request.questions)
        place = f"   ({self._at + 1} of {count})" if count > 1 else ""
        self.query_one(".panel-title", Label).update(Text(f"{question.question}{place}"))
        about = self.query_one(".question-text", Static)
        about.update(MarkdownAnswer(question.description, code_theme="ansi_dark") if question.description else "")
        about.display = bool(question.description)
        self.query_one(".panel-note").display = bool(self._note) and self._at + 1 == count
        rows = self.query_one("#rows", Vertical)
        await rows.remove_children()
        await rows.mount(*self._rows(question, is_single=count == 1))
        self._row = 0
        self._before_digits = None
        self._is_changing = False
        self.redraw()
        self.fit()

    def _rows(self, question: Question, *, is_single: bool) -> list[AnswerChoice]:
        if question.type == "yes_no":
            pairs = [("yes", "Yes"), ("no", "No")]
        else:
            described = (
                f"{item.label}: {item.description}" if item.description else item.label for item in question.choices
            )
            pairs = list(zip((item.id for item in question.choices), described, strict=True))
        numbered = [AnswerChoice(Text(f"{number} {label}"), id) for number, (id, label) in enumerate(pairs, 1)]
        skip = [] if is_single else [AnswerChoice("skip this question", _SKIP)]
        return [*numbered, AnswerChoice("in your own words …", _WORDS), *skip, AnswerChoice("do not answer", _DISMISS)]

    def keys(self) -> tuple[tuple[str, str], ...]:
        """Keys that act in the current state."""
        if self.has_class("written"):
            return ("enter", "answer with this"), ("esc", "back")
        number = () if self._question.type == "free_text" else (("1-9", "mark"),)
        back = (("←", "previous"),) if self._at else ()
        last = (("esc", "back"),) if self.state == "focused" else (("tab", "to go there"),)
        return ("↑↓", "choose"), *number, ("enter", "answer"), *back, *last

    def draw_choices(self) -> None:
        """Mark the selected row and the chosen answers."""
        is_active = self.state in ("active", "focused")
        signs = ("■ ", "□ ") if self._question.type == "multi_choice" else ("● ", "○ ")
        for place, row in enumerate(self.query(AnswerChoice)):
            sign = "" if row.value.startswith("\0") else signs[row.value not in self._marked[self._at]]
            row.mark(is_chosen=place == self._row and is_active, sign=sign)
            if place == self._row and is_active:
                row.scroll_visible(animate=False)

    def fit(self) -> None:
        """Limit the height of the question, so that the hints stay visible."""
        if self.query(".panel-note"):
            note = self.query_one(".panel-note", Label)
            field = 1 if self.has_class("written") else 0
            self.query_one("#question").styles.max_height = max(2, self.room() - 4 - field - int(note.display))

    def act(self, key: str) -> None:
        """Move among the rows, mark one, or answer."""
        rows = list(self.query(AnswerChoice))
        if self._is_changing:
            return
        match key:
            case "up" | "down":
                self._row = min(max(0, self._row + (1 if key == "down" else -1)), len(rows) - 1)
                self._before_digits = None
            case "left" if self._at:
                self._show_question_at(self._at - 1)
                return
            case "enter":
                self._choose_value(rows[self._row].value)
                return
            case digit if digit.isdecimal():
                self._mark_number(int(digit), rows)
            case _:
                return
        self.draw_choices()

    def press(self, key: str) -> None:
        """Handle a key that acts only with the focus."""
        rows = list(self.query(AnswerChoice))
        if key == "space" and rows and not rows[self._row].value.startswith("\0"):
            self._mark(rows[self._row].value)
            self.draw_choices()

    def clicked(self, choice: AnswerChoice) -> None:
        """Select the row that was clicked."""
        self._row = list(self.query(AnswerChoice)).index(choice)
        if self._question.type == "multi_choice" and not choice.value.startswith("\0"):
            self._mark(choice.value)
            self.draw_choices()
        else:
            self._choose_value(choice.value)

    def forget_digits(self) -> None:
        """Undo the marks of digits that turned out to be text."""
        if self._before_digits is not None:
            self._row, self._marked[self._at] = self._before_digits
            self._before_digits = None
            self.draw_choices()

    def _mark_number(self, number: int, rows: list[AnswerChoice]) -> None:
        if number <= len(rows) and not rows[number - 1].value.startswith("\0"):
            self._before_digits = self._before_digits or (self._row, self._marked[self._at])
            self._row = number - 1
            self._mark(rows[number - 1].value)

    def _mark(self, value: str) -> None:
        marked = self._marked[self._at]
        if self._question.type != "multi_choice":
            self._marked[self._at] = (value,)
        else:
            others = tuple(item for item in marked if item != value)
            self._marked[self._at] = others if value in marked else (*marked, value)

    def _choose_value(self, value: str) -> None:
        """Handle Enter on a row, or a click."""
        match value:
            case "\0words":
                self.open_field(self._texts[self._at])
            case "\0skip":
                self._marked[self._at], self._texts[self._at] = (), ""
                self._next()
            case "\0dismiss":
                self.answer({"batch_request_id": self._request.id, "cancelled": True})
            case _:
                if self._question.type != "multi_choice" or not self._marked[self._at]:
                    self._mark(value)
                self._next()

    @on(Input.Submitted)
    def _submit_text(self, event: Input.Submitted) -> None:
        event.stop()
        self._texts[self._at] = event.value.strip()
        self.close_field()
        self.focus()
        self._next()

    def _next(self) -> None:
        if self._at + 1 < len(self._request.questions):
            self._show_question_at(self._at + 1)
            return
        answers = [self._answer(place) for place in range(len(self._request.questions))]
        self.answer({"batch_request_id": self._request.id, "responses": answers})

    def _show_question_at(self, at: int) -> None:
        self._at = at
        self._is_changing = True
        self.call_next(self._show)

    def _answer(self, place: int) -> QuestionAnswer:
        """Return what was marked and written; an empty answer skips the question."""
        question, marked, text = self._request.questions[place], self._marked[place], self._texts[place]
        if question.type == "yes_no":
            yes = marked[0] == "yes" if marked else None
            return QuestionAnswer(question.id, yes=yes, notes={"_question": text} if text else None)
        return QuestionAnswer(question.id, marked or None, text)
