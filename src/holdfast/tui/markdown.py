"""Markdown rendering: compact, and without losing text."""

from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.syntax import Syntax
from rich.table import Table

__all__ = ["Answer"]

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
"""HTML is treated as text: a terminal cannot show it, and `Vec<u8>` must keep its `<u8>`. An image becomes a link."""


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                part.show_edge = False
            yield part


class Answer(Markdown):
    """An answer of a model."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "table_open": _Table,
    }

    def __init__(self, text: str, *, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme)
        self.markup = text
        self.parsed = _PARSER.parse(text)
