"""The `question` tool: submits questions to the user."""

import json
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.approvals import Choice, Question, QuestionAnswer, QuestionKind
from holdfast.domain.errors import ToolError
from holdfast.domain.tools import QuestionBatch, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool

__all__ = ["AskedChoice", "AskedQuestion", "QuestionArguments", "QuestionTool"]

_MAX_QUESTIONS = 5
_MAX_CHOICES = 5
_QUESTION = 240
_DESCRIPTION = 600
_LABEL = 40
_CHOICE = 200
_CONFIRM = ("Are these answers right?", "They are sent to the model together.")
_CANCELLED = "User cancelled this question"


class AskedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A choice of a question, as the model sends it."""

    id: Annotated[str, Meta(description="A short id of your own, which is returned if the choice is selected.")]
    label: Annotated[str, Meta(description="The text of the choice.")]
    description: Annotated[str, Meta(description="An explanation, if it needs one.")] = ""


class AskedQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, as the model sends it."""

    type: Annotated[QuestionKind, Meta(description="The kind of answer.")]
    question: Annotated[str, Meta(description="One sentence.")]
    description: Annotated[str, Meta(description="The consequences of the answer, in Markdown.")] = ""
    label: Annotated[str, Meta(description="One or two words that name it.")] = ""
    choices: Annotated[tuple[AskedChoice, ...], Meta(description="For the two types with choices.")] = ()
    options: Annotated[tuple[AskedChoice, ...], Meta(description="The same as choices.")] = ()

    @property
    def offered(self) -> tuple[AskedChoice, ...]:
        """The choices, under either of the two accepted names."""
        return self.choices or self.options


class QuestionArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `question`."""

    questions: Annotated[tuple[AskedQuestion, ...], Meta(description="One to five.")]
    confirm_title: Annotated[
        str, Meta(description="For two or more questions: a last question before the answers are sent.")
    ] = ""
    confirm_description: Annotated[str, Meta(description="The use of the answers.")] = ""


class QuestionTool(BaseTool[QuestionArguments]):
    """The tool `question`: submits questions to the user."""

    name = "question"
    arguments = QuestionArguments

    async def act(self, context: ToolContext, arguments: QuestionArguments) -> ToolOutcome:
        """Submit the questions and return the answers."""
        asked = arguments.questions
        _check(asked)
        title, description = _CONFIRM if len(asked) > 1 else ("", "")
        questions = tuple(_question(item) for item in asked)
        batch = QuestionBatch(questions, arguments.confirm_title or title, arguments.confirm_description or description)
        answers = await context.ask_questions(batch)
        if answers is None:
            return ToolOutcome(_CANCELLED, is_error=True, stops_turn=True)
        blocks = [
            _block(number, item, answer) for number, (item, answer) in enumerate(zip(asked, answers, strict=True), 1)
        ]
        return ToolOutcome("\n\n".join(blocks))


def _question(asked: AskedQuestion) -> Question:
    choices = tuple(Choice(item.id, item.label, item.description) for item in asked.offered)
    return Question("", asked.type, asked.question, asked.label, asked.description, choices)


def _check(asked: Sequence[AskedQuestion]) -> None:
    """Check the questions. Raises `ToolError` with the correction to make."""
    if not 1 <= len(asked) <= _MAX_QUESTIONS:
        raise ToolError(f"Ask 1 to {_MAX_QUESTIONS} questions at once, not {len(asked)}.")
    for number, item in enumerate(asked, 1):
        if wrong := _question_problem(item):
            raise ToolError(f"Question {number}: {wrong} Correct it and call again.")


def _question_problem(item: AskedQuestion) -> str:
    texts = (("question", item.question, _QUESTION), ("description", item.description, _DESCRIPTION))
    for name, text, most in texts:
        if not text.strip():
            return f"{name} is required."
        if len(text.encode("utf-8", "replace")) > most:
            return f"{name} is longer than {most} bytes."
    if len(item.label.encode("utf-8", "replace")) > _LABEL:
        return f"label is longer than {_LABEL} bytes; a word or two is enough."
    return _choices_problem(item)


def _choices_problem(item: AskedQuestion) -> str:
    choices = item.offered
    if item.type in ("yes_no", "free_text"):
        return f"{item.type} takes no choices." if choices else ""
    if not 2 <= len(choices) <= _MAX_CHOICES:
        return f"{item.type} needs 2 to {_MAX_CHOICES} choices."
    if any(not choice.id.strip() for choice in choices) or len({choice.id for choice in choices}) != len(choices):
        return "every choice needs a unique id."
    if any(not choice.label.strip() for choice in choices):
        return "every choice needs a label."
    texts = [text for choice in choices for text in (choice.label, choice.description)]
    if any(len(text.encode("utf-8", "replace")) > _CHOICE for text in texts):
        return f"labels and descriptions of choices have at most {_CHOICE} bytes."
    return ""


def _block(number: int, asked: AskedQuestion, answer: QuestionAnswer) -> str:
    """Return one answer in the form that screens parse."""
    lines = [f"Q{number}: {asked.question}"]
    if answer.yes is not None:
        lines.append(f"User answered: {'yes' if answer.yes else 'no'}")
    if answer.selected_ids:
        lines.append(f"User selected: {json.dumps(list(answer.selected_ids), ensure_ascii=False)}")
    if answer.fill_in_text.strip():
        lines.append(f"User provided: {answer.fill_in_text.strip()}")
    if len(lines) == 1:
        lines.append("User skipped this question")
    for name, note in (answer.notes or {}).items():
        if note.strip():
            lines.append(f"Note: {note.strip()}" if name == "_question" else f"Note on {name}: {note.strip()}")
    return "\n".join(lines)
