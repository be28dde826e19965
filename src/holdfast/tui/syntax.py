"""Syntax highlighting for separate lines. Pure."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from rich.style import Style
from rich.syntax import Syntax, SyntaxTheme

__all__ = ["Coloured", "coloured"]

Coloured: TypeAlias = tuple[tuple[str, Style], ...]
"""The pieces of one line, each with its colour and no other style."""

_MOST_LINES = 600
_LONGEST = 400
"""Longer lines are usually generated, and slow to highlight."""


def coloured(lines: Sequence[str], name: str, theme: str) -> list[Coloured] | None:
    """Highlight the lines of a file, up to a limit; None if its language is unknown."""
    lexer = _lexer(name)
    if lexer is None or any(len(line) > _LONGEST for line in lines):
        return None
    found = Syntax.get_theme(theme)
    return list(_by_line(lexer, "\n".join(lines[:_MOST_LINES]), found))


def _by_line(lexer: Any, text: str, theme: SyntaxTheme) -> Iterator[Coloured]:  # noqa: ANN401 - of a library without types
    line: list[tuple[str, Style]] = []
    for token, value in lexer.get_tokens(text):
        style = theme.get_style_for_token(token)
        colour = Style(color=style.color)
        first, *others = value.split("\n")
        line.append((first, colour))
        for other in others:
            yield tuple(line)
            line = [(other, colour)]
    if any(piece for piece, _ in line):
        yield tuple(line)


@lru_cache(64)
def _lexer(name: str) -> Any:  # noqa: ANN401 - of a library without types
    return Syntax("", Syntax.guess_lexer(name)).lexer if name else None
