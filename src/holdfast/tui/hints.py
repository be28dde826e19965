"""Key hints in one line, with the keys in bold."""

from rich.text import Text

__all__ = ["hints"]


def hints(*pairs: tuple[str, str]) -> Text:
    """Format the pairs of key and description; a pair without a key is a remark."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, what in pairs:
        line.append(" · " if line else "", style="dim")
        line.append(f"{key} " if key else "", style="bold")
        line.append(what)
    return line
