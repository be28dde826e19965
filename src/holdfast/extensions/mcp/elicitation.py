"""Elicitation: an MCP server requests input from the user while one of its tools runs.

The form of the server is converted to questions, the answers back to form content. Everything but `elicit` is pure.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.domain.approvals import Choice, Question, QuestionAnswer, QuestionKind
from holdfast.domain.errors import ToolError
from holdfast.domain.tools import QuestionBatch, ToolContext

__all__ = ["Field", "elicit", "form_content", "form_fields"]


MAX_FIELDS = 24
_MAX_CHOICES = 12
_MAX_QUESTION = 240
_MAX_DESCRIPTION = 2_000
_MAX_LABEL = 40

Kind: TypeAlias = Literal["text", "number", "integer", "yes", "one", "some"]
_QUESTION_KINDS: dict[Kind, QuestionKind] = {
    "text": "free_text",
    "number": "free_text",
    "integer": "free_text",
    "yes": "yes_no",
    "one": "single_choice",
    "some": "multi_choice",
}
_EXPECTED_VALUES = {
    "number": "a number",
    "integer": "a whole number",
    "one": "one of the list",
    "some": "some of the list",
}


class Field(msgspec.Struct, frozen=True):
    """A form field and the question for it."""

    name: str
    kind: Kind
    question: Question
    is_required: bool = False
    default: Any = None


class _InvalidAnswer(ValueError):
    """The answer does not fit the schema of the field."""


def form_fields(server: str, params: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields of a form, or nothing if it has too many. A form without fields, or with a URL, becomes a
    yes-or-no question.
    """
    message = _text(params.get("message")) or "It needs an answer."
    description = f"The MCP server {server} asks: {message}"
    if params.get("mode") == "url":
        description += f"\n\nOpen this address in a browser if you expect this request: {_text(params.get('url'))}"
        return (_confirmation_field(server, description),)
    form = params.get("requestedSchema")
    properties = form.get("properties") if isinstance(form, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        return (_confirmation_field(server, description),)
    names = _list(form.get("required")) if isinstance(form, Mapping) else []
    if len(properties) > MAX_FIELDS:
        return ()
    # The questions are shown together, so only the first contains the message.
    descriptions = [description, *([f"For the MCP server {server}."] * (len(properties) - 1))]
    return tuple(
        _field(str(name), inside, description, is_required=name in names)
        for (name, inside), description in zip(properties.items(), descriptions, strict=True)
    )


def _confirmation_field(server: str, description: str) -> Field:
    question = Question(
        "",
        "yes_no",
        f"Continue with the request of {server}?"[:_MAX_QUESTION],
        server[:_MAX_LABEL],
        _shorten(description),
    )
    return Field("", "yes", question)


def _field(name: str, schema: Any, description: str, *, is_required: bool) -> Field:  # noqa: ANN401 - any JSON
    schema = schema if isinstance(schema, Mapping) else {}
    choices = tuple(_choices(schema))
    kind = _kind(schema, choices)
    title = _text(schema.get("title")) or name
    details = _text(schema.get("description"))
    if kind in ("number", "integer"):
        details = f"{details}\n\nIt has to be {_EXPECTED_VALUES[kind]}."
    elif choices and kind == "text":
        details = f"{details}\n\nOne of: {', '.join(choice.label for choice in choices)}."
    if "default" in schema:
        details = f"{details}\n\nDefault: {json.dumps(schema['default'], ensure_ascii=False)}"
    text = f"{title}?" if not title.endswith("?") else title
    offered = choices if kind in ("one", "some") else ()
    question = Question(
        "",
        _QUESTION_KINDS[kind],
        text[:_MAX_QUESTION],
        title[:_MAX_LABEL],
        _shorten(f"{description}\n\n{details}".strip()),
        offered,
    )
    return Field(name, kind, question, is_required, schema.get("default"))


def _kind(schema: Mapping[str, Any], choices: Sequence[Choice]) -> Kind:
    type_name = schema.get("type")
    if choices:
        fits = 2 <= len(choices) <= _MAX_CHOICES
        return ("some" if type_name == "array" else "one") if fits else "text"
    if type_name == "boolean":
        return "yes"
    return type_name if type_name in ("number", "integer") else "text"


def _choices(schema: Mapping[str, Any]) -> Iterator[Choice]:
    items = schema.get("items")
    inside = items if schema.get("type") == "array" and isinstance(items, Mapping) else schema
    for option in _list(inside.get("oneOf")) or _list(inside.get("anyOf")):
        if isinstance(option, Mapping) and isinstance(value := option.get("const"), str):
            yield Choice(value, _text(option.get("title")) or value)
    values, titles = _list(inside.get("enum")), _list(inside.get("enumNames"))
    for index, value in enumerate(values):
        if isinstance(value, str):
            yield Choice(value, (_text(titles[index]) if index < len(titles) else "") or value)


def form_content(
    fields: Sequence[Field], answers: Sequence[QuestionAnswer]
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the form content, or None if the user declines, and the names of fields to request again."""
    content: dict[str, Any] = {}
    invalid: list[str] = []
    for field, answer in zip(fields, answers, strict=True):
        try:
            value = _value(field, answer)
        except _InvalidAnswer:
            invalid.append(field.name)
            continue
        if not field.name:
            return ({} if value is True else None), ()
        if value is None:
            value = field.default
        if value is not None:
            content[field.name] = value
        elif field.is_required:
            invalid.append(field.name)
    return content, tuple(invalid)


def _value(field: Field, answer: QuestionAnswer) -> Any:  # noqa: ANN401 - as the kind of the field has it
    """Return the value of an answer, or None if the question was skipped. Raises `_InvalidAnswer`."""
    text = answer.fill_in_text.strip()
    match field.kind:
        case "yes":
            return answer.yes
        case "text":
            return text or None
        case "number" | "integer":
            return _number(field.kind, text) if text else None
        case "one" | "some":
            # Text beside a selection is a remark and is ignored.
            chosen = list(answer.selected_ids or ()) or ([_choice_by_text(field, text)] if text else [])
            return (chosen if field.kind == "some" else chosen[0]) if chosen else None


def _choice_by_text(field: Field, text: str) -> str:
    """Return the choice that was typed instead of selected. Raises `_InvalidAnswer`."""
    found = [
        choice.id for choice in field.question.choices if text.lower() in (choice.id.lower(), choice.label.lower())
    ]
    if not found:
        raise _InvalidAnswer
    return found[0]


def _number(kind: Kind, text: str) -> int | float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        raise _InvalidAnswer from None
    if not math.isfinite(value) or (kind == "integer" and not value.is_integer()):
        raise _InvalidAnswer
    return int(value) if value.is_integer() else value


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


_MAX_ROUNDS = 3
_CONFIRM = "Are these answers right?"
_REPEAT_PREFIX = "That answer is not valid; try again. "


async def elicit(context: ToolContext, server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an elicitation in protocol form. Without an attending user the result is `cancel`. Answers
    that do not fit the schema are requested again, `_MAX_ROUNDS` times in total.
    """
    fields = form_fields(server, params)
    answers: dict[str, QuestionAnswer] = {}
    pending = fields
    for _ in range(_MAX_ROUNDS if fields else 0):
        try:
            replies = await context.ask_questions(_question_batch(server, pending))
        except ToolError:
            return {"action": "cancel"}
        if replies is None:
            return {"action": "decline"}
        answers |= {field.name: answer for field, answer in zip(pending, replies, strict=True)}
        content, invalid = form_content(fields, [answers[field.name] for field in fields])
        if content is None:
            return {"action": "decline"}
        if not invalid:
            is_form = any(field.name for field in fields)
            return {"action": "accept", "content": content} if is_form else {"action": "accept"}
        pending = tuple(_repeat(field) for field in fields if field.name in invalid)
    return {"action": "cancel"}


def _question_batch(server: str, fields: tuple[Field, ...]) -> QuestionBatch:
    questions = tuple(field.question for field in fields)
    if len(questions) == 1:
        return QuestionBatch(questions)
    return QuestionBatch(questions, _CONFIRM, f"They are sent to the MCP server {server} together.")


def _repeat(field: Field) -> Field:
    question = field.question
    repeated = msgspec.structs.replace(question, description=_REPEAT_PREFIX + question.description)
    return msgspec.structs.replace(field, question=repeated)
