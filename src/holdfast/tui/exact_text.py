"""Text with every invisible character made visible."""

from rich.text import Text

__all__ = ["shown_exactly"]

_HIDDEN = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xAD)))


def shown_exactly(text: str) -> Text:
    """Escape control characters and invisible ones: the displayed text is exactly what would be executed."""
    shown = Text()
    for character in text:
        if character == "\n" or (character.isprintable() and character not in _HIDDEN):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode(), style="reverse")
    return shown
