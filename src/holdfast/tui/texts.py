"""Text of blocks for copying and searching, and highlighting of matches. Pure."""

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from holdfast.tui.blocks import Block, Card, Closing, Note, Prose, Saying, Thought
from holdfast.tui.cards import facts_of, headline_of

__all__ = ["code_of_block", "lines_with", "marked", "text_of_block"]

_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)


def text_of_block(block: Block) -> str:
    """Return the text of a block."""
    match block:
        case Saying(text=text) | Prose(text=text) | Thought(text=text):
            return text
        case Card():
            said = block.content.partition("\n<cwd>")[0] or block.output
            return "\n".join(word for word in (headline_of(block), said) if word)
        case Note(title=title, text=text):
            return f"{title}\n{text}" if text else title
        case Closing(model=model):
            return model


def code_of_block(block: Block) -> str:
    """Return the code of an answer without its fences; of a tool the command, the new text of a file or its output."""
    match block:
        case Prose(text=text):
            return "\n".join(found[2].rstrip("\n") for found in _CODE.finditer(text))
        case Card():
            asked, told = facts_of(block.input), facts_of(block.metadata)
            for value in (asked.get("command"), told.get("new_content"), told.get("content"), asked.get("content")):
                if isinstance(value, str) and value:
                    return value
            return block.content
        case _:
            return ""


def lines_with(lines: Sequence[Strip], words: str) -> list[int]:
    """Return the indices of lines that contain the words."""
    return [number for number, line in enumerate(lines) if words in line.text.casefold()]


def marked(strip: Strip, words: str, style: Style) -> Strip:
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
