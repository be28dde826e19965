"""Elicitation: an MCP server requests input from the user while one of its tools runs."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.domain.approvals import Choice, Question, QuestionAnswer, QuestionKind
from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Inquiry, ToolContext

__all__ = ["Field", "ask_for", "content_of", "fields_of"]


# Conversion of MCP elicitation forms to questions, and of the answers to form content. Pure.

MOST_FIELDS = 24
_MOST_CHOICES = 12
_LONGEST = 240
_LONGEST_ABOUT = 2_000
_LABEL = 40

Kind: TypeAlias = Literal["text", "number", "integer", "yes", "one", "some"]
_ASKED: dict[Kind, QuestionKind] = {
    "text": "free_text",
    "number": "free_text",
    "integer": "free_text",
    "yes": "yes_no",
    "one": "single_choice",
    "some": "multi_choice",
}
_EXPECTED = {"number": "a number", "integer": "a whole number", "one": "one of the list", "some": "some of the list"}


class Field(msgspec.Struct, frozen=True):
    """A form field and the question for it."""

    name: str
    kind: Kind
    question: Question
    is_required: bool = False
    default: Any = None


class _Wrong(ValueError):
    """The answer does not fit the schema of the field."""


def fields_of(server: str, wanted: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields of a form, or nothing if it has too many. A form without fields, or with a URL, becomes a
    yes-or-no question.
    """
    message = _text(wanted.get("message")) or "It needs an answer."
    about = f"The MCP server {server} asks: {message}"
    if wanted.get("mode") == "url":
        about += f"\n\nOpen this address in a browser, if you know why it asks: {_text(wanted.get('url'))}"
        return (_agreement(server, about),)
    form = wanted.get("requestedSchema")
    properties = form.get("properties") if isinstance(form, Mapping) else None
    if not isinstance(properties, Mapping) or not properties:
        return (_agreement(server, about),)
    names = _list(form.get("required")) if isinstance(form, Mapping) else []
    if len(properties) > MOST_FIELDS:
        return ()
    # The questions are shown together, so only the first contains the message.
    abouts = [about, *([f"For the MCP server {server}."] * (len(properties) - 1))]
    return tuple(
        _field(str(name), inside, above, is_required=name in names)
        for (name, inside), above in zip(properties.items(), abouts, strict=True)
    )


def _agreement(server: str, about: str) -> Field:
    question = Question("", "yes_no", f"Go on with what {server} asks?"[:_LONGEST], server[:_LABEL], _short(about))
    return Field("", "yes", question)


def _field(name: str, schema: Any, about: str, *, is_required: bool) -> Field:  # noqa: ANN401 - any JSON
    schema = schema if isinstance(schema, Mapping) else {}
    choices = tuple(_choices(schema))
    kind = _kind(schema, choices)
    title = _text(schema.get("title")) or name
    more = _text(schema.get("description"))
    if kind in ("number", "integer"):
        more = f"{more}\n\nIt has to be {_EXPECTED[kind]}."
    elif choices and kind == "text":
        more = f"{more}\n\nOne of: {', '.join(choice.label for choice in choices)}."
    if "default" in schema:
        more = f"{more}\n\nIf you leave it out: {json.dumps(schema['default'], ensure_ascii=False)}"
    text = f"{title}?" if not title.endswith("?") else title
    offered = choices if kind in ("one", "some") else ()
    asked = Question("", _ASKED[kind], text[:_LONGEST], title[:_LABEL], _short(f"{about}\n\n{more}".strip()), offered)
    return Field(name, kind, asked, is_required, schema.get("default"))


def _kind(schema: Mapping[str, Any], choices: Sequence[Choice]) -> Kind:
    named = schema.get("type")
    if choices:
        fits = 2 <= len(choices) <= _MOST_CHOICES
        return ("some" if named == "array" else "one") if fits else "text"
    if named == "boolean":
        return "yes"
    return named if named in ("number", "integer") else "text"


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


def content_of(
    fields: Sequence[Field], answers: Sequence[QuestionAnswer]
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the form content, or None if the user declines, and the names of fields to request again."""
    content: dict[str, Any] = {}
    wrong: list[str] = []
    for field, answer in zip(fields, answers, strict=True):
        try:
            value = _value(field, answer)
        except _Wrong:
            wrong.append(field.name)
            continue
        if not field.name:
            return ({} if value is True else None), ()
        if value is None:
            value = field.default
        if value is not None:
            content[field.name] = value
        elif field.is_required:
            wrong.append(field.name)
    return content, tuple(wrong)


def _value(field: Field, answer: QuestionAnswer) -> Any:  # noqa: ANN401 - as the kind of the field has it
    """Return the value of an answer, or None if the question was skipped. Raises `_Wrong`."""
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
            chosen = list(answer.selected_ids or ()) or ([_named(field, text)] if text else [])
            return (chosen if field.kind == "some" else chosen[0]) if chosen else None


def _named(field: Field, text: str) -> str:
    """Return the choice that was typed instead of selected. Raises `_Wrong`."""
    found = [
        choice.id for choice in field.question.choices if text.lower() in (choice.id.lower(), choice.label.lower())
    ]
    if not found:
        raise _Wrong
    return found[0]


def _number(kind: Kind, text: str) -> int | float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        raise _Wrong from None
    if not math.isfinite(value) or (kind == "integer" and not value.is_integer()):
        raise _Wrong
    return int(value) if value.is_integer() else value


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_ABOUT else text[: _LONGEST_ABOUT - 1] + "…"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


# Elicitation: an MCP server requests input from the user while one of its tools runs.

_ROUNDS = 3
_CONFIRM = "Are these answers right?"
_AGAIN = "That does not fit; once more. "


async def ask_for(context: ToolContext, server: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an elicitation in protocol form. Without an attending user the result is `cancel`. Answers
    that do not fit the schema are requested again, `_ROUNDS` times in total.
    """
    fields = fields_of(server, wanted)
    answers: dict[str, QuestionAnswer] = {}
    asked = fields
    for _ in range(_ROUNDS if fields else 0):
        try:
            given = await context.ask_questions(_inquiry(server, asked))
        except ToolError:
            return {"action": "cancel"}
        if given is None:
            return {"action": "decline"}
        answers |= {field.name: answer for field, answer in zip(asked, given, strict=True)}
        content, wrong = content_of(fields, [answers[field.name] for field in fields])
        if content is None:
            return {"action": "decline"}
        if not wrong:
            is_form = any(field.name for field in fields)
            return {"action": "accept", "content": content} if is_form else {"action": "accept"}
        asked = tuple(_again(field) for field in fields if field.name in wrong)
    return {"action": "cancel"}


def _inquiry(server: str, fields: tuple[Field, ...]) -> Inquiry:
    questions = tuple(field.question for field in fields)
    if len(questions) == 1:
        return Inquiry(questions)
    return Inquiry(questions, _CONFIRM, f"They are sent to the MCP server {server} together.")


def _again(field: Field) -> Field:
    question = field.question
    again = msgspec.structs.replace(question, description=_AGAIN + question.description)
    return msgspec.structs.replace(field, question=again)
