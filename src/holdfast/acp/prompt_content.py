"""Conversion of ACP prompt content to a prompt text and attachments. Pure."""

import binascii
import posixpath
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.domain.errors import BadRequest
from holdfast.domain.runs import Attachment
from holdfast.domain.settings import McpSettings

__all__ = ["mcp_settings", "parse_prompt", "split_command"]

_MAX_NAME = 40
_IMAGE_EXTENSIONS = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


def parse_prompt(blocks: Iterable[Mapping[str, Any]], directory: str) -> tuple[str, tuple[Attachment, ...]]:
    """Return the text and the attachments of a prompt. Raises `BadRequest` for unsupported content."""
    texts: list[str] = []
    files: list[Attachment] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(str(block["text"]))
            case "image":
                files.append(_image(block, len(files) + 1))
            case "resource":
                resource = block["resource"]
                texts.append(_mention(str(resource["uri"]), "", directory))
                files.append(_resource(resource, directory))
            case "resource_link":
                texts.append(_mention(str(block["uri"]), str(block.get("name") or ""), directory))
            case _:
                raise BadRequest("A prompt can contain only text, images and resources.")
    return _join(texts), tuple(files)


def _join(texts: list[str]) -> str:
    """Join text blocks. Editors split the text at file mentions and keep the spaces around them."""
    whole = ""
    for text in texts:
        needs_space = bool(whole) and bool(text) and not whole[-1].isspace() and not text[0].isspace()
        whole += f" {text}" if needs_space and text[0] not in ".,;:!?)" else text
    return whole.strip()


def _image(block: Mapping[str, Any], number: int) -> Attachment:
    kind = str(block["mimeType"])
    if kind not in _IMAGE_EXTENSIONS:
        raise BadRequest("An image must be PNG, JPEG, GIF or WebP.")
    path = _local_path(str(block.get("uri") or "")) or f"image-{number}{_IMAGE_EXTENSIONS[kind]}"
    return Attachment(_decode_base64(str(block["data"])), path, posixpath.basename(path), kind)


def _resource(resource: Mapping[str, Any], directory: str) -> Attachment:
    path = _display_path(str(resource["uri"]), directory)
    kind = str(resource.get("mimeType") or "")
    if "text" in resource:
        data = str(resource["text"]).encode("utf-8", "replace")
        return Attachment(data, path, posixpath.basename(path), kind if kind.startswith("text/") else "text/plain")
    return Attachment(
        _decode_base64(str(resource["blob"])), path, posixpath.basename(path), kind or "application/octet-stream"
    )


def _mention(uri: str, name: str, directory: str) -> str:
    """Return a mention of a file that a model can resolve, or the URI if it is not a file."""
    if _local_path(uri):
        shown = _display_path(uri, directory)
        return f'@"{shown}"' if any(character.isspace() for character in shown) else f"@{shown}"
    return f"{name} ({uri})" if name and name != uri else uri


def _display_path(uri: str, directory: str) -> str:
    path = _local_path(uri) or uri
    return path.removeprefix(directory.rstrip("/") + "/")


def _local_path(uri: str) -> str:
    """Return the path of a local file URI, or an empty string."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path)
    return uri if uri.startswith("/") else ""


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("The attachment is not valid base64.") from None


def split_command(text: str) -> tuple[str, str]:
    """Return the name of a slash command and its arguments; an empty name for other text."""
    if not text.startswith("/"):
        return "", text
    name, _, rest = text[1:].partition(" ")
    return (
        (name, rest.strip())
        if name and name.replace("-", "").replace("_", "").replace(":", "").isalnum()
        else ("", text)
    )


def mcp_settings(declared: Iterable[Mapping[str, Any]]) -> dict[str, McpSettings]:
    """Return the MCP servers of an editor, with names that are valid in tool names."""
    return {_server_name(str(server["name"])): _server(server) for server in declared}


def _server(server: Mapping[str, Any]) -> McpSettings:
    match server.get("type"):
        case "http" | "sse" as kind:
            return McpSettings(type=kind, url=str(server["url"]), headers=_pairs(server.get("headers")))
        case None:
            arguments = tuple(map(str, server.get("args") or ()))
            return McpSettings(command=str(server["command"]), args=arguments, env=_pairs(server.get("env")))
        case _:
            raise BadRequest("An MCP server needs a command, or the type http or sse.")


def _pairs(items: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    return {str(item["name"]): str(item["value"]) for item in items or ()}


def _server_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:_MAX_NAME] or "editor"
