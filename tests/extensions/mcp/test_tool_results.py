"""Conversion of MCP results to tool results."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.mcp.json_strategies import anything
from holdfast.domain.extensions import McpContents
from holdfast.extensions.mcp import tool_results
from holdfast.extensions.mcp.tool_results import (
    MAX_MEDIA_BYTES,
    MAX_TEXT,
    prompt_text,
    resource_contents,
    resource_outcome,
    tool_outcome,
)

PICTURE = base64.b64encode(b"\x89PNG picture").decode()


def result_of(*content: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"content": list(content), **more}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def picture(data: str = PICTURE, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime}


def test_texts_are_joined_and_errors_are_errors() -> None:
    outcome = tool_outcome(result_of(words("one"), words("two")), takes_media=True)
    assert (outcome.content, outcome.is_error) == ("one\n\ntwo", False)
    assert tool_outcome(result_of(words("no"), isError=True), takes_media=True).is_error
    assert tool_outcome({}, takes_media=True).content == "The tool returned no content."


def test_first_image_is_passed_on() -> None:
    outcome = tool_outcome(result_of(words("look"), picture(), picture()), takes_media=True)
    assert (outcome.data, outcome.mime_type) == (PICTURE, "image/png")
    assert (
        outcome.content
        == "look\n\n[image, image/png, 12 bytes]\n\n[image, image/png, 12 bytes: only the first is passed on]"
    )
    without_images = tool_outcome(result_of(picture()), takes_media=False)
    assert without_images.data == ""
    assert "does not accept it" in without_images.content


def test_audio_is_passed_on() -> None:
    outcome = tool_outcome(result_of({"type": "audio", "data": PICTURE, "mimeType": "audio/wav"}), takes_media=True)
    assert (outcome.data, outcome.mime_type) == (PICTURE, "audio/wav")


def test_media_that_are_too_large_or_broken_are_named() -> None:
    huge = base64.b64encode(bytes(MAX_MEDIA_BYTES + 1)).decode()
    outcome = tool_outcome(result_of(picture(huge), picture("§")), takes_media=True)
    assert outcome.data == ""
    assert "too large" in outcome.content
    assert "[image that cannot be read]" in outcome.content


def test_bounds_of_media_and_errors() -> None:
    for size, is_passed in ((MAX_MEDIA_BYTES, True), (MAX_MEDIA_BYTES + 1, False)):
        data = base64.b64encode(bytes(size)).decode()
        assert bool(tool_outcome(result_of(picture(data)), takes_media=True).data) == is_passed
    for value, is_error in ((True, True), (False, False), ("false", False), (1, False), (None, False)):
        assert tool_outcome(result_of(words("x"), isError=value), takes_media=True).is_error == is_error


def test_an_empty_resource_is_text() -> None:
    for item in (McpContents("u", "", "", ""), McpContents("u", "text/plain", "", "")):
        assert resource_outcome((item,), takes_media=False).content == '<resource uri="u">\n\n</resource>'
    assert "not shown" in resource_outcome((McpContents("u", "", "", "QUI="),), takes_media=False).content


def test_structured_content_is_shown_unless_text_repeats_it() -> None:
    published = tool_outcome(result_of(words('{"a": [1]}'), structuredContent={"a": [1]}), takes_media=True)
    assert published.content == '{"a": [1]}'
    around = tool_outcome(result_of(words("some words"), structuredContent={"result": "some words"}), takes_media=True)
    assert around.content == "some words"
    untold = tool_outcome(result_of(words("done"), structuredContent={"a": [1]}), takes_media=True)
    assert untold.content.startswith("done\n\n{")
    assert json.loads(untold.metadata) == {"structured_content": {"a": [1]}}
    assert tool_outcome(result_of(structuredContent={"a": "x" * MAX_TEXT}), takes_media=True).metadata == ""


def test_resources_are_shown_or_named() -> None:
    link = {"type": "resource_link", "uri": "demo://a", "name": "a", "description": "what", "mimeType": "text/plain"}
    inside = {"type": "resource", "resource": {"uri": "demo://b", "text": "hello"}}
    blob = {"type": "resource", "resource": {"uri": "demo://c", "blob": PICTURE, "mimeType": "application/pdf"}}
    shown = {"type": "resource", "resource": {"uri": "demo://d", "blob": PICTURE, "mimeType": "image/png"}}
    outcome = tool_outcome(result_of(link, inside, blob, shown), takes_media=True)
    assert outcome.content == (
        "[resource demo://a (text/plain) a: what]\n\n"
        '<resource uri="demo://b">\nhello\n</resource>\n\n'
        "[resource demo://c: application/pdf, 12 bytes, not shown]\n\n[image, image/png, 12 bytes]"
    )
    assert outcome.data == PICTURE


def test_long_result_is_truncated_in_the_middle() -> None:
    outcome = tool_outcome(result_of(words("begin" + "x\n" * MAX_TEXT + "end")), takes_media=True)
    assert len(outcome.content) < MAX_TEXT + 100
    assert outcome.content.startswith("begin")
    assert outcome.content.endswith("end")
    assert "truncated" in outcome.content


def test_a_resource_that_was_read() -> None:
    result = {"contents": [{"uri": "a", "text": "x", "mimeType": "text/plain"}, {"uri": "b", "blob": PICTURE}, 7]}
    contents = resource_contents(result)
    assert contents == (McpContents("a", "text/plain", "x"), McpContents("b", blob=PICTURE))
    assert resource_outcome(contents[:1], takes_media=True).content == '<resource uri="a">\nx\n</resource>'
    assert "12 bytes" in resource_outcome(contents[1:], takes_media=True).content
    assert resource_outcome((), takes_media=True).content == "The resource is empty."


def test_a_prompt_is_one_text() -> None:
    messages = [
        {"role": "user", "content": words("Review this.")},
        {"role": "assistant", "content": words("Gladly.")},
        {"role": "user", "content": {"type": "resource", "resource": {"uri": "u", "text": "code"}}},
        {"role": "user", "content": "not a block"},
    ]
    assert prompt_text({"messages": messages}) == (
        'Review this.\n\n[assistant] Gladly.\n\n<resource uri="u">\ncode\n</resource>'
    )


_json = anything("type", "text", "data", "uri", "resource", "mimeType", "blob", "x")


@given(
    st.dictionaries(st.sampled_from(["content", "structuredContent", "isError", "contents", "messages"]), _json),
    st.booleans(),
)
def test_any_input_becomes_result(result: dict[str, Any], takes_media: bool) -> None:
    outcome = tool_outcome(result, takes_media=takes_media)
    assert outcome.content
    assert len(outcome.content) <= MAX_TEXT + 100
    resource_contents(result)
    prompt_text(result)


@pytest.mark.parametrize(
    ("data", "size"),
    [("", 0), ("YQ==", 1), ("YWJj", 3), ("YW\nJj\r\n YWJj", 6), ("YQ", 0), ("Y*Q=", 0), ("Zoë", 0), (None, 0), (5, 0)],
)
def test_the_size_of_base64_data(data: object, size: int) -> None:
    """Encoders break lines; data that cannot be decoded have no size."""
    assert tool_results._size(data) == size
