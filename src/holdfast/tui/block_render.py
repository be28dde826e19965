"""Renders blocks with Rich, returns their text for copying and searching, and formats the status lines. Results depend
only on block, palette and width.
"""

import re
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar, assert_never

import msgspec
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, OverflowMethod, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from holdfast.domain.events import AgentNotice
from holdfast.domain.line_diff import count_changes
from holdfast.domain.messages import Message, ReasoningPart, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.tui.blocks import (
    AnswerBlock,
    Block,
    LineKind,
    NoticeBlock,
    OutputLine,
    PromptBlock,
    ReasoningBlock,
    ToolBlock,
    TurnEndBlock,
    block_headline,
    change_lines,
    decode_object,
    output_lines,
)
from holdfast.tui.diff_render import DiffView
from holdfast.tui.themes import Palette

__all__ = [
    "FOLDED_LINES",
    "LeftBar",
    "MarkdownAnswer",
    "block_code",
    "block_text",
    "describe_activity",
    "estimate_tokens",
    "format_age",
    "format_cost",
    "format_count",
    "format_duration",
    "format_price",
    "format_time",
    "format_usage",
    "highlight_matches",
    "markdown_theme",
    "matching_lines",
    "render_block",
]

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
"""HTML is treated as text: a terminal cannot show it, and `Vec<u8>` must keep its `<u8>`. An image becomes a link."""
_MAX_LABEL = 60
_MAX_LABEL_SOURCE = 200
"""Maximum number of characters of an argument that are examined."""
_LETTERS = 4
"""Average number of characters of a token."""
_NAMES = ("command", "file_path", "pattern", "url", "path", "prompt")
FOLDED_LINES = 8
FOLDED_CHANGE = 14
_NESTED = 4
_MAX_ANSWER_WIDTH = 120
"""Maximum width of prose, for legibility."""
_COMMANDS = frozenset({"bash", "shell", "job_output"})
"""Of these the end of the output is shown, because it contains the outcome."""
_HELPERS = frozenset({"agent", "agentic_fetch"})
"""Their results are Markdown written by a model."""
_MARKS = {"called": "◌", "running": "◐", "done": "●", "failed": "✗"}
_BOXES: dict[LineKind, str] = {"done": "✓ ", "doing": "▸ ", "todo": "○ ", "arguments": "? "}
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)


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


class MarkdownAnswer(Markdown):
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


def format_duration(milliseconds: int) -> str:
    """Format a duration."""
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def format_age(seconds: int) -> str:
    """Format an age roughly."""
    if seconds < 60:
        return "now"
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word} ago"
    return ""


def format_count(count: int) -> str:
    """Format a count with a unit."""
    if count < 1_000:
        return str(count)
    number, unit = (count / 1_000, "k") if count < 1_000_000 else (count / 1_000_000, "M")
    return f"{number:.1f}".removesuffix(".0") + unit


def format_cost(dollars: float) -> str:
    """Format an amount of money."""
    return f"${dollars:.2f}" if dollars >= 0.005 or not dollars else f"${dollars:.4f}"


def format_price(dollars: float) -> str:
    """Format a small price with as many digits as it needs."""
    return f"${dollars:.3g}"


def describe_activity(runs: Sequence[Run], last: Message | None, notice: AgentNotice | None = None) -> str:
    """Return what the session does now; empty if it is idle."""
    if not runs:
        return ""
    head = runs[0]
    if head.state == "cancelling" or head.cancel_requested:
        return "Stopping"
    if notice is not None and notice.error:
        return _first_when(notice.error)
    if head.kind == "summary":
        return "Summarising"
    if last is None or last.role != "assistant" or last.finish is not None:
        return "Waiting for the model" if head.started_at else "Starting"
    part = last.parts[-1] if last.parts else None
    match part:
        case ToolCallPart(data=call):
            return f"Running {_render_call(call)}" if call.finished else f"Preparing {call.name}"
        case ReasoningPart():
            return "Thinking"
        case TextPart():
            return "Writing"
        case _:
            return "Waiting for the model"


def _first_when(text: str) -> str:
    """Move the time of the next attempt before the reason, because the line may be too short for both."""
    why, again, when = text.rpartition("Trying again")
    return f"{again}{when.rstrip('.')}: {why.strip()}" if again else text


def _render_call(call: ToolCall) -> str:
    arguments = decode_object(call.input)
    found = next((arguments[name] for name in _NAMES if isinstance(arguments.get(name), str)), "")
    words = " ".join(found[:_MAX_LABEL_SOURCE].split())
    if len(words) > _MAX_LABEL:
        words = f"{words[: _MAX_LABEL - 1].rstrip()}…"
    return f"{call.name}: {words}" if words else call.name


def estimate_tokens(last: Message | None) -> int:
    """Estimate the tokens of the current answer; the exact number is known only at its end."""
    if last is None or last.role != "assistant" or last.finish is not None:
        return 0
    letters = 0
    for part in last.parts:
        match part:
            case TextPart(data=text):
                letters += len(text.text)
            case ReasoningPart(data=thought):
                letters += len(thought.thinking)
            case ToolCallPart(data=call):
                letters += len(call.input)
            case _:
                pass
    return letters // _LETTERS


def format_usage(session: Session, window: int, *, is_short: bool = False) -> str:
    """Format the tokens in the context, its usage and the cost."""
    tokens = session.prompt_tokens + session.completion_tokens
    parts = [f"{format_count(tokens)} tokens"] if tokens else []
    if tokens and window:
        share = f"{100 * tokens // window} %"
        parts = [share] if is_short else [f"{parts[0]} ({share})"]
    if session.cost:
        parts.append(format_cost(session.cost))
    return " · ".join(parts)


def markdown_theme(palette: Palette) -> Theme:
    """Return the Markdown styles of an answer."""
    styles = {f"markdown.h{level}": f"bold {palette.accent}".strip() for level in range(1, 7)}
    styles |= {
        "markdown.h1": f"bold underline {palette.accent}".strip(),
        "markdown.code": palette.inline,
        "markdown.block_quote": palette.muted,
        "markdown.item.bullet": palette.accent,
        "markdown.item.number": palette.accent,
        "markdown.hr": palette.faint,
        "markdown.link": f"underline {palette.accent}".strip(),
        "markdown.link_url": f"underline {palette.accent}".strip(),
        "markdown.table.header": "bold",
        "markdown.table.border": palette.faint,
    }
    return Theme({name: style or "none" for name, style in styles.items()})


class LeftBar:
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
        self._right = word

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width
        room = wide - self._right.cell_len - 2
        if room < 30:
            yield self._inner
            return
        lines = console.render_lines(self._inner, options.update(width=room), pad=False)
        for number, line in enumerate(lines):
            yield from line
            if number == 0:
                yield Segment(" " * (wide - sum(segment.cell_length for segment in line) - self._right.cell_len))
                yield from (segment for segment in self._right.render(console))
            yield Segment.line()


def render_block(block: Block, palette: Palette, *, is_unfolded: bool = False, directory: str = "") -> RenderableType:
    """Return a Rich renderable for any width."""
    match block:
        case PromptBlock():
            return _render_prompt(block, palette)
        case AnswerBlock(text=text):
            return Padding(
                Constrain(MarkdownAnswer(text, code_theme=palette.code_theme), _MAX_ANSWER_WIDTH), (0, 1, 0, 2)
            )
        case ReasoningBlock():
            return _render_reasoning(block, palette, is_unfolded=is_unfolded)
        case ToolBlock(is_own=True):
            return _render_shell_command(block, palette, is_unfolded=is_unfolded)
        case ToolBlock():
            return _card(block, palette, directory, is_unfolded=is_unfolded)
        case NoticeBlock():
            return _note(block, palette)
        case TurnEndBlock():
            return _render_turn_end(block, palette)
        case _:
            assert_never(block)


def _render_prompt(block: PromptBlock, palette: Palette) -> RenderableType:
    words = Text(block.text, style=palette.said)
    for file in block.files:
        words.append("\n" if words.plain else "")
        words.append(f"⊞ {file}", style=palette.muted)
    if block.at <= 1:
        return LeftBar(words, palette.accent)
    return Padding(
        LeftBar(_Ended(words, Text(format_time(block.at), style=palette.faint, end="")), palette.accent),
        (0, 1, 0, 0),
    )


def format_time(at: int) -> str:
    """Format the local time of day."""
    return time.strftime("%H:%M", time.localtime(at))


def _render_turn_end(closing: TurnEndBlock, palette: Palette) -> RenderableType:
    words = " · ".join(word for word in (closing.model, format_duration(closing.seconds * 1000)) if word)
    return Padding(Text(f"◇ {words}", style=palette.faint, no_wrap=True, overflow="ellipsis"), (0, 1, 0, 2))


def _render_reasoning(thought: ReasoningBlock, palette: Palette, *, is_unfolded: bool) -> RenderableType:
    if thought.is_open:
        last = thought.text.rstrip().rpartition("\n")[2]
        head = Text.assemble(("✻ Thinking ", f"italic {palette.muted}"), (last, f"italic {palette.faint}"))
        head.truncate(400)
        head.no_wrap, head.overflow = True, "ellipsis"
    else:
        length = f" for {thought.seconds} s" if thought.seconds else ""
        head = Text(f"✻ Thought{length}", style=f"italic {palette.muted}")
    if not is_unfolded or not thought.text:
        return Padding(head, (0, 0, 0, 2))
    return Group(
        Padding(head, (0, 0, 0, 2)),
        Padding(LeftBar(Text(thought.text, style=f"italic {palette.muted}"), palette.faint, "│ "), (0, 1, 0, 2)),
    )


def _card(card: ToolBlock, palette: Palette, directory: str, *, is_unfolded: bool) -> RenderableType:
    head = _head(card, palette, directory)
    inside: list[RenderableType] = []
    if card.steps:
        inside.append(_steps(card, palette, directory, is_unfolded=is_unfolded))
    if change := change_lines(card):
        more, less = count_changes(change)
        head.append(f"  +{more}", style=palette.success)
        head.append(f" -{less}", style=palette.error)
        # While a call is being streamed, every frame would be highlighted again.
        name = block_headline(card) if card.state == "done" else ""
        most = None if is_unfolded else FOLDED_CHANGE
        inside.append(DiffView(change, palette, most=most, name=name, wraps=is_unfolded))
    if lines := output_lines(card):
        inside.append(_body(card, lines, palette, is_unfolded=is_unfolded))
    if not inside:
        return Padding(head, (0, 1, 0, 2))
    return Padding(Group(head, LeftBar(Group(*inside), palette.faint, "│ ")), (0, 1, 0, 2))


def _render_shell_command(card: ToolBlock, palette: Palette, *, is_unfolded: bool) -> RenderableType:
    """Draw a shell command of the user like a prompt, in the colour that the editor uses for commands."""
    head = Text.assemble(("$ ", palette.warning), (str(decode_object(card.input).get("command", "")), palette.said))
    if code := decode_object(card.metadata).get("exit_code"):
        head.append(f"   exit code {code}", style=palette.error)
    lines = output_lines(msgspec.structs.replace(card, state="done"))
    inside = [_body(card, lines, palette, is_unfolded=is_unfolded)] if lines else []
    return LeftBar(Group(head, *inside), palette.warning)


def _head(card: ToolBlock, palette: Palette, directory: str) -> Text:
    colours = {"called": palette.faint, "running": palette.warning, "done": palette.success, "failed": palette.error}
    return Text.assemble(
        (f"{_MARKS[card.state]} ", colours[card.state]),
        (card.name, "bold"),
        ("  ", ""),
        (block_headline(card, directory), palette.muted),
        no_wrap=True,
        overflow="ellipsis",
    )


def _steps(card: ToolBlock, palette: Palette, directory: str, *, is_unfolded: bool) -> RenderableType:
    """Draw the newest tool calls of a sub-agent, or all of them."""
    shown = card.steps if is_unfolded else card.steps[-_NESTED:]
    lines: list[RenderableType] = [_head(step, palette, directory) for step in shown]
    if len(shown) < len(card.steps):
        lines.insert(0, Text(f"… {len(card.steps) - len(shown)} steps before", style=palette.faint))
    return Group(*lines)


def _body(card: ToolBlock, lines: list[OutputLine], palette: Palette, *, is_unfolded: bool) -> RenderableType:
    """Draw the output: folded, the first lines of a result, or the last lines of a command."""
    if is_unfolded or len(lines) <= FOLDED_LINES + 1:
        if card.name in _HELPERS and card.state == "done":
            return MarkdownAnswer(card.content, code_theme=palette.code_theme)
        return Group(*_render_lines(lines, palette, wraps=is_unfolded))
    hidden = len(lines) - FOLDED_LINES
    if card.state == "running" or card.name in _COMMANDS:
        before = Text(f"… {hidden} lines before", style=palette.faint)
        return Group(before, *_render_lines(lines[-FOLDED_LINES:], palette))
    return Group(*_render_lines(lines[:FOLDED_LINES], palette), Text(f"… {hidden} more lines", style=palette.faint))


def _render_lines(lines: list[OutputLine], palette: Palette, *, wraps: bool = False) -> Iterator[Text]:
    styles: dict[LineKind, str] = {
        "plain": palette.muted,
        "done": palette.muted,
        "doing": f"bold {palette.warning}",
        "todo": "",
        "error": palette.error,
        "arguments": "bold",
    }
    for kind, text in lines:
        # Errors are shown in full.
        is_whole = wraps or kind == "error"
        overflow: OverflowMethod = "fold" if is_whole else "ellipsis"
        yield Text(_BOXES.get(kind, "") + text, style=styles[kind], no_wrap=not is_whole, overflow=overflow)


def _note(note: NoticeBlock, palette: Palette) -> RenderableType:
    colour = {"error": palette.error, "cancelled": palette.warning, "summary": palette.accent, "info": palette.muted}[
        note.kind
    ]
    mark = {"error": "✗", "cancelled": "■", "summary": "≡", "info": "·"}[note.kind]
    words = Text.assemble((f"{mark} {note.title}", f"bold {colour}".strip()))
    if note.text:
        words.append(f"\n{note.text}", style=palette.muted)
    return Padding(words, (0, 1, 0, 2))


def block_text(block: Block) -> str:
    """Return the text of a block."""
    match block:
        case PromptBlock(text=text) | AnswerBlock(text=text) | ReasoningBlock(text=text):
            return text
        case ToolBlock():
            said = block.content.partition("\n<cwd>")[0] or block.output
            return "\n".join(word for word in (block_headline(block), said) if word)
        case NoticeBlock(title=title, text=text):
            return f"{title}\n{text}" if text else title
        case TurnEndBlock(model=model):
            return model


def block_code(block: Block) -> str:
    """Return the code of an answer without its fences; of a tool the command, the new text of a file or its output."""
    match block:
        case AnswerBlock(text=text):
            return "\n".join(found[2].rstrip("\n") for found in _CODE.finditer(text))
        case ToolBlock():
            arguments, result_metadata = decode_object(block.input), decode_object(block.metadata)
            for value in (
                arguments.get("command"),
                result_metadata.get("new_content"),
                result_metadata.get("content"),
                arguments.get("content"),
            ):
                if isinstance(value, str) and value:
                    return value
            return block.content
        case _:
            return ""


def matching_lines(lines: Sequence[Strip], words: str) -> list[int]:
    """Return the indices of lines that contain the words."""
    return [number for number, line in enumerate(lines) if words in line.text.casefold()]


def highlight_matches(strip: Strip, words: str, style: Style) -> Strip:
    """Return the line with every occurrence of the words highlighted."""
    text = strip.text
    plain = text.casefold()
    if words not in plain or len(plain) != len(text):
        return strip
    cuts: list[int] = []
    at = plain.find(words)
    while at >= 0:
        cuts += [cell_len(text[:at]), cell_len(text[: at + len(words)])]
        at = plain.find(words, at + len(words))
    ends = [*cuts, strip.cell_length]
    pieces = list(strip.divide(sorted(set(ends))))
    start = 0
    out: list[Strip] = []
    for piece in pieces:
        is_found = start in cuts[::2]
        out.append(Strip(Segment.apply_style(piece, post_style=style), piece.cell_length) if is_found else piece)
        start += piece.cell_length
    return Strip.join(out)
