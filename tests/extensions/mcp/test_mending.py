"""Lists and schemas as servers send them, and what is made of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.mcp.anything import anything, unhurried
from holdfast.extensions.mcp.mending import mended
from holdfast.extensions.mcp.schemas import fault_in, shaped

_JSON = anything("name", "uri", "type", "properties", "items", "required", "inputSchema", "arguments")


def test_what_is_used_is_kept_and_the_rest_is_left_out() -> None:
    result: dict[str, Any] = {
        "tools": [
            {
                "name": "a",
                "description": 7,
                "inputSchema": {"type": "object"},
                "annotations": {"readOnlyHint": True, "title": 1},
                "outputSchema": "x",
            },
            {"name": "b", "inputSchema": {"type": "object", "required": "all"}},
            {"title": "nameless"},
            {"name": "c", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
            {"name": "d", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}},
        ],
        "nextCursor": "more",
    }
    assert mended(result) == (
        "it does not say what b takes",
        "number 3 of its tools has no name, and is left out",
        "c can only be run as a task, which is not done here, and is left out",
    )
    assert result == {
        "tools": [
            {"name": "a", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
            {"name": "b", "inputSchema": {"type": "object"}},
            {"name": "d", "inputSchema": {"type": "object"}},
        ],
        "nextCursor": "more",
    }
    prompts: dict[str, Any] = {"prompts": [{"name": "p", "arguments": [{"name": "x", "required": "yes"}, 7]}]}
    assert mended(prompts) == ()
    assert prompts["prompts"] == [{"name": "p", "arguments": [{"name": "x", "required": False}]}]
    resources: dict[str, Any] = {"resources": [{"uri": "demo://a", "size": "large"}]}
    assert mended(resources) == ()
    assert resources["resources"] == [{"uri": "demo://a", "name": "demo://a"}]


@unhurried
@given(st.fixed_dictionaries({}, optional={"tools": _JSON, "prompts": _JSON, "resources": _JSON}))
def test_whatever_comes_it_is_a_list_that_can_be_used(result: dict[str, Any]) -> None:
    mended(result)
    for tool in result["tools"] if isinstance(result.get("tools"), list) else ():
        assert isinstance(tool["name"], str)
        assert tool["inputSchema"]["type"] == "object"
    assert mended(["no", "object"]) == ()


@unhurried
@given(_JSON)
def test_every_provider_is_given_an_object(given: object) -> None:
    schema = shaped(given)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert shaped(schema) == schema


def test_lists_say_of_what_and_nothing_is_too_large() -> None:
    inside = {"type": "array", "items": {"type": "array"}}
    schema = shaped({"properties": {"x": {"type": "array"}, "y": inside}, "anyOf": [{}], "$schema": "s"})
    assert schema == {
        "type": "object",
        "properties": {
            "x": {"type": "array", "items": {}},
            "y": {"type": "array", "items": {"type": "array", "items": {}}},
        },
    }
    assert shaped({"description": "x" * 70_000}) == {"type": "object", "properties": {}}
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"type": "object", "properties": {"x": deep}}
    assert len(json.dumps(shaped(deep))) < 10_000


@pytest.mark.parametrize("wrong", [{"type": "banana"}, {"properties": {"x": 7}}, {"required": [1]}, {"minLength": "x"}])
def test_what_is_no_schema_is_told(wrong: dict[str, Any]) -> None:
    assert fault_in(wrong)
    assert fault_in({"type": "object", "properties": {"x": {"type": ["string", "null"]}}}) == ""
