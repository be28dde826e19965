"""Requests for permission and questions: subject, checks of answers, notifications. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from holdfast.domain.asks import (
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    Via,
)
from holdfast.domain.errors import BadRequest
from holdfast.domain.events import Change, PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.messages import encodable
from holdfast.domain.tools import Permit

__all__ = [
    "Subject",
    "check_answers",
    "cleaned",
    "find_batch",
    "permission_notice",
    "question_notice",
    "subject_of",
]

T = TypeVar("T")
Subject: TypeAlias = tuple[str, ...]


def find_batch(
    batches: Sequence[QuestionRequest], batch: str, answers: Mapping[str, QuestionAnswer]
) -> QuestionRequest | None:
    """The open batch that is meant. None if there is none, or the answers are not all for it."""
    for request in batches:
        ids = {question.id for question in request.questions}
        if (batch == request.id or (not batch and answers)) and answers.keys() <= ids:
            return request
    return None


def check_answers(batch: QuestionRequest, answers: Mapping[str, QuestionAnswer]) -> None:
    """Raises `BadRequest` for an answer that does not fit its question."""
    for question in batch.questions:
        if (answer := answers.get(question.id)) is not None:
            _check(question, answer)


def _check(question: Question, answer: QuestionAnswer) -> None:
    known = [choice.id for choice in question.choices]
    selected = answer.selected_ids or ()
    if unknown := [item for item in selected if item not in known]:
        raise BadRequest(f"{len(unknown)} of the selected ids are no choices of the question.")
    if len(set(selected)) != len(selected):
        raise BadRequest("A choice is selected twice.")
    if question.type == "single_choice" and len(selected) > 1:
        raise BadRequest("Only one choice can be selected for this question.")
    if answer.yes is not None and question.type != "yes_no":
        raise BadRequest("This question is not answered with yes or no.")


def subject_of(permit: Permit) -> Subject:
    """What was shown, and nothing wider: the very line, the very file, the very address, or all parameters."""
    params = permit.params
    if permit.command:
        what = permit.command
    elif isinstance(params.get("url"), str):
        what = f"{params['url']} {params.get('file_path', '')}"
    elif isinstance(params.get("file_path"), str):
        what = params["file_path"]
    elif permit.action == "list":
        what = permit.path
    else:
        what = msgspec.json.encode(params, order="sorted").decode()
    return (permit.tool, permit.action, permit.path, what)


def cleaned(thing: T) -> T:
    """The same with text that can be encoded: what a model or a client sends may hold half characters."""
    plain = msgspec.to_builtins(thing)
    return msgspec.convert(_encodable(plain), type(thing))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def question_notice(
    request: QuestionRequest, *, by: str = "", via: Via = "", cancelled: bool = False, withdrawn: bool = False
) -> QuestionNotificationEvent:
    """The event that closes a batch of questions."""
    notice = QuestionNotification(request.id, request.session_id, encodable(by), cancelled, withdrawn, via)
    return QuestionNotificationEvent(Change("created", notice))


def permission_notice(
    request: PermissionRequest,
    *,
    granted: bool,
    denied: bool,
    who: tuple[str, Via] = ("", ""),
    action: str = "",
    withdrawn: bool = False,
) -> PermissionNotificationEvent:
    """The event that says how a request for permission stands; without `granted` or `denied` it is open."""
    by, via = who
    notice = PermissionNotification(
        request.tool_call_id, granted, denied, request.id, request.session_id, by, action, withdrawn, via
    )
    return PermissionNotificationEvent(Change("created", notice))
