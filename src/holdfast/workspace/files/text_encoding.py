"""Decoding and encoding of file contents, preserving encoding and byte order mark."""

import codecs
from typing import Literal

import msgspec

from holdfast.domain.errors import ToolError

__all__ = ["TextFormat", "decode", "line_ending", "placeholder", "with_line_ending"]

LineEnding = Literal["\n", "\r\n"]


class TextFormat(msgspec.Struct, frozen=True):
    """Encoding of a text in a file, with its byte order mark."""

    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Encode a text. Raises `ToolError` for lone surrogates."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError:
            raise ToolError("The text contains an unpaired surrogate, which cannot be encoded.") from None


_MARKS = (
    TextFormat("utf-8", codecs.BOM_UTF8),
    TextFormat("utf-16-le", codecs.BOM_UTF16_LE),
    TextFormat("utf-16-be", codecs.BOM_UTF16_BE),
)


def decode(data: bytes, name: str) -> tuple[str, TextFormat]:
    """Decode a file, line ends unchanged; returns text and form. Raises `ToolError` for binary data."""
    text_format = next((text_format for text_format in _MARKS if data.startswith(text_format.mark)), TextFormat())
    try:
        text = data[len(text_format.mark) :].decode(text_format.encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        kind = "looks binary" if b"\0" in data[:8192] else "has another encoding, such as Latin-1"
        raise ToolError(f"{name} is not a UTF-8 text file: it {kind}. Use bash (file, iconv, xxd) to look at it.")
    return text, text_format


def placeholder(size: int, digest: str) -> str:
    """Return the placeholder stored in a history for content that is binary or too large."""
    return f"({size:,} bytes that are not kept, blake2b {digest})\n"


def line_ending(text: str) -> LineEnding:
    """Return the line end of a text: CRLF only if every line has it."""
    crlf = text.count("\r\n")
    return "\r\n" if crlf and crlf == text.count("\n") else "\n"


def with_line_ending(text: str, end: LineEnding) -> str:
    """Convert all line ends."""
    plain = text.replace("\r\n", "\n")
    return plain if end == "\n" else plain.replace("\n", "\r\n")
