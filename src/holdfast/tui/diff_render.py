"""Renders a diff in one column, or in two if there is room, with syntax highlighting. Pure."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax, SyntaxTheme

from holdfast.domain.line_diff import ColumnPair, DiffLine, changed_span, pair_columns
from holdfast.tui.themes import Palette

__all__ = ["SPLIT_WIDTH", "DiffView", "HighlightedLine", "highlight_lines"]


HighlightedLine: TypeAlias = tuple[tuple[str, Style], ...]
"""The pieces of one line, each with its colour and no other style."""

_MAX_LINES = 600
_MAX_HIGHLIGHTED = 400
"""Longer lines are usually generated, and slow to highlight."""


def highlight_lines(lines: Sequence[str], name: str, theme: str) -> list[HighlightedLine] | None:
    """Highlight the lines of a file, up to a limit; None if its language is unknown."""
    lexer = _lexer(name)
    if lexer is None or any(len(line) > _MAX_HIGHLIGHTED for line in lines):
        return None
    found = Syntax.get_theme(theme)
    return list(_highlight_lines(lexer, "\n".join(lines[:_MAX_LINES]), found))


def _highlight_lines(lexer: Any, text: str, theme: SyntaxTheme) -> Iterator[HighlightedLine]:  # noqa: ANN401 - of a library without types
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


SPLIT_WIDTH = 110
"""Minimum width for two columns."""
_SIGNS = {"same": " ", "added": "+", "removed": "-"}


class DiffView:
    """Up to `most` lines of a change. `split` selects two columns; by default it depends on the width. With the `name`
    of the file, code is highlighted. `wraps`: long lines are wrapped, otherwise they are cut.
    """

    def __init__(
        self,
        lines: Sequence[DiffLine],
        palette: Palette,
        *,
        most: int | None = None,
        split: bool | None = None,
        name: str = "",
        wraps: bool = False,
    ) -> None:
        self._lines = lines
        self._palette = palette
        self._most = most
        self._split = split
        self._wraps = wraps
        self._colours = _colours(lines, name, palette.code_theme) if name and palette.has_colours else {}
        numbers = max((max(line.old, line.new) for line in lines), default=0)
        self._digits = max(2, len(str(numbers)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width
        is_split = wide >= SPLIT_WIDTH if self._split is None else self._split
        has_both = {"added", "removed"} <= {line.kind for line in self._lines}
        rows = list(self._columns(wide) if is_split and has_both else self._column(wide))
        shown = rows if self._most is None or len(rows) <= self._most + 1 else rows[: self._most]
        for row in shown:
            yield from row
            yield Segment.line()
        if len(shown) < len(rows):
            yield Segment(
                set_cell_size(f"… {len(rows) - len(shown)} more lines", wide), self._style(self._palette.faint)
            )
            yield Segment.line()

    def _style(self, text: str) -> Style:
        return Style.parse(text) if text else Style.null()

    def _column(self, wide: int) -> Iterator[list[Segment]]:
        others = {id(line): other for line, other in _changed_pairs(self._lines)}
        for line in self._lines:
            if line.kind == "hunk":
                yield [self._hunk(wide)]
                continue
            old = str(line.old) if line.old else ""
            new = str(line.new) if line.new else ""
            gutter = f"{old:>{self._digits}} {new:>{self._digits}} "
            yield from self._with_numbers(gutter, self._text(line, others.get(id(line)), wide - len(gutter)))

    def _with_numbers(self, gutter: str, rows: list[list[Segment]]) -> Iterator[list[Segment]]:
        """Yield the rows of one line with its numbers before the first row."""
        for at, row in enumerate(rows):
            yield [Segment(" " * len(gutter) if at else gutter, self._style(self._palette.faint)), *row]

    def _columns(self, wide: int) -> Iterator[list[Segment]]:
        left = (wide - 3) // 2
        bar = Segment(" │ ", self._style(self._palette.faint))
        for old, new in pair_columns(self._lines):
            if old is not None and old.kind == "hunk":
                yield [self._hunk(wide)]
                continue
            right = wide - 3 - left
            olds, new_lines = self._render_side(old, new, "old", left), self._render_side(new, old, "new", right)
            for one, other in zip_longest(olds, new_lines):
                yield [*(one or [Segment(" " * left)]), bar, *(other or [Segment(" " * right)])]

    def _render_side(self, line: DiffLine | None, other: DiffLine | None, side: str, wide: int) -> list[list[Segment]]:
        if line is None:
            return []
        gutter = f"{getattr(line, side):>{self._digits}} "
        partner = other if other is not None and other.kind != line.kind else None
        return list(self._with_numbers(gutter, self._text(line, partner, wide - len(gutter))))

    def _text(self, line: DiffLine, other: DiffLine | None, wide: int) -> list[list[Segment]]:
        """Return the line with its sign in rows of this width; differences from its partner are highlighted."""
        if wide < 2:
            return [[]]
        palette = self._palette
        base, part = {
            "added": (palette.added, palette.added_part),
            "removed": (palette.removed, palette.removed_part),
        }.get(line.kind, (palette.muted, ""))
        text = line.text.expandtabs(4)
        start, end = changed_span(text, other.text.expandtabs(4)) if other is not None else (0, 0)
        tokens = self._colours.get(id(line), ((text, Style.null()),))
        pieces: list[tuple[str, Style]] = [(_SIGNS[line.kind], self._style(base))]
        at = 0
        for piece, colour in tokens:
            for begin, stop, style in ((0, start, base), (start, end, part), (end, len(text), base)):
                shown = piece[max(0, begin - at) : max(0, stop - at)]
                if shown:
                    pieces.append((shown, self._style(style) + colour))
            at += len(piece)
        return self._fit_pieces(pieces, self._style(base), wide)

    def _fit_pieces(self, pieces: Sequence[tuple[str, Style]], background: Style, wide: int) -> list[list[Segment]]:
        """Fit the pieces into the width: in as many rows as needed, or cut to one with an ellipsis."""
        shown = [(_replace_unprintable(text), style) for text, style in pieces]
        is_cut = not self._wraps and sum(cell_len(text) for text, _ in shown) > wide
        room = wide - 1 if is_cut else wide
        rows: list[list[Segment]] = [[]]
        left = room
        for text, style in shown:
            head, *others = _wrap(text, left, wide)
            for at, part in enumerate((head,) if is_cut else (head, *others)):
                if at:
                    rows[-1].append(Segment(" " * left, background))
                    rows.append([])
                    left = wide
                rows[-1].append(Segment(part, style))
                left -= cell_len(part)
            if is_cut and others:
                rows[-1].append(Segment("…", style))
                break
        rows[-1].append(Segment(" " * left, background))
        return rows

    def _hunk(self, wide: int) -> Segment:
        return Segment(set_cell_size(" " * self._digits + " ⋯", wide), self._style(self._palette.faint))


def _replace_unprintable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def _wrap(text: str, first: int, wide: int) -> list[str]:
    """Split the text into parts that fit: the first width, then the others."""
    if cell_len(text) <= first:
        return [text]
    parts: list[str] = []
    start, left = 0, first
    for at, character in enumerate(text):
        if (size := cell_len(character)) > left:
            parts.append(text[start:at])
            start, left = at, wide
        left -= size
    return [*parts, text[start:]]


def _colours(lines: Sequence[DiffLine], name: str, theme: str) -> dict[int, HighlightedLine]:
    """Highlight each side separately: a comment that was opened in the old text is not open in the new one."""
    found: dict[int, HighlightedLine] = {}
    for kinds in (("same", "removed"), ("same", "added")):
        side = [line for line in lines if line.kind in kinds]
        texts = [line.text.expandtabs(4) for line in side]
        for line, text, pieces in zip(side, texts, highlight_lines(texts, name, theme) or (), strict=False):
            # Use the tokens only if they reproduce the text exactly.
            if "".join(piece for piece, _ in pieces) == text:
                found[id(line)] = pieces
    return found


def _changed_pairs(lines: Sequence[DiffLine]) -> Iterator[tuple[DiffLine, DiffLine]]:
    pairs: list[ColumnPair] = pair_columns(lines)
    for old, new in pairs:
        if old is not None and new is not None and old is not new:
            yield old, new
            yield new, old
