"""Renders blocks. The result depends only on the block, the look and the width."""

import time
from collections.abc import Iterator
from typing import assert_never

import msgspec
from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from holdfast.tui.blocks import Block, Card, Closing, Note, Prose, Saying, Thought
from holdfast.tui.cards import Line, LineKind, body_of, change_of, facts_of, headline_of
from holdfast.tui.differences import Differences
from holdfast.tui.diffs import counted
from holdfast.tui.look import Look
from holdfast.tui.markdown import Answer
from holdfast.tui.status import elapsed

__all__ = ["FOLDED_LINES", "Barred", "clock", "markdown_theme", "paint"]

FOLDED_LINES = 8
FOLDED_CHANGE = 14
_NESTED = 4
_WIDEST = 120
"""Maximum width of prose, for legibility."""
_COMMANDS = frozenset({"bash", "shell", "job_output"})
"""Of these the end of the output is shown, because it contains the outcome."""
_HELPERS = frozenset({"agent", "agentic_fetch"})
"""Their results are Markdown written by a model."""
_MARKS = {"called": "◌", "running": "◐", "done": "●", "failed": "✗"}
_BOXES: dict[LineKind, str] = {"done": "✓ ", "doing": "▸ ", "todo": "○ ", "asked": "? "}


def markdown_theme(look: Look) -> Theme:
    """Return the Markdown styles of an answer."""
    styles = {f"markdown.h{level}": f"bold {look.accent}".strip() for level in range(1, 7)}
    styles |= {
        "markdown.h1": f"bold underline {look.accent}".strip(),
        "markdown.code": look.inline,
        "markdown.block_quote": look.muted,
        "markdown.item.bullet": look.accent,
        "markdown.item.number": look.accent,
        "markdown.hr": look.faint,
        "markdown.link": f"underline {look.accent}".strip(),
        "markdown.link_url": f"underline {look.accent}".strip(),
        "markdown.table.header": "bold",
        "markdown.table.border": look.faint,
    }
    return Theme({name: style or "none" for name, style in styles.items()})


class Barred:
    """A renderable with a bar to its left."""

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


class _Ended:
    """Lines with a word at the right end of the first, if there is room."""

    def __init__(self, inner: RenderableType, word: Text) -> None:
        self._inner = inner
        self._word = word

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width
        room = wide - self._word.cell_len - 2
        if room < 30:
            yield self._inner
            return
        lines = console.render_lines(self._inner, options.update(width=room), pad=False)
        for number, line in enumerate(lines):
            yield from line
            if number == 0:
                yield Segment(" " * (wide - sum(segment.cell_length for segment in line) - self._word.cell_len))
                yield from (segment for segment in self._word.render(console))
            yield Segment.line()


def paint(block: Block, look: Look, *, is_unfolded: bool = False, directory: str = "") -> RenderableType:
    """Return a Rich renderable for any width."""
    match block:
        case Saying():
            return _said(block, look)
        case Prose(text=text):
            return Padding(Constrain(Answer(text, code_theme=look.code_theme), _WIDEST), (0, 1, 0, 2))
        case Thought():
            return _thought(block, look, is_unfolded=is_unfolded)
        case Card(is_own=True):
            return _typed(block, look, is_unfolded=is_unfolded)
        case Card():
            return _card(block, look, directory, is_unfolded=is_unfolded)
        case Note():
            return _note(block, look)
        case Closing():
            return _closing(block, look)
        case _:
            assert_never(block)


def _said(saying: Saying, look: Look) -> RenderableType:
    words = Text(saying.text, style=look.said)
    for file in saying.files:
        words.append("\n" if words.plain else "")
        words.append(f"⊞ {file}", style=look.muted)
    if saying.at <= 1:
        return Barred(words, look.accent)
    return Padding(Barred(_Ended(words, Text(clock(saying.at), style=look.faint, end="")), look.accent), (0, 1, 0, 0))


def clock(at: int) -> str:
    """Format the local time of day."""
    return time.strftime("%H:%M", time.localtime(at))


def _closing(closing: Closing, look: Look) -> RenderableType:
    words = " · ".join(word for word in (closing.model, elapsed(closing.seconds * 1000)) if word)
    return Padding(Text(f"◇ {words}", style=look.faint, no_wrap=True, overflow="ellipsis"), (0, 1, 0, 2))


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
    head = _head(card, look, directory)
    inside: list[RenderableType] = []
    if card.steps:
        inside.append(_steps(card, look, directory, is_unfolded=is_unfolded))
    if change := change_of(card):
        more, less = counted(change)
        head.append(f"  +{more}", style=look.success)
        head.append(f" -{less}", style=look.error)
        # While a call is being streamed, every frame would be highlighted again.
        name = headline_of(card) if card.state == "done" else ""
        most = None if is_unfolded else FOLDED_CHANGE
        inside.append(Differences(change, look, most=most, name=name, wraps=is_unfolded))
    if lines := body_of(card):
        inside.append(_body(card, lines, look, is_unfolded=is_unfolded))
    if not inside:
        return Padding(head, (0, 1, 0, 2))
    return Padding(Group(head, Barred(Group(*inside), look.faint, "│ ")), (0, 1, 0, 2))


def _typed(card: Card, look: Look, *, is_unfolded: bool) -> RenderableType:
    """Draw a shell command of the user like a prompt, in the colour that the editor uses for commands."""
    head = Text.assemble(("$ ", look.warning), (str(facts_of(card.input).get("command", "")), look.said))
    if code := facts_of(card.metadata).get("exit_code"):
        head.append(f"   exit code {code}", style=look.error)
    lines = body_of(msgspec.structs.replace(card, state="done"))
    inside = [_body(card, lines, look, is_unfolded=is_unfolded)] if lines else []
    return Barred(Group(head, *inside), look.warning)


def _head(card: Card, look: Look, directory: str) -> Text:
    colours = {"called": look.faint, "running": look.warning, "done": look.success, "failed": look.error}
    return Text.assemble(
        (f"{_MARKS[card.state]} ", colours[card.state]),
        (card.name, "bold"),
        ("  ", ""),
        (headline_of(card, directory), look.muted),
        no_wrap=True,
        overflow="ellipsis",
    )


def _steps(card: Card, look: Look, directory: str, *, is_unfolded: bool) -> RenderableType:
    """Draw the newest tool calls of a sub-agent, or all of them."""
    shown = card.steps if is_unfolded else card.steps[-_NESTED:]
    lines: list[RenderableType] = [_head(step, look, directory) for step in shown]
    if len(shown) < len(card.steps):
        lines.insert(0, Text(f"… {len(card.steps) - len(shown)} steps before", style=look.faint))
    return Group(*lines)


def _body(card: Card, lines: list[Line], look: Look, *, is_unfolded: bool) -> RenderableType:
    """Draw the output: folded, the first lines of a result, or the last lines of a command."""
    if is_unfolded or len(lines) <= FOLDED_LINES + 1:
        if card.name in _HELPERS and card.state == "done":
            return Answer(card.content, code_theme=look.code_theme)
        return Group(*_drawn(lines, look, wraps=is_unfolded))
    hidden = len(lines) - FOLDED_LINES
    if card.state == "running" or card.name in _COMMANDS:
        before = Text(f"… {hidden} lines before", style=look.faint)
        return Group(before, *_drawn(lines[-FOLDED_LINES:], look))
    return Group(*_drawn(lines[:FOLDED_LINES], look), Text(f"… {hidden} more lines", style=look.faint))


def _drawn(lines: list[Line], look: Look, *, wraps: bool = False) -> Iterator[Text]:
    styles: dict[LineKind, str] = {
        "plain": look.muted,
        "done": look.muted,
        "doing": f"bold {look.warning}",
        "todo": "",
        "error": look.error,
        "asked": "bold",
    }
    for kind, text in lines:
        # Errors are shown in full.
        is_whole = wraps or kind == "error"
        overflow: OverflowMethod = "fold" if is_whole else "ellipsis"
        yield Text(_BOXES.get(kind, "") + text, style=styles[kind], no_wrap=not is_whole, overflow=overflow)


def _note(note: Note, look: Look) -> RenderableType:
    colour = {"error": look.error, "cancelled": look.warning, "summary": look.accent, "info": look.muted}[note.kind]
    mark = {"error": "✗", "cancelled": "■", "summary": "≡", "info": "·"}[note.kind]
    words = Text.assemble((f"{mark} {note.title}", f"bold {colour}".strip()))
    if note.text:
        words.append(f"\n{note.text}", style=look.muted)
    return Padding(words, (0, 1, 0, 2))
