"""Elicitation: requests of a server are shown as questions and answered in its schema."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.json_strategies import anything
from extensions.mcp.servers import EVERYTHING, add, needs_node
from holdfast.domain.approvals import QuestionAnswer, QuestionRequest
from holdfast.domain.messages import ToolResult
from holdfast.extensions.mcp.elicitation import MAX_FIELDS, form_content, form_fields

ASK: tuple[str, object] = ("mcp_all_trigger-elicitation-request", {})


def form(**properties: object) -> dict[str, Any]:
    return {"message": "Who are you?", "requestedSchema": {"type": "object", "properties": properties}}


def answers(*given: Mapping[str, Any]) -> list[QuestionAnswer]:
    return [msgspec.convert({"request_id": "q", **one}, QuestionAnswer) for one in given]


def test_each_schema_type_has_its_question_type() -> None:
    fields = form_fields(
        "s",
        form(
            name={"type": "string", "title": "Your name", "description": "As it is written."},
            age={"type": "integer", "default": 7},
            size={"type": "number"},
            sure={"type": "boolean"},
            one={"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
            titled={"type": "string", "oneOf": [{"const": "x", "title": "X"}, {"const": "y", "title": "Y"}]},
            some={"type": "array", "items": {"enum": ["p", "q"]}},
            many={"type": "string", "enum": [str(number) for number in range(40)]},
            odd="no schema",
        ),
    )
    kinds = [field.question.type for field in fields]
    assert kinds == [
        "free_text", "free_text", "free_text", "yes_no", "single_choice", "single_choice", "multi_choice",
        "free_text", "free_text",
    ]  # fmt: skip
    assert fields[0].question.question == "Your name?"
    assert "The MCP server s asks: Who are you?" in fields[0].question.description
    assert fields[1].question.description.startswith("For the MCP server s.")
    assert "a whole number" in fields[1].question.description
    assert "Default: 7" in fields[1].question.description
    assert [choice.label for choice in fields[4].question.choices] == ["A", "B"]
    assert [choice.id for choice in fields[5].question.choices] == ["x", "y"]
    assert "One of: 0, 1, 2" in fields[7].question.description
    content, wrong = form_content(
        fields,
        answers(
            {"fill_in_text": " Ada "},
            {},
            {"fill_in_text": "1,5"},
            {"yes": False},
            {"selected_ids": ["b"]},
            {"fill_in_text": "Y"},
            {"selected_ids": ["p", "q"], "fill_in_text": "both are fine"},
            {"fill_in_text": "3"},
            {},
        ),
    )
    assert wrong == ()
    expected = {"name": "Ada", "age": 7, "size": 1.5, "sure": False, "one": "b", "titled": "y", "some": ["p", "q"]}
    assert content == {**expected, "many": "3"}


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"type": "integer"}, {"fill_in_text": "1.5"}),
        ({"type": "number"}, {"fill_in_text": "nan"}),
        ({"type": "number"}, {"fill_in_text": "many"}),
        ({"type": "string", "enum": ["a", "b"]}, {"fill_in_text": "c"}),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, {"fill_in_text": "c"}),
        ({"type": "string"}, {}),
    ],
)
def test_invalid_answer_is_requested_again(schema: dict[str, Any], answer: dict[str, Any]) -> None:
    asked = form(x=schema)
    asked["requestedSchema"]["required"] = ["x"]
    assert form_content(form_fields("s", asked), answers(answer)) == ({}, ("x",))


def test_urls_and_empty_forms_need_confirmation() -> None:
    for wanted in ({"mode": "url", "message": "Log in", "url": "https://host/x"}, {"message": "Go?"}, form(), {}):
        (field,) = form_fields("s", wanted)
        assert field.question.type == "yes_no"
        assert form_content([field], answers({"yes": True})) == ({}, ())
        assert form_content([field], answers({"yes": False})) == (None, ())
    assert "https://host/x" in form_fields("s", {"mode": "url", "url": "https://host/x"})[0].question.description
    too_many = {f"f{number}": {"type": "string"} for number in range(MAX_FIELDS + 1)}
    assert form_fields("s", form(**too_many)) == ()


_JSON = anything("type", "enum", "oneOf", "items", "title", "properties", "required", "const")


@given(_JSON, st.dictionaries(st.sampled_from(["type", "enum", "oneOf", "items", "title", "enumNames"]), _JSON))
def test_any_schema_becomes_a_question(schema: object, inside: dict[str, Any]) -> None:
    for wanted in ({"requestedSchema": schema}, form(x=inside), form(x=schema)):
        fields = form_fields("s", wanted)
        assert all(field.question.question for field in fields)
        form_content(fields, answers(*({} for _ in fields)))


async def _pending_questions(one: ToolClient) -> QuestionRequest:
    async with asyncio.timeout(40):
        while not (found := await one.client.pending_questions(one.workspace)):
            pass
    return found[0]


async def _answer_questions(one: ToolClient, **given: dict[str, Any]) -> None:
    """Answer the questions that begin with these texts; the others are skipped."""
    batch = await _pending_questions(one)
    reported = [
        {"request_id": item.id, **next((how for name, how in given.items() if item.label.startswith(name)), {})}
        for item in batch.questions
    ]
    body = {"batch_request_id": batch.id, "responses": reported}
    assert (await one.client.answer_question(one.workspace, body)).resolved


async def _result(one: ToolClient, session: Any) -> ToolResult:  # noqa: ANN401 - an id
    return (await one.results(session))[-1]


@needs_node
async def test_elicitation_suspends_call() -> None:
    """Also longer than the idle limit of a call: it does not run while the user answers."""
    async with tool_client() as one:
        await add(one, all={**EVERYTHING, "call_timeout": 1})
        session = await one.session()
        run = await one.call_tools(session, ASK)
        batch = await _pending_questions(one)
        assert batch.session_id == session
        assert batch.confirm_description == "They are sent to the MCP server all together."
        # The name is required.
        await _answer_questions(one, Integer={"fill_in_text": "not a number"})
        async with asyncio.timeout(40):
            while (again := await _pending_questions(one)).id == batch.id:
                pass
        assert [item.label for item in again.questions] == ["String", "Integer"]
        assert again.questions[0].description.startswith("That answer is not valid")
        await _answer_questions(one, String={"fill_in_text": "Ada"}, Integer={"fill_in_text": "8"})
        assert (await one.run_end(run)).outcome == "completed"
        published = (await _result(one, session)).content
        assert "Ada" in published
        assert json.dumps(8) in published


@needs_node
async def test_elicitation_ends_with_run_or_decline() -> None:
    async with tool_client() as one:
        await add(one, all=EVERYTHING)
        session = await one.session()
        run = await one.call_tools(session, ASK)
        batch = await _pending_questions(one)
        await one.client.cancel_question(one.workspace, batch.id)
        assert (await one.run_end(run)).outcome == "completed"
        assert "declined" in (await _result(one, session)).content
        run = await one.call_tools(session, ASK)
        await _pending_questions(one)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        assert await one.client.pending_questions(one.workspace) == ()
        alone = await one.call_tools(session, ASK, interactive=False)
        assert (await one.run_end(alone)).outcome == "completed"
        assert "cancelled" in (await _result(one, session)).content


@pytest.mark.parametrize(("count", "is_asked"), [(MAX_FIELDS, True), (MAX_FIELDS + 1, False)])
def test_a_form_has_a_bounded_number_of_fields(count: int, is_asked: bool) -> None:
    schema = {"properties": {f"f{number}": {"type": "string"} for number in range(count)}}
    assert len(form_fields("s", {"requestedSchema": schema})) == (count if is_asked else 0)
