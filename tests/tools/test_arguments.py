"""Arguments that a model sends, valid and invalid."""

import base64
import json

import pytest

from holdfast.tools.registry import BuiltinTools, ToolNeeds
from tools.tool_runner import ToolRunner

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("view", {}, "file_path"),
        ("view", {"file_path": "a.txt", "offset": "three"}, "offset"),
        ("view", {"file_path": ""}, "empty"),
        ("view", {"file_path": "a\0b"}, "null"),
        ("write", {"file_path": "a.txt"}, "content"),
        ("write", {"file_path": "a.txt", "content": {"a": 1}}, "content"),
        ("write", {"file_path": "a.txt", "content": "x", "mode": 1}, "mode"),
        ("ls", {"ignore": 7}, "ignore"),
        ("multiedit", {"file_path": "a.txt", "edits": []}, "edits"),
        ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "x"}]}, "new_string"),
        ("todos", {"todos": [{"content": "x", "status": "soon"}]}, "soon"),
        ("fetch", {"url": "https://example.org", "format": "pdf"}, "pdf"),
    ],
)
async def test_wrong_arguments_are_explained(
    runner: ToolRunner, tool: str, arguments: dict[str, object], named: str
) -> None:
    explanation = await runner.call_error(tool, **arguments)
    assert named in explanation


async def test_error_lists_the_arguments_of_the_tool(runner: ToolRunner) -> None:
    assert "view takes: file_path, offset?, limit?." in await runner.call_error("view", colour="red")


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        (
            "todos",
            {"todos": [{"content": "x", "status": "soon"}]},
            "status is one of: completed, in_progress, pending.",
        ),
        ("todos", {"todos": [{"content": "x"}]}, "Each of todos takes: content, status, active_form?."),
        ("fetch", {"url": "https://example.org", "format": "pdf"}, "format is one of: html, markdown, text."),
        ("multiedit", {"file_path": "a", "edits": [{"old": 1}]}, "takes: old_string, new_string, replace_all?."),
    ],
)
async def test_error_lists_the_fields_of_nested_arguments(
    runner: ToolRunner, tool: str, arguments: dict[str, object], expected: str
) -> None:
    assert expected in await runner.call_error(tool, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.txt"},
        {"filename": "a.txt", "limit": "2"},
        {"file_path": "a.txt", "offset": None, "limit": 2.0},
        {"file_path": "a.txt", "offset": "0"},
    ],
)
async def test_harmless_argument_mistakes_are_corrected(runner: ToolRunner, arguments: dict[str, object]) -> None:
    assert "1|one" in (await runner.call_ok("view", **arguments)).content


async def test_harmless_mistakes_in_nested_arguments_are_corrected(runner: ToolRunner) -> None:
    await runner.call("view", file_path="a.txt")
    edits = json.dumps([{"old_str": "one", "new_str": "1", "replaceAll": "true"}])
    await runner.call_ok("multiedit", path="a.txt", edits=edits)
    assert runner.read("a.txt") == b"1\ntwo\nthree\n"


async def test_every_tool_has_a_description_and_a_schema() -> None:
    tools = {tool.spec.name: tool.spec for tool in await BuiltinTools().current()}
    assert list(tools) == [
        "download", "edit", "fetch", "glob", "grep", "holdfast_info", "holdfast_logs", "ls", "multiedit", "todos",
        "view", "write",
    ]  # fmt: skip
    for spec in tools.values():
        schema = json.loads(spec.parameters)
        assert schema["type"] == "object"
        assert "$ref" not in spec.parameters
        assert all("description" in field for field in schema["properties"].values())
        assert len(spec.description) > 40
    wanted = {
        "view": {"file_path", "offset", "limit"},
        "write": {"file_path", "content"},
        "edit": {"file_path", "old_string", "new_string", "replace_all"},
        "multiedit": {"file_path", "edits"},
        "ls": {"path", "ignore", "depth"},
        "glob": {"pattern", "path"},
        "grep": {"pattern", "path", "include", "literal_text"},
        "fetch": {"url", "format", "timeout"},
        "download": {"url", "file_path", "timeout"},
        "todos": {"todos"},
        "holdfast_info": set(),
        "holdfast_logs": {"lines"},
    }
    assert {name: set(json.loads(spec.parameters)["properties"]) for name, spec in tools.items()} == wanted


async def test_disabled_tools_are_not_offered() -> None:
    tools = BuiltinTools(ToolNeeds(disabled=lambda: ("fetch", "download")))
    assert not {"fetch", "download"} & {tool.spec.name for tool in await tools.current()}
