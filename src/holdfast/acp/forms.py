"""Conversion of permission requests and questions to the protocol's requests and forms. Pure."""

from typing import Any

from holdfast.acp.narrator import Narrator
from holdfast.acp.shapes import Json, change_of, facts_of, kind_of, places_of, text_block, title_of
from holdfast.domain.asks import PermissionRequest, Question, QuestionAnswer, QuestionRequest
from holdfast.domain.ids import SessionId

__all__ = ["answer_in", "form_of", "options_of", "question_call", "question_options", "request_of"]

_LONGEST = 60


def options_of(ask: PermissionRequest) -> dict[str, tuple[str, str]]:
    """Return the options of a permission request: display name and kind by option id."""
    options = {
        "allow": ("Allow", "allow_once"),
        "allow_session": ("Allow for this session", "allow_always"),
        "deny": ("Reject", "reject_once"),
    }
    if ask.rules:
        rules = ", ".join(ask.rules)
        shown = rules if len(rules) <= _LONGEST else rules[: _LONGEST - 1] + "…"
        always = {"allow_always": (f"Always allow {shown}", "allow_always")}
        options = {
            "allow": options["allow"],
            "allow_session": options["allow_session"],
            **always,
            "deny": options["deny"],
        }
    return options


def request_of(ask: PermissionRequest, narrator: Narrator, directory: str) -> Json:
    """Return the parameters of `session/request_permission`."""
    call, name = narrator.call(ask.tool_call_id)
    asked = facts_of(call.input) if call is not None else dict(ask.params)
    content = change_of(asked, ask.params, directory) if kind_of(ask.tool_name) == "edit" else []
    # Editors may truncate option names, so the complete rules are listed in the content.
    saved = "Always allow saves: " + ", ".join(f"`{rule}`" for rule in ask.rules) if ask.rules else ""
    reasons = [text for text in (ask.description, ask.why, saved) if text]
    if reasons:
        content.append(text_block("\n\n".join(reasons)))
    told: Json = {
        "toolCallId": name,
        "title": title_of(ask.tool_name, asked, directory),
        "kind": kind_of(ask.tool_name),
        "status": "pending",
        "content": content,
        "rawInput": asked,
    }
    if places := places_of(asked, directory):
        told["locations"] = places
    options = [{"optionId": id, "name": name, "kind": kind} for id, (name, kind) in options_of(ask).items()]
    return {"sessionId": narrator.session, "toolCall": told, "options": options}


# Questions


def question_call(batch: QuestionRequest, question: Question) -> Json:
    """Return a question as a tool call, for editors without forms."""
    about = [text for text in (question.description, *(_described(question))) if text]
    return {
        "toolCallId": batch.tool_call_id,
        "title": question.question,
        "kind": "other",
        "status": "pending",
        "content": [text_block("\n\n".join(about))] if about else [],
    }


def _described(question: Question) -> list[str]:
    return [f"**{choice.label}**: {choice.description}" for choice in question.choices if choice.description]


def question_options(question: Question) -> list[Json]:
    """Return the options of a question, including one to skip it."""
    if question.type == "yes_no":
        pairs = [("yes", "Yes"), ("no", "No")]
    else:
        pairs = [(choice.id, choice.label) for choice in question.choices]
    options = [{"optionId": id, "name": name, "kind": "allow_once"} for id, name in pairs]
    return [*options, {"optionId": "", "name": "Skip", "kind": "reject_once"}]


def form_of(batch: QuestionRequest, session: SessionId) -> Json:
    """Return the parameters of `elicitation/create` for a batch of questions."""
    properties = {question.id: _field(question) for question in batch.questions}
    message = batch.confirm_title or (batch.questions[0].question if len(batch.questions) == 1 else "Some questions")
    schema = {"type": "object", "properties": properties}
    scope = {"sessionId": session, "toolCallId": batch.tool_call_id}
    return {**scope, "mode": "form", "message": message, "requestedSchema": schema}


def _field(question: Question) -> Json:
    about: Json = {"title": question.question}
    if question.description:
        about["description"] = question.description
    choices = [{"const": choice.id, "title": choice.label} for choice in question.choices]
    match question.type:
        case "yes_no":
            return {"type": "boolean", **about}
        case "single_choice":
            return {"type": "string", "oneOf": choices, **about}
        case "multi_choice":
            return {"type": "array", "items": {"anyOf": choices}, **about}
        case _:
            return {"type": "string", **about}


def answer_in(batch: QuestionRequest, content: dict[str, Any]) -> list[QuestionAnswer]:
    """Convert the form content to answers."""
    return [_answer(question, content.get(question.id)) for question in batch.questions]


def _answer(question: Question, value: object) -> QuestionAnswer:
    match value:
        case bool() if question.type == "yes_no":
            return QuestionAnswer(question.id, yes=value)
        case str() if question.type == "single_choice":
            return QuestionAnswer(question.id, selected_ids=(value,))
        case list() if question.type == "multi_choice":
            return QuestionAnswer(question.id, selected_ids=tuple(map(str, value)))
        case str() if value:
            return QuestionAnswer(question.id, fill_in_text=value)
        case _:
            return QuestionAnswer(question.id)
