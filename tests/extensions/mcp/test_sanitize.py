"""Sanitised lists and schemas of servers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.mcp.json_strategies import anything
from holdfast.extensions.mcp.sanitize import provider_schema, sanitize_lists, schema_error

_JSON = anything("name", "uri", "type", "properties", "items", "required", "inputSchema", "arguments")


def test_used_fields_are_kept_and_others_dropped() -> None:
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
    assert sanitize_lists(result) == (
        "b has no input schema",
        "number 3 of its tools has no name, and is left out",
        "c can only be run as a task, which is not supported, and is left out",
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
    assert sanitize_lists(prompts) == ()
    assert prompts["prompts"] == [{"name": "p", "arguments": [{"name": "x", "required": False}]}]
    resources: dict[str, Any] = {"resources": [{"uri": "demo://a", "size": "large"}]}
    assert sanitize_lists(resources) == ()
    assert resources["resources"] == [{"uri": "demo://a", "name": "demo://a"}]


@given(st.fixed_dictionaries({}, optional={"tools": _JSON, "prompts": _JSON, "resources": _JSON}))
def test_any_input_becomes_usable_list(result: dict[str, Any]) -> None:
    sanitize_lists(result)
    for tool in result["tools"] if isinstance(result.get("tools"), list) else ():
        assert isinstance(tool["name"], str)
        assert tool["inputSchema"]["type"] == "object"
    assert sanitize_lists(["no", "object"]) == ()


@given(_JSON)
def test_schema_is_always_an_object(given: object) -> None:
    schema = provider_schema(given)
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert provider_schema(schema) == schema


def test_arrays_have_item_types_and_sizes_are_bounded() -> None:
    inside = {"type": "array", "items": {"type": "array"}}
    schema = provider_schema({"properties": {"x": {"type": "array"}, "y": inside}, "anyOf": [{}], "$schema": "s"})
    assert schema == {
        "type": "object",
        "properties": {
            "x": {"type": "array", "items": {}},
            "y": {"type": "array", "items": {"type": "array", "items": {}}},
        },
    }
    assert provider_schema({"description": "x" * 70_000}) == {"type": "object", "properties": {}}
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"type": "object", "properties": {"x": deep}}
    assert len(json.dumps(provider_schema(deep))) < 10_000


@pytest.mark.parametrize("wrong", [{"type": "banana"}, {"properties": {"x": 7}}, {"required": [1]}, {"minLength": "x"}])
def test_invalid_schema_is_reported(wrong: dict[str, Any]) -> None:
    assert schema_error(wrong)
    assert schema_error({"type": "object", "properties": {"x": {"type": ["string", "null"]}}}) == ""


@pytest.mark.parametrize(
    ("schema", "is_kept"),
    [
        ({"type": "object"}, True),
        ({"type": "object", "properties": {"a": {}, "b": True}, "required": ["a"], "$schema": "x"}, True),
        ({}, False),
        ({"type": "array"}, False),
        ({"type": "object", "$schema": 3}, False),
        ({"type": "object", "properties": []}, False),
        ({"type": "object", "properties": {"a": 3}}, False),
        ({"type": "object", "required": "a"}, False),
        ({"type": "object", "required": {"a": 1}}, False),
        ({"type": "object", "required": [3]}, False),
        ("object", False),
        (None, False),
    ],
)
def test_invalid_schema_is_replaced_and_reported(schema: object, is_kept: bool) -> None:
    result: dict[str, Any] = {"tools": [{"name": "a", "inputSchema": schema}]}
    assert sanitize_lists(result) == (() if is_kept else ("a has no input schema",))
    assert result["tools"] == [{"name": "a", "inputSchema": schema if is_kept else {"type": "object"}}]


@pytest.mark.parametrize("hints", [{"readOnlyHint": False}, {"readOnlyHint": 1}, {}, [], "readOnlyHint", None])
def test_tool_is_read_only_if_declared(hints: object) -> None:
    tool = {"name": "a", "inputSchema": {"type": "object"}}
    result: dict[str, Any] = {"tools": [{**tool, "annotations": hints}]}
    assert sanitize_lists(result) == ()
    assert result["tools"] == [tool]


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
@pytest.mark.parametrize("entry", [{}, {"name": "", "uri": ""}, {"name": 3, "uri": 3}, "text", None])
def test_nameless_entries_are_dropped(what: str, entry: object) -> None:
    result: dict[str, Any] = {what: [entry]}
    assert sanitize_lists(result) == (f"number 1 of its {what} has no name, and is left out",)
    assert result == {what: []}
    assert sanitize_lists({what: {"no": "list"}}) == sanitize_lists(None) == ()


def test_prompt_arguments() -> None:
    given = [{"name": "a", "title": "A", "required": True}, {"name": 3}, {"title": "x"}, "text", {"name": "b"}]
    result: dict[str, Any] = {"prompts": [{"name": "p", "arguments": given}, {"name": "q", "arguments": "none"}]}
    assert sanitize_lists(result) == ()
    assert result["prompts"][0]["arguments"] == [
        {"name": "a", "title": "A", "required": True},
        {"name": "b", "required": False},
    ]
    assert result["prompts"][1]["arguments"] == []


def test_nested_and_tuple_arrays_have_item_types() -> None:
    tuple_ = {"type": "array", "prefixItems": [{"type": "array"}]}
    schema = provider_schema({"properties": {"t": tuple_, "e": {"enum": [{"type": "array"}]}}})
    filled = {"type": "array", "items": {}}
    assert schema["properties"]["t"] == {"type": "array", "prefixItems": [filled]}
    assert schema["properties"]["e"] == {"enum": [filled]}
    assert provider_schema({"properties": "none"}) == provider_schema(3) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("letter", ["x", "é"])
@pytest.mark.parametrize("over", [0, 1])
def test_schema_size_limit(letter: str, over: int) -> None:
    schema = {"description": "", "type": "object", "properties": {}}
    room = 64 * 1024 - len(json.dumps(schema)) + over
    given = {**schema, "description": letter * room}
    assert provider_schema(given) == ({"type": "object", "properties": {}} if over else given)
    assert bool(schema_error(given)) is (bool(over) or letter != "x")


def test_schema_error_has_its_path() -> None:
    assert schema_error({"type": "object"}) == ""
    assert schema_error({"type": "thing"}).startswith("it is not JSON Schema at type: ")
    assert schema_error({"properties": {"a": {"type": 3}}}).startswith("it is not JSON Schema at properties/a/type: ")
    assert len(schema_error({"type": "x" * 1_000})) < 260
