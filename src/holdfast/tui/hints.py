"""Which keys do what, in one line: the keys stand out, and what they do can be read."""

from rich.text import Text

__all__ = ["hints"]


def hints(*pairs: tuple[str, str]) -> Text:
    """Each pair is a key and what it does; without a key it is a remark."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, what in pairs:
        line.append(" · " if line else "", style="dim")
        line.append(f"{key} " if key else "", style="bold")
        line.append(what)
    return line
