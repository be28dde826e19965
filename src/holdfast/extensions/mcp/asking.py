"""Elicitation: an MCP server requests input from the user while one of its tools runs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.domain.asks import QuestionAnswer
from holdfast.domain.errors import ToolError
from holdfast.domain.tools import Inquiry, ToolContext
from holdfast.extensions.mcp.forms import Field, content_of, fields_of

__all__ = ["ask_for"]

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
            given = await context.inquire(_inquiry(server, asked))
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
