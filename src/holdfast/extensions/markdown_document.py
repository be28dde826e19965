"""Parser for the front matter of Markdown files, the keys between two lines of dashes.

Supports a subset of YAML: plain, quoted and block text, lists and nested tables. A colon inside plain text, which YAML
rejects, is accepted as text. Anchors, tags and custom types are not supported, so an untrusted file can only produce
texts, booleans, lists and tables.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from holdfast.config.problems import FileProblem
from holdfast.extensions.markdown_dir import MarkdownFile

__all__ = [
    "MarkdownDocument",
    "Value",
    "file_problem",
    "first_error",
    "model_problems",
    "parse",
    "parse_file",
    "split_list",
    "text_field",
]


Value: TypeAlias = 'str | bool | list["Value"] | dict[str, "Value"]'

_KEY = re.compile(r"""(?:"([^"\n]+)"|'([^'\n]+)'|([A-Za-z0-9_.$/-]+))[ ]*:(?=[ ]|$)""")
_BLOCK = re.compile(r"([|>])([+-]?[1-9]?[+-]?)[ ]*(?:#.*)?$")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "/": "/", " ": " "}
_MAX_LINES = 1_000
_MAX_LENGTH = 65_536
_MAX_DEPTH = 8


class MarkdownDocument(msgspec.Struct, frozen=True):
    """A parsed file. `problem` is the line and the message of the first error in the front matter."""

    fields: dict[str, Value]
    lines: dict[str, int]
    """Line number of each key."""
    body: str
    body_line: int = 1
    problem: tuple[int, str] | None = None


class _ParseError(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class _Line(msgspec.Struct, frozen=True):
    number: int
    indent: int
    text: str


def parse(text: str) -> MarkdownDocument:
    """Parse a file. Never raises. A file without front matter consists of the body only."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[0].rstrip() != "---":
        return MarkdownDocument({}, {}, "\n".join(lines))
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return MarkdownDocument(
            {}, {}, "", problem=(1, "the front matter has no end: close it with a line of three dashes.")
        )
    body = "\n".join(lines[end + 1 :])
    if end > _MAX_LINES or sum(map(len, lines[:end])) > _MAX_LENGTH:
        return MarkdownDocument({}, {}, body, end + 2, (1, "the front matter is too long: move text below it."))
    parser = _FrontMatterParser(lines[1:end])
    try:
        fields = parser.table(0, 0)
        parser.expect_end()
    except _ParseError as error:
        return MarkdownDocument({}, parser.lines, body, end + 2, (error.line, error.text))
    return MarkdownDocument(fields, parser.lines, body, end + 2)


def split_list(value: "Value | None") -> tuple[str, ...]:
    """Return a list of texts, from a list or from text separated by commas. Commas in parentheses do not separate."""
    if isinstance(value, list):
        return tuple(item.strip() for item in value if isinstance(item, str) and item.strip())
    if not isinstance(value, str):
        return ()
    return tuple(piece.strip() for piece in _split_commas(value) if piece.strip())


def _split_commas(text: str) -> list[str]:
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")" and depth > 0)
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


class _FrontMatterParser:
    """Reads the lines once. `lines` collects the line numbers of top-level keys."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._raw = lines
        self._index = 0
        self.lines: dict[str, int] = {}

    def _peek(self) -> _Line | None:
        """Return the next line that is neither empty nor a comment."""
        while self._index < len(self._raw):
            raw = self._raw[self._index]
            stripped = raw.lstrip(" ")
            if stripped.strip() and not stripped.startswith("#"):
                if stripped.startswith("\t"):
                    raise _ParseError(self._index + 2, "a tab at the beginning of a line: use spaces.")
                return _Line(self._index + 2, len(raw) - len(stripped), stripped.rstrip())
            self._index += 1
        return None

    def expect_end(self) -> None:
        """Raise an error if lines remain."""
        if (line := self._peek()) is not None:
            raise _ParseError(line.number, "expected `key: value` here, at the beginning of the line.")

    def table(self, indent: int, depth: int) -> dict[str, Value]:
        """Parse the keys and values at this indentation."""
        found: dict[str, Value] = {}
        while (line := self._peek()) is not None and line.indent == indent:
            key = _KEY.match(line.text)
            if key is None:
                raise _ParseError(line.number, "expected `key: value`.")
            name = key[1] or key[2] or key[3]
            if name in found:
                raise _ParseError(line.number, f"{name} is defined twice.")
            if not depth:
                self.lines[name] = line.number
            self._index += 1
            found[name] = self._value(line, line.text[key.end() :].strip(), indent, depth)
        return found

    def _value(self, line: _Line, text: str, indent: int, depth: int) -> Value:
        """Parse the value after a key or a dash, on the same line or on the following ones."""
        if depth >= _MAX_DEPTH:
            raise _ParseError(line.number, f"expected at most {_MAX_DEPTH} levels, found more.")
        if block := _BLOCK.match(text):
            return self._block(block, indent)
        if not text or text.startswith("#"):
            below = self._peek()
            if below is None or below.indent < indent:
                return ""
            if below.text.startswith("- ") or below.text == "-":
                return self._items(below.indent, depth + 1)
            if below.indent > indent:
                is_table = _KEY.match(below.text) is not None
                return self.table(below.indent, depth + 1) if is_table else self._plain_text("", indent)
            return ""
        if text[0] in "\"'":
            return self._quoted_text(line, text)
        if text[0] in "[{":
            return self._flow_value(line, text, indent)
        return _scalar(self._plain_text(text, indent))

    def _items(self, indent: int, depth: int) -> list[Value]:
        found: list[Value] = []
        while (line := self._peek()) is not None and line.indent == indent:
            if not (line.text.startswith("- ") or line.text == "-"):
                break
            self._index += 1
            found.append(self._value(line, line.text[1:].strip(), indent + 1, depth))
        return found

    def _plain_text(self, text: str, indent: int) -> str:
        """Parse plain text, including continuation lines with deeper indentation."""
        pieces = [_COMMENT.sub("", text).strip()]
        while (line := self._peek()) is not None and line.indent > indent:
            pieces.append(_COMMENT.sub("", line.text).strip())
            self._index += 1
        return " ".join(piece for piece in pieces if piece)

    def _block(self, block: re.Match[str], indent: int) -> str:
        """Parse a literal (`|`) or folded (`>`) block."""
        taken: list[str] = []
        while self._index < len(self._raw):
            raw = self._raw[self._index]
            if raw.strip() and len(raw) - len(raw.lstrip(" ")) <= indent:
                break
            taken.append(raw.rstrip())
            self._index += 1
        inner = min((len(raw) - len(raw.lstrip(" ")) for raw in taken if raw), default=0)
        lines = [raw[inner:] for raw in taken]
        while lines and not lines[-1]:
            lines.pop()
        text = "\n".join(lines) if block[1] == "|" else _fold(lines)
        return text if "-" in block[2] or not text else text + "\n"

    def _quoted_text(self, line: _Line, text: str) -> str:
        """Parse quoted text, which may span several lines."""
        quote, whole = text[0], text
        while (end := _closing_quote(whole, quote)) < 0:
            if self._index >= len(self._raw):
                raise _ParseError(line.number, "a quote is not closed.")
            whole += " " + self._raw[self._index].strip()
            self._index += 1
        rest = whole[end + 1 :].strip()
        if rest and not rest.startswith("#"):
            raise _ParseError(line.number, "there is text after the closing quote: quote the whole text.")
        return _unquote(whole[: end + 1])

    def _flow_value(self, line: _Line, text: str, indent: int) -> Value:
        """Parse a list in brackets or a table in braces. Text that only resembles one is returned as text."""
        whole = self._plain_text(text, indent) if not text.rstrip().endswith(("]", "}")) else text
        opening, closing = whole[0], "]" if whole[0] == "[" else "}"
        if not whole.endswith(closing) or whole.find(closing) != len(whole) - 1 or whole.find(opening, 1) > 0:
            return whole
        pieces = [piece.strip() for piece in _split_commas(whole[1:-1]) if piece.strip()]
        if opening == "[":
            return [_scalar(_unquote(piece)) for piece in pieces]
        pairs = [piece.partition(":") for piece in pieces]
        if not all(colon for _, colon, _ in pairs):
            raise _ParseError(line.number, "expected `key: value` pairs in the braces.")
        return {_unquote(key.strip()): _scalar(_unquote(value.strip())) for key, _, value in pairs}


def _scalar(text: str) -> str | bool:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    return "" if lowered in ("null", "~") else text


def _fold(lines: Sequence[str]) -> str:
    text = ""
    for line in lines:
        text += "\n" if not line else line if not text or text.endswith("\n") else f" {line}"
    return text


def _closing_quote(text: str, quote: str) -> int:
    """Return the index of the closing quote, or -1."""
    at = 1
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 2
        elif text[at] != quote:
            at += 1
        elif quote == "'" and text[at + 1 : at + 2] == "'":
            at += 2
        else:
            return at
    return -1


def _unquote(text: str) -> str:
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "\"'":
        return text
    inside = text[1:-1]
    if text[0] == "'":
        return inside.replace("''", "'")
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), inside, flags=re.S)


def parse_file(file: MarkdownFile) -> MarkdownDocument | FileProblem:
    """Parse the file, or return the first problem that prevents parsing."""
    if file.error:
        return file_problem(file, 0, file.error)
    try:
        document = parse(file.data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        return file_problem(file, line, "expected UTF-8, found other bytes.")
    return document if document.problem is None else file_problem(file, *document.problem)


def file_problem(file: MarkdownFile, line: int, text: str, key: str = "") -> FileProblem:
    """Return a problem that makes the file unusable."""
    return FileProblem("error", file.path, line, key, text)


def text_field(document: MarkdownDocument, key: str) -> str:
    """Return the text of a key, or an empty string if it is not a text."""
    value = document.fields.get(key, "")
    return value.strip() if isinstance(value, str) else ""


def model_problems(file: MarkdownFile, document: MarkdownDocument) -> tuple[FileProblem, ...]:
    """Return a warning if the model is not a text."""
    if isinstance(document.fields.get("model", ""), str):
        return ()
    text = "expected the name of a model: the default model is used."
    return (FileProblem("warning", file.path, document.lines["model"], "model", text),)


def first_error(problems: Iterable[FileProblem]) -> str:
    """Return the first error as text, or an empty string if there is none."""
    for problem in problems:
        if problem.severity == "error":
            where = [f"line {problem.line}"] if problem.line else []
            return ": ".join([*where, *([problem.key] if problem.key else []), problem.text])
    return ""
