"""Conversion of MCP results to tool results for models.

A tool result holds one text and one image or audio item. Therefore texts are joined, the first acceptable medium is
kept, and the others are only named. All sizes are bounded.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.extensions import McpContents
from holdfast.domain.tools import ToolOutcome
from holdfast.workspace.process.output_capture import shorten

__all__ = ["prompt_text", "resource_contents", "resource_outcome", "tool_outcome"]

MAX_TEXT = 60_000
"""Maximum characters of a result for a model."""
MAX_MEDIA_BYTES = 4 * 1024 * 1024
"""Maximum bytes of an image or audio item, before encoding."""

_EMPTY_RESULT = "The tool returned no content."


class _Medium(msgspec.Struct, frozen=True):
    data: str
    mime_type: str


class _ContentCollector:
    """Collects the content blocks of a result."""

    def __init__(self, *, takes_media: bool) -> None:
        self.texts: list[str] = []
        self.medium: _Medium | None = None
        self._takes_media = takes_media

    def add(self, block: Mapping[str, Any]) -> None:
        """Append a content block."""
        kind = block.get("type")
        if kind == "text":
            self.texts.append(_text(block.get("text")))
        elif kind in ("image", "audio"):
            self._media(kind, block.get("data"), _text(block.get("mimeType")))
        elif kind == "resource_link":
            self.texts.append(_link(block))
        elif kind == "resource" and isinstance(inside := block.get("resource"), Mapping):
            self._embedded(inside)
        else:
            self.texts.append(f"[content of the type {_text(kind) or 'unknown'}, which cannot be shown]")

    def _embedded(self, inside: Mapping[str, Any]) -> None:
        uri, mime = _text(inside.get("uri")), _text(inside.get("mimeType"))
        if isinstance(text := inside.get("text"), str):
            self.texts.append(f'<resource uri="{uri}">\n{text}\n</resource>')
        elif mime.startswith(("image/", "audio/")):
            self._media(mime.partition("/")[0], inside.get("blob"), mime)
        else:
            size = _size(inside.get("blob"))
            self.texts.append(f"[resource {uri}: {mime or 'unknown type'}, {size:,} bytes, not shown]")

    def _media(self, kind: str, data: object, mime_type: str) -> None:
        size = _size(data)
        label = f"{kind}, {mime_type or 'unknown type'}, {size:,} bytes"
        if not size:
            self.texts.append(f"[{kind} that cannot be read]")
        elif not self._takes_media:
            self.texts.append(f"[{label}: this model does not accept it]")
        elif size > MAX_MEDIA_BYTES:
            self.texts.append(f"[{label}: too large, at most {MAX_MEDIA_BYTES:,} can be passed on]")
        elif self.medium is not None:
            self.texts.append(f"[{label}: only the first is passed on]")
        else:
            assert isinstance(data, str)
            self.medium = _Medium("".join(data.split()), mime_type)
            self.texts.append(f"[{label}]")


def tool_outcome(result: Mapping[str, Any], *, takes_media: bool) -> ToolOutcome:
    """Convert the result of a tool call. Structured content is appended to the text unless the text repeats it already,
    and is stored as metadata for clients.
    """
    collector = _ContentCollector(takes_media=takes_media)
    for block in _list(result.get("content")):
        if isinstance(block, Mapping):
            collector.add(block)
    structured = result.get("structuredContent")
    if structured is not None and not _is_repeated(structured, collector.texts):
        collector.texts.append(json.dumps(structured, ensure_ascii=False, indent=1))
    text = "\n\n".join(text for text in collector.texts if text).strip()
    medium = collector.medium or _Medium("", "")
    return ToolOutcome(
        shorten(text, MAX_TEXT) or _EMPTY_RESULT,
        _metadata(structured),
        is_error=result.get("isError") is True,
        data=medium.data,
        mime_type=medium.mime_type,
    )


def _metadata(structured: object) -> str:
    if structured is None:
        return ""
    text = json.dumps({"structured_content": structured}, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else ""


def _is_repeated(structured: object, texts: Sequence[str]) -> bool:
    """Return whether the texts repeat the structured content: as JSON, which servers send for older clients, or as the
    plain values.
    """
    if isinstance(structured, dict) and structured and all(value in texts for value in structured.values()):
        return True
    for text in texts:
        try:
            if json.loads(text) == structured:
                return True
        except (ValueError, RecursionError):
            continue
    return False


def resource_contents(result: Mapping[str, Any]) -> tuple[McpContents, ...]:
    """Return the contents of a `resources/read` result."""
    return tuple(
        McpContents(
            _text(item.get("uri")), _text(item.get("mimeType")), _text(item.get("text")), _text(item.get("blob"))
        )
        for item in _list(result.get("contents"))
        if isinstance(item, Mapping)
    )


def resource_outcome(contents: Sequence[McpContents], *, takes_media: bool) -> ToolOutcome:
    """Convert resource contents to a tool result."""
    blocks: list[dict[str, Any]] = []
    for item in contents:
        inside = {"uri": item.uri, "mimeType": item.mime_type}
        is_text = bool(item.text) or not item.blob
        blocks.append(
            {"type": "resource", "resource": inside | ({"text": item.text} if is_text else {"blob": item.blob})}
        )
    outcome = tool_outcome({"content": blocks}, takes_media=takes_media)
    return msgspec.structs.replace(outcome, content="The resource is empty.") if not contents else outcome


def prompt_text(result: Mapping[str, Any]) -> str:
    """Return a prompt as one text. Messages with the role `assistant` are marked."""
    texts: list[str] = []
    for message in _list(result.get("messages")):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), Mapping):
            continue
        collector = _ContentCollector(takes_media=False)
        collector.add(message["content"])
        text = "\n\n".join(collector.texts)
        texts.append(f"[assistant] {text}" if message.get("role") == "assistant" else text)
    return "\n\n".join(texts)


def _link(block: Mapping[str, Any]) -> str:
    name = _text(block.get("title")) or _text(block.get("name"))
    description = f": {_text(block.get('description'))}" if block.get("description") else ""
    mime = f" ({_text(block.get('mimeType'))})" if block.get("mimeType") else ""
    return f"[resource {_text(block.get('uri'))}{mime} {name}{description}]"


def _size(data: object) -> int:
    """Return the decoded size of base64 data in bytes, or 0 if it is invalid."""
    if not isinstance(data, str):
        return 0
    try:
        return len(base64.b64decode("".join(data.split()), validate=True))
    except (binascii.Error, ValueError):
        return 0


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
