"""Every kind of content that an MCP server returns, alone and beside others; lists and sizes at their limits."""

import base64
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.mcp.in_memory_mcp import in_virtual_time
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import McpContents
from holdfast.extensions.mcp import mcp_tools, tool_results
from holdfast.extensions.mcp.tool_results import prompt_text, resource_outcome, tool_outcome

Json = dict[str, Any]
SMALL = base64.b64encode(b"12").decode()


def text(value: object) -> Json:
    return {"type": "text", "text": value}


def media(kind: str, data: object = SMALL, mime: str = "x/y") -> Json:
    return {"type": kind, "data": data, "mimeType": mime}


def resource(**inside: object) -> Json:
    return {"type": "resource", "resource": {"uri": "u", **inside}}


def link(**more: object) -> Json:
    return {"type": "resource_link", "uri": "u", "name": "n", **more}


BLOCKS: tuple[tuple[list[Any], str, str], ...] = (
    # blocks, text, type of the medium that is passed on
    ([], "The tool returned no content.", ""),
    ([text(""), text(" ")], "The tool returned no content.", ""),
    ([text("a"), text(""), text("b")], "a\n\nb", ""),
    ([text(5), "no block", text(" a ")], "a", ""),
    ([media("image")], "[image, x/y, 2 bytes]", "x/y"),
    ([media("audio", mime="")], "[audio, unknown type, 2 bytes]", ""),
    ([media("image", f" {SMALL[:2]}\n{SMALL[2:]}")], "[image, x/y, 2 bytes]", "x/y"),
    *(([media("image", bad)], "[image that cannot be read]", "") for bad in ("", "?", None, "a")),
    ([media("image", base64.b64encode(b"123").decode())], "[image, x/y, 3 bytes]", "x/y"),
    (
        [media("image", base64.b64encode(b"1234").decode())],
        "[image, x/y, 4 bytes: too large, at most 3 can be passed on]", "",
    ),
    (
        [media("image", mime="a/a"), media("audio", mime="b/b")],
        "[image, a/a, 2 bytes]\n\n[audio, b/b, 2 bytes: only the first is passed on]", "a/a",
    ),
    ([link()], "[resource u n]", ""),
    ([link(title="t", description="d", mimeType="m")], "[resource u (m) t: d]", ""),
    ([resource(text="body")], '<resource uri="u">\nbody\n</resource>', ""),
    ([resource(text="", blob=SMALL)], '<resource uri="u">\n\n</resource>', ""),
    ([resource(blob=SMALL, mimeType="image/png")], "[image, image/png, 2 bytes]", "image/png"),
    ([resource(blob=SMALL, mimeType="audio/wav")], "[audio, audio/wav, 2 bytes]", "audio/wav"),
    ([resource(blob=SMALL, mimeType="a/b")], "[resource u: a/b, 2 bytes, not shown]", ""),
    ([resource()], "[resource u: unknown type, 0 bytes, not shown]", ""),
    ([{"type": "resource", "resource": 1}], "[content of the type resource, which cannot be shown]", ""),
    ([{"type": "odd"}, {}], "\n\n".join(
        f"[content of the type {kind}, which cannot be shown]" for kind in ("odd", "unknown")), ""),
)  # fmt: skip


@pytest.mark.parametrize(("blocks", "expected", "mime"), BLOCKS)
def test_content(blocks: list[Any], expected: str, mime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_results, "MAX_MEDIA_BYTES", 3)
    outcome = tool_outcome({"content": blocks}, takes_media=True)
    assert (outcome.content, outcome.mime_type, outcome.metadata, outcome.is_error) == (expected, mime, "", False)
    assert bool(outcome.data) == (bool(mime) or "unknown type, 2" in expected)
    refused = tool_outcome({"content": blocks, "isError": True}, takes_media=False)
    assert (refused.data, refused.mime_type, refused.is_error) == ("", "", True)
    assert ("this model does not accept it" in refused.content) == any(
        part.startswith(("[image, ", "[audio, ")) for part in expected.split("\n")
    )


@pytest.mark.parametrize(("texts", "structured", "is_added"), [
    ([], {"a": 1}, True), (["x"], {"a": 1}, True), (['{"a": 1}'], {"a": 1}, False), (['{"a": 2}'], {"a": 1}, True),
    (["x", "y"], {"a": "x", "b": "y"}, False), (["x"], {"a": "x", "b": "y"}, True), (["x"], {}, True),
    (["{}"], {}, False),
    (["x", "[1]"], [1], False), ([], [], True),
])  # fmt: skip
def test_structured_content(texts: list[str], structured: object, is_added: bool) -> None:
    result = {"content": [text(item) for item in texts], "structuredContent": structured}
    outcome = tool_outcome(result, takes_media=False)
    more = [json.dumps(structured, indent=1)] if is_added else []
    assert outcome.content == "\n\n".join([*texts, *more])
    assert json.loads(outcome.metadata) == {"structured_content": structured}


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_results, "MAX_TEXT", 40)
    metadata = {
        count: tool_outcome({"structuredContent": "x" * count}, takes_media=False).metadata for count in (14, 15)
    }
    assert [len(item) for item in metadata.values()] == [40, 0]
    assert len(tool_outcome({"content": [text("x" * 40)]}, takes_media=False).content) == 40
    assert "x" * 41 not in tool_outcome({"content": [text("x" * 41)]}, takes_media=False).content


def test_resources_and_prompts() -> None:
    for contents, expected in (
        ((), "The resource is empty."),
        ((McpContents("u", text="a"), McpContents("v", text="b")),
         '<resource uri="u">\na\n</resource>\n\n<resource uri="v">\nb\n</resource>'),
        ((McpContents("u"),), '<resource uri="u">\n\n</resource>'),
        ((McpContents("u", "a/b", blob=SMALL),), "[resource u: a/b, 2 bytes, not shown]"),
    ):  # fmt: skip
        assert resource_outcome(contents, takes_media=True).content == expected
    messages: list[Any] = [
        {"role": "user", "content": text("a")}, {"role": "assistant", "content": text("b")}, 1, {"content": [1]},
        {"content": media("image")},
    ]  # fmt: skip
    expected = "a\n\n[assistant] b\n\n[image, x/y, 2 bytes: this model does not accept it]"
    assert (prompt_text({"messages": messages}), prompt_text({})) == (expected, "")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_the_list_of_resources_at_its_limit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "_MAX_LISTED", 2)
    steps: list[str] = []

    class Server:
        name = "s"
        lists = {"resources": [{"uri": f"u{number}", "name": "n"} for number in range(count)]}  # noqa: RUF012

        async def connection(self) -> None:
            steps.append("connected")

    async def permit(asked: Any) -> None:  # noqa: ANN401
        steps.append(f"{asked.tool} {asked.action} {asked.params['mcp_name']}")

    async def main() -> None:
        tool = mcp_tools.ListResources(lambda name: cast(Any, Server()) if name == "s" else None)
        context = cast(Any, SimpleNamespace(permit=permit, workspace_path="/w"))
        outcome = await tool.act(context, mcp_tools.ListArguments("s"))
        more = [f"… and {count - 2} more"] * (count > 2)
        listed = [f"u{number} n" for number in range(min(count, 2))]
        assert outcome.content.splitlines() == [*listed, *more] or not count
        assert count or outcome.content == "The MCP server s has no resources."
        assert steps == ["list_mcp_resources list s", "connected"], "permission first"
        with pytest.raises(ToolError, match="no MCP server called t"):
            await tool.act(context, mcp_tools.ListArguments("t"))

    in_virtual_time(main)


def test_a_resource_in_one_line() -> None:
    for item, line in (
        ({"uri": "u"}, "u"), ({"uri": "u", "name": "n"}, "u n"), ({"uri": "u", "name": "n", "title": "t"}, "u t"),
        ({"uri": "u", "title": "t", "description": " d\n e "}, "u d e"), ({"uri": "u", "mimeType": "m"}, "u (m)"),
        ({"uri": "u", "description": "x" * 201}, f"u {'x' * 200}"),
    ):  # fmt: skip
        assert mcp_tools._resource_line(item) == line
