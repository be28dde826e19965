"""Give a block its lines. Pure: the same block at the same width always looks the same."""

from collections.abc import Iterator
from typing import assert_never

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from holdfast.tui.blocks import Block, Card, Note, Prose, Saying, Thought
from holdfast.tui.cards import Line, LineKind, body_of, headline_of
from holdfast.tui.look import Look

__all__ = ["FOLDED_LINES", "Barred", "paint"]

FOLDED_LINES = 8
_MARKS = {"called": "◌", "running": "◐", "done": "●", "failed": "✗"}
_BOXES: dict[LineKind, str] = {"done": "☑ ", "doing": "▸ ", "todo": "☐ "}


class Barred:
    """Something with a bar to its left."""

    def __init__(self, inner: RenderableType, style: str, bar: str = "▌ ") -> None:
        self._inner = inner
        self._style = style
        self._bar = bar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        inner = options.update(width=max(1, options.max_width - len(self._bar)))
        bar = Segment(self._bar, Style.parse(self._style))
        for line in console.render_lines(self._inner, inner, pad=False):
            yield bar
            yield from line
            yield Segment.line()


def paint(block: Block, look: Look, *, is_unfolded: bool = False, directory: str = "") -> RenderableType:
    """Something rich can draw at any width."""
    match block:
        case Saying(text=text, files=files):
            return _said(text, files, look)
        case Prose(text=text):
            return Padding(Markdown(text, code_theme=look.code_theme), (0, 1, 0, 2))
        case Thought():
            return _thought(block, look, is_unfolded=is_unfolded)
        case Card():
            return _card(block, look, directory, is_unfolded=is_unfolded)
        case Note():
            return _note(block, look)
        case _:
            assert_never(block)


def _said(text: str, files: tuple[str, ...], look: Look) -> RenderableType:
    words = Text(text, style=look.said)
    for file in files:
        words.append(f"\n⎘ {file}", style=look.muted)
    return Barred(words, look.accent)


def _thought(thought: Thought, look: Look, *, is_unfolded: bool) -> RenderableType:
    if thought.is_open:
        last = thought.text.rstrip().rpartition("\n")[2]
        head = Text.assemble(("✻ Thinking ", f"italic {look.muted}"), (last, f"italic {look.faint}"))
        head.truncate(400)
        head.no_wrap, head.overflow = True, "ellipsis"
    else:
        length = f" for {thought.seconds} s" if thought.seconds else ""
        head = Text(f"✻ Thought{length}", style=f"italic {look.muted}")
    if not is_unfolded or not thought.text:
        return Padding(head, (0, 0, 0, 2))
    return Group(
        Padding(head, (0, 0, 0, 2)),
        Padding(Barred(Text(thought.text, style=f"italic {look.muted}"), look.faint, "│ "), (0, 1, 0, 2)),
    )


def _card(card: Card, look: Look, directory: str, *, is_unfolded: bool) -> RenderableType:
    colours = {"called": look.faint, "running": look.warning, "done": look.success, "failed": look.error}
    head = Text.assemble(
        (f"{_MARKS[card.state]} ", colours[card.state]),
        (card.name, "bold"),
        ("  ", ""),
        (headline_of(card, directory), look.muted),
        no_wrap=True,
        overflow="ellipsis",
    )
    lines = body_of(card)
    if not lines:
        return Padding(head, (0, 1, 0, 2))
    return Padding(Group(head, Barred(_body(card, lines, look, is_unfolded), look.faint, "│ ")), (0, 1, 0, 2))


def _body(card: Card, lines: list[Line], look: Look, is_unfolded: bool) -> RenderableType:
    """Folded, the first lines of a result; of a command at work the newest."""
    if is_unfolded or len(lines) <= FOLDED_LINES + 1:
        return Group(*_drawn(lines, look))
    hidden = len(lines) - FOLDED_LINES
    more = Text(f"… {hidden} more lines", style=look.faint)
    if card.state == "running":
        return Group(more, *_drawn(lines[-FOLDED_LINES:], look))
    return Group(*_drawn(lines[:FOLDED_LINES], look), more)


def _drawn(lines: list[Line], look: Look) -> Iterator[Text]:
    styles: dict[LineKind, str] = {
        "plain": look.muted,
        "added": look.added,
        "removed": look.removed,
        "hunk": look.accent,
        "done": look.muted,
        "doing": f"bold {look.warning}",
        "todo": "",
        "error": look.error,
    }
    for kind, text in lines:
        yield Text(_BOXES.get(kind, "") + text, style=styles[kind], no_wrap=True, overflow="ellipsis")


def _note(note: Note, look: Look) -> RenderableType:
    colour = {"error": look.error, "cancelled": look.warning, "summary": look.accent, "info": look.muted}[note.kind]
    mark = {"error": "✗", "cancelled": "■", "summary": "≡", "info": "·"}[note.kind]
    words = Text.assemble((f"{mark} {note.title}", f"bold {colour}"))
    if note.text:
        words.append(f"\n{note.text}", style=look.muted)
    return Padding(words, (0, 1, 0, 2))
